#include "support/beside_cpu.hpp"

#include <algorithm>
#include <cstdio>
#include <cstring>

namespace support {

using namespace verglas;

namespace {
Graph described(const BesideCpu::Describe& describe) {
  Graph g;
  describe(g);
  return g;
}

/// The elements that hold byte `i` are zeros, whose signs alone may differ.
bool is_zero_beside_zero(DataType type, const std::vector<std::uint8_t>& x, const std::vector<std::uint8_t>& y, std::size_t i) {
  const auto equal = [](unsigned a, unsigned b, unsigned sign) { return ((a | b) & ~sign) == 0; };
  if (type == DataType::fp4_e2m1)
    return ((x[i] & 15U) == (y[i] & 15U) || equal(x[i] & 15U, y[i] & 15U, 8)) &&
           (x[i] >> 4 == y[i] >> 4 || equal(x[i] >> 4, y[i] >> 4, 8));
  if (type == DataType::int8 || type == DataType::uint8 || type == DataType::int32) return false;
  const auto size = static_cast<std::size_t>(bytes_of(type)), at = i / size * size;
  for (std::size_t b = at; b < at + size; ++b)
    if (!equal(x[b], y[b], b + 1 == at + size ? 0x80 : 0)) return false;
  return true;
}
}  // namespace

BesideCpu::BesideCpu(const cuda::DriverTable& driver, const Describe& describe, const Fill& fill, const Options& options)
    : driver_(driver),
      options_(options),
      reference_(described(options.live ? options.live : describe).compile()),
      plans_(described(describe).plans({.device = {DeviceType::cuda, 0}, .deselect_engines = {"cpu", "cublaslt"}})) {
  for (const OperandInfo& info : reference_.operands()) {
    Operand& o = operands_.emplace_back();
    o.info = info;
    std::int64_t count = 1;
    for (std::size_t i = 0; i < info.dim.size(); ++i) count += (info.dim[i] - 1) * info.stride[i];
    o.host.assign(static_cast<std::size_t>((count * bits_of(info.dtype) + 7) / 8), std::uint8_t{0xFF});
    place(o, options.at_edge);
    const bool of_scales = info.roles == "b_scale_addresses";
    if (const std::size_t bytes = of_scales ? options.scales_bytes : options.matrix_bytes;
        bytes > 0 && (of_scales || info.roles == "b_addresses")) {
      tables_.push_back(&o);
      for (std::int64_t e = 0; e < info.dim[0]; ++e) {
        Operand& m = matrices_.emplace_back();
        m.info.name = (of_scales ? "scales" : "matrix") + std::to_string(matrices_.size());
        m.info.dtype = of_scales ? options.scales : options.matrix;
        m.host.assign(bytes, std::uint8_t{0xFF});
        fill(m.info, m.host);
        place(m, options.at_edge);
        upload(m);
      }
    } else if (!info.is_output) {
      fill(info, o.host);
    }
    upload(o);
  }
  point();
}

/// So that its last byte is the last of the page, or as close as an address of whole 16 bytes lets it.
void BesideCpu::place(Operand& o, bool at_edge) {
  if (!at_edge) {
    o.address = reinterpret_cast<std::uint64_t>(o.buffer.emplace(driver_, o.host.size(), 0xFF).data());
    return;
  }
  o.edge.emplace(driver_, o.host.size()).fill(0xFF);
  o.address = (o.edge->end() - o.host.size()) / 16 * 16;
}
void BesideCpu::upload(const Operand& o) const {
  cuda::check(driver_, driver_.cuMemcpyHtoD(o.address, o.host.data(), o.host.size()), "cuMemcpyHtoD", "an operand");
}
std::vector<std::uint8_t> BesideCpu::download(const Operand& o) const {
  std::vector<std::uint8_t> bytes(o.host.size());
  cuda::check(driver_, driver_.cuMemcpyDtoH(bytes.data(), o.address, bytes.size()), "cuMemcpyDtoH", "an operand");
  return bytes;
}

void BesideCpu::set(const std::string& name, const std::vector<std::uint8_t>& bytes) {
  for (Operand& o : operands_)
    if (o.info.name == name) {
      o.host = bytes;
      upload(o);
    }
}
void BesideCpu::turn_table() {
  ++turned_;
  point();
}
void BesideCpu::drop_scales(std::size_t expert) {
  dropped_ = expert;
  point();
}
/// Experts get matrices in their order, from the one on at which the table is turned.
void BesideCpu::point() {
  std::vector<Operand*> all;
  for (Operand& m : matrices_) all.push_back(&m);
  std::size_t first = 0;
  for (Operand* table : tables_) {
    const std::size_t count = table->host.size() / 8;
    std::vector<std::uint64_t> on_host(count), on_device(count);
    for (std::size_t e = 0; e < count; ++e) {
      if (e == dropped_ && table->info.roles == "b_scale_addresses") continue;
      const Operand& m = *all[first + (e + turned_) % count];
      on_host[e] = reinterpret_cast<std::uint64_t>(m.host.data());
      on_device[e] = m.address;
    }
    first += count;
    std::memcpy(table->host.data(), on_host.data(), 8 * count);
    cuda::check(driver_, driver_.cuMemcpyHtoD(table->address, on_device.data(), 8 * count), "cuMemcpyHtoD", "a table");
  }
}

void BesideCpu::prepare() {
  try {
    reference_.check();
  } catch (const Error&) {
    // What did not fit is asked by who expects it; a plan that is not asked takes no further call.
  }
  std::vector<void*> call;
  for (Operand& o : operands_) {
    if (o.info.is_output) {
      o.host.assign(o.host.size(), options_.outputs);
      upload(o);
    }
    call.push_back(o.host.data());
  }
  const Status status = reference_.execute(call);
  ASSERT_TRUE(status.ok()) << "the CPU engine";
}
std::vector<void*> BesideCpu::call() const {
  std::vector<void*> addresses;
  for (const Operand& o : operands_)
    addresses.push_back(o.info.is_host_scalar ? const_cast<std::uint8_t*>(o.host.data()) : reinterpret_cast<void*>(o.address));
  return addresses;
}
std::vector<TensorView> BesideCpu::views() const {
  std::vector<TensorView> all;
  const std::vector<void*> addresses = call();
  for (const Operand& o : operands_) {
    TensorView& v = all.emplace_back(TensorView::address(addresses[all.size()]));
    if (o.info.is_host_scalar) continue;
    v.dtype = o.info.dtype;
    v.device = {DeviceType::cuda, 0};
    v.rank = static_cast<std::int8_t>(o.info.dim.size());
    std::copy(o.info.dim.begin(), o.info.dim.end(), v.extent.begin());
    std::copy(o.info.stride.begin(), o.info.stride.end(), v.stride.begin());
  }
  return all;
}

void BesideCpu::compare(const std::string& who) const {
  ASSERT_EQ(driver_.cuCtxSynchronize(), cuda::CUDA_SUCCESS) << who;
  for (const Operand& o : operands_) {
    if (!o.info.is_output) continue;
    const std::vector<std::uint8_t> bytes = download(o);
    std::size_t wrong = 0, first = 0, last = 0;
    for (std::size_t i = 0; i < bytes.size(); ++i)
      if (bytes[i] != o.host[i] && !(options_.by_value && is_zero_beside_zero(o.info.dtype, bytes, o.host, i))) {
        if (wrong++ == 0) first = i;
        last = i;
      }
    const auto hex = [&](const std::vector<std::uint8_t>& from) {
      std::string s;
      char two[4];
      for (std::size_t i = first / 16 * 16; i < std::min(from.size(), first / 16 * 16 + 16); ++i)
        std::snprintf(two, sizeof two, "%02x", from[i]), s += two;
      return s;
    };
    EXPECT_EQ(wrong, 0U) << who << ", '" << o.info.name << "' from byte " << first << " to " << last << " of " << bytes.size()
                         << ", there " << hex(bytes) << " and not " << hex(o.host);
    EXPECT_EQ(o.buffer ? o.buffer->touched_guard_bytes() : 0, 0) << o.info.name;
  }
}

}  // namespace support
