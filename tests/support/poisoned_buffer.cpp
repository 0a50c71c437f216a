#include "support/poisoned_buffer.hpp"

#include <algorithm>
#include <utility>

#include "oracle/compare.hpp"
#include "oracle/memory.hpp"

namespace support {

PoisonedBuffer::PoisonedBuffer(oracle::Format format, std::vector<std::int64_t> dims, std::vector<std::int64_t> strides,
                               std::int64_t shift)
    : format_(format), dims_(std::move(dims)), strides_(std::move(strides)) {
  const std::int64_t bits = oracle::bits_of(format_), size = std::max<std::int64_t>(bits / 8, 1);
  if (oracle::count_of(dims_) > 0) {
    std::int64_t last = 0;
    for (std::size_t i = 0; i < dims_.size(); ++i)
      if (dims_[i] > 1) last += (dims_[i] - 1) * strides_[i];
    span_ = ((last + 1) * bits + 7) / 8;
  }
  const std::size_t room = 2 * kGuard + 64 + static_cast<std::size_t>(span_ + shift * size);
  bytes_.assign(room, std::byte{0xA5});
  const auto base = reinterpret_cast<std::uintptr_t>(bytes_.data());
  offset_ = kGuard + (64 - (base + kGuard) % 64) % 64 + static_cast<std::size_t>(shift * size);
  clear();
}

void PoisonedBuffer::clear() {
  std::fill_n(bytes_.begin() + static_cast<std::ptrdiff_t>(offset_), span_, std::byte{0xFF});
  before_ = bytes_;
}

void PoisonedBuffer::fill(const std::function<double()>& value) {
  clear();
  for (oracle::Walk w(dims_); w.more(); w.next()) oracle::put_at(format_, data(), w.offset(strides_), value());
  before_ = bytes_;
}

void PoisonedBuffer::paint(const std::function<void(unsigned char*)>& write) {
  clear();
  write(static_cast<unsigned char*>(data()));
  before_ = bytes_;
}

std::string PoisonedBuffer::stray_write() const {
  if (bytes_ == before_) return {};
  const std::int64_t at =
      oracle::first_stray_write(before_, bytes_, static_cast<std::int64_t>(offset_), format_, dims_, strides_);
  return at < 0 ? std::string{}
                : "byte " + std::to_string(at - static_cast<std::int64_t>(offset_)) + " is no element and changed";
}

std::string PoisonedBuffer::any_write() const {
  const auto at = std::mismatch(bytes_.begin(), bytes_.end(), before_.begin()).first;
  if (at == bytes_.end()) return {};
  return "byte " + std::to_string(at - bytes_.begin() - static_cast<std::ptrdiff_t>(offset_)) + " changed";
}

std::vector<std::byte> PoisonedBuffer::content() const {
  const auto first = bytes_.begin() + static_cast<std::ptrdiff_t>(offset_);
  return {first, first + span_};
}

}  // namespace support
