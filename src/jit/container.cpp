#include "jit/container.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/sha256.hpp"

namespace verglas::jit {
namespace {

constexpr std::size_t kHeaderBytes = 8 + 4 + 4 + 8 + 4;
constexpr std::size_t kChecksumBytes = 32;
constexpr std::uint32_t kMostFields = 1024;

template <class T>
void put(std::string& out, T value) {
  for (std::size_t i = 0; i < sizeof(T); ++i) out += static_cast<char>(value >> 8 * i & 0xff);
}

/// Takes numbers and texts off the front; once a read fails, all later ones do.
struct Reader {
  std::string_view left;
  bool ok = true;

  std::string_view take(std::uint64_t bytes) {
    if (!ok || bytes > left.size()) {
      ok = false;
      return {};
    }
    const std::string_view out = left.substr(0, bytes);
    left.remove_prefix(bytes);
    return out;
  }
  template <class T>
  T number() {
    const std::string_view bytes = take(sizeof(T));
    T value = 0;
    for (std::size_t i = 0; i < bytes.size(); ++i) value |= static_cast<T>(T{static_cast<unsigned char>(bytes[i])} << 8 * i);
    return value;
  }
};

tl::unexpected<ContainerFault> fault(ContainerFault::What what, std::string text) {
  return tl::unexpected<ContainerFault>(ContainerFault{what, std::move(text)});
}

}  // namespace

std::string* Container::find(std::string_view name) noexcept { return const_cast<std::string*>(std::as_const(*this).find(name)); }

const std::string* Container::find(std::string_view name) const noexcept {
  for (const auto& [key, value] : fields)
    if (key == name) return &value;
  return nullptr;
}

std::string write_container(const Container& container) {
  std::uint64_t bytes = kHeaderBytes + kChecksumBytes;
  for (const auto& [name, value] : container.fields) bytes += 4 + name.size() + 8 + value.size();
  std::string out;
  out.reserve(bytes);
  out += kContainerMagic;
  put(out, container.kind);
  put(out, container.schema);
  put(out, bytes);
  put(out, static_cast<std::uint32_t>(container.fields.size()));
  for (const auto& [name, value] : container.fields) {
    put(out, static_cast<std::uint32_t>(name.size()));
    out += name;
    put(out, std::uint64_t{value.size()});
    out += value;
  }
  out += sha256(out);
  return out;
}

tl::expected<Container, ContainerFault> read_container(std::string_view bytes, std::uint32_t kind, std::uint32_t schema) {
  using What = ContainerFault::What;
  Reader reader{bytes};
  if (reader.take(kContainerMagic.size()) != kContainerMagic) return fault(What::not_ours, "does not begin as a file of Verglas");
  Container out;
  out.kind = reader.number<std::uint32_t>();
  out.schema = reader.number<std::uint32_t>();
  const auto total = reader.number<std::uint64_t>();
  const auto count = reader.number<std::uint32_t>();
  if (!reader.ok) return fault(What::damaged, fmt::format("is cut short: {} bytes", bytes.size()));
  if (out.kind != kind) return fault(What::not_ours, fmt::format("is a file of kind {:08x}, not {:08x}", out.kind, kind));
  if (out.schema != schema) return fault(What::other_schema, fmt::format("has format {}, not {}", out.schema, schema));
  if (total != bytes.size() || total < kHeaderBytes + kChecksumBytes)
    return fault(What::damaged, fmt::format("has {} bytes and should have {}", bytes.size(), total));
  const std::string_view body = bytes.substr(0, bytes.size() - kChecksumBytes);
  if (sha256(body) != bytes.substr(body.size())) return fault(What::damaged, "does not match its checksum");
  // From here the bytes are what some Verglas wrote; the bounds are still checked, since a checksum is no proof of sense.
  if (count > kMostFields) return fault(What::damaged, fmt::format("claims {} fields", count));
  reader.left = body.substr(kHeaderBytes);
  for (std::uint32_t i = 0; i < count && reader.ok; ++i) {
    std::string name(reader.take(reader.number<std::uint32_t>()));
    std::string value(reader.take(reader.number<std::uint64_t>()));
    if (reader.ok && out.find(name)) return fault(What::damaged, "has the field " + name + " twice");
    out.add(std::move(name), std::move(value));
  }
  if (!reader.ok || !reader.left.empty()) return fault(What::damaged, "has fields that do not fill it");
  return out;
}

}  // namespace verglas::jit
