#include "jit/cubin.hpp"

#include <elf.h>

#include <cstdint>
#include <cstring>
#include <string>

namespace verglas::jit {
namespace {

constexpr unsigned kMachineCuda = 190;
constexpr std::size_t kInstructionBytes = 16;

// Attributes of .nv.info: a byte of format, a byte of attribute, then two bytes of value or of the payload's length.
enum Format : unsigned { kNoValue = 1, kByteValue = 2, kHalfValue = 3, kSizedValue = 4 };
enum Attribute : unsigned { kFrameSize = 0x11, kParameterInfo = 0x17, kRegisterCount = 0x2f, kBarrierCount = 0x4c };

template <class T>
bool read(std::string_view image, std::uint64_t at, T& into) {
  if (at > image.size() || image.size() - at < sizeof(T)) return false;
  std::memcpy(&into, image.data() + at, sizeof(T));
  return true;
}

std::string_view slice(std::string_view image, std::uint64_t at, std::uint64_t bytes) {
  if (at > image.size() || image.size() - at < bytes) return {};
  return image.substr(at, bytes);
}

std::string_view text_at(std::string_view strings, std::uint64_t at) {
  if (at >= strings.size()) return {};
  const std::string_view rest = strings.substr(at);
  return rest.substr(0, rest.find('\0'));
}

struct Image {
  std::string_view bytes;
  Elf64_Ehdr header{};
  std::string_view names;

  bool open() {
    if (!read(bytes, 0, header) || std::memcmp(header.e_ident, ELFMAG, SELFMAG) != 0 || header.e_machine != kMachineCuda)
      return false;
    Elf64_Shdr strings{};
    if (!section(header.e_shstrndx, strings)) return false;
    names = slice(bytes, strings.sh_offset, strings.sh_size);
    return !names.empty();
  }
  bool section(unsigned index, Elf64_Shdr& into) const {
    return index < header.e_shnum && read(bytes, header.e_shoff + std::uint64_t{index} * sizeof(Elf64_Shdr), into);
  }
  std::optional<Elf64_Shdr> section(std::string_view name) const {
    for (unsigned i = 0; i < header.e_shnum; ++i) {
      Elf64_Shdr s{};
      if (section(i, s) && text_at(names, s.sh_name) == name) return s;
    }
    return std::nullopt;
  }
  std::string_view content(std::string_view name) const {
    const auto s = section(name);
    return s && s->sh_type != SHT_NOBITS ? slice(bytes, s->sh_offset, s->sh_size) : std::string_view{};
  }
};

/// Calls `each(attribute, value, payload)` for every record.
void each_record(std::string_view info, auto each) {
  std::uint64_t at = 0;
  while (at + 4 <= info.size()) {
    std::uint8_t format = 0, attribute = 0;
    std::uint16_t value = 0;
    if (!read(info, at, format) || !read(info, at + 1, attribute) || !read(info, at + 2, value)) return;
    at += 4;
    std::string_view payload;
    if (format == kSizedValue) {
      payload = slice(info, at, value);
      at += value;
    }
    each(attribute, value, payload);
  }
}

/// Index of the kernel in the symbol table, which .nv.info names kernels by.
std::optional<std::uint32_t> symbol_index(const Image& image, std::string_view kernel) {
  const auto table = image.section(".symtab");
  const std::string_view strings = image.content(".strtab");
  if (!table) return std::nullopt;
  for (std::uint32_t i = 0; std::uint64_t{i} * sizeof(Elf64_Sym) < table->sh_size; ++i) {
    Elf64_Sym symbol{};
    if (!read(image.bytes, table->sh_offset + std::uint64_t{i} * sizeof symbol, symbol)) return std::nullopt;
    if (ELF64_ST_TYPE(symbol.st_info) == STT_FUNC && text_at(strings, symbol.st_name) == kernel) return i;
  }
  return std::nullopt;
}

}  // namespace

std::optional<CubinInfo> read_cubin(std::string_view bytes, std::string_view kernel) {
  Image image{bytes, {}, {}};
  if (!image.open()) return std::nullopt;
  const auto symbol = symbol_index(image, kernel);
  if (!symbol) return std::nullopt;

  CubinInfo out;
  // Up to ABI version 7 the architecture is the lowest byte of the flags, from 8 (CUDA 13) the one above it.
  const unsigned flags = image.header.e_flags;
  out.sm = static_cast<int>(image.header.e_ident[EI_ABIVERSION] >= 8 ? flags >> 8 & 0xff : flags & 0xff);
  each_record(image.content(".nv.info"), [&](unsigned attribute, unsigned, std::string_view payload) {
    std::uint32_t who = 0, value = 0;
    if (!read(payload, 0, who) || !read(payload, 4, value) || who != *symbol) return;
    if (attribute == kRegisterCount) out.registers = static_cast<int>(value);
    if (attribute == kFrameSize) out.frame_bytes = static_cast<int>(value);
  });
  each_record(image.content(".nv.info." + std::string(kernel)),
              [&](unsigned attribute, unsigned value, std::string_view payload) {
                if (attribute == kBarrierCount) out.barriers = static_cast<int>(value & 0xff);
                if (attribute != kParameterInfo) return;
                std::uint16_t ordinal = 0;
                std::uint32_t packed = 0;  // | size in bytes : 14 | … : 18 |
                if (!read(payload, 4, ordinal) || !read(payload, 8, packed)) return;
                if (out.parameter_bytes.size() <= ordinal) out.parameter_bytes.resize(ordinal + 1U);
                out.parameter_bytes[ordinal] = static_cast<int>(packed >> 18);
              });
  out.instructions = static_cast<int>(image.content(".text." + std::string(kernel)).size() / kInstructionBytes);
  return out;
}

}  // namespace verglas::jit
