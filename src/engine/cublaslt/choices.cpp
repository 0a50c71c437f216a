#include "engine/cublaslt/choices.hpp"

#include <new>

namespace verglas::cublaslt {

Choices::~Choices() {
  for (auto& first : first_)
    for (Choice* c = first.load(std::memory_order_relaxed); c != nullptr;) delete std::exchange(c, c->next);
}

std::size_t Choices::bucket_of(const Geometry& g) noexcept {
  std::uint64_t hash = 0;
  for (const std::int64_t v : {g.batches, g.d.rows, g.d.cols, g.y.rows, g.y.cols, g.x.rows, g.x.ld, g.y.ld, g.d.ld})
    hash = (hash ^ static_cast<std::uint64_t>(v)) * 0x9e3779b97f4a7c15;
  return hash >> 56;
}

const Choice* Choices::find(const Geometry& g) const noexcept {
  for (const Choice* c = first_[bucket_of(g)].load(std::memory_order_acquire); c != nullptr; c = c->next)
    if (c->geometry == g) return c;
  return nullptr;
}

const Choice* Choices::keep(const Geometry& g, const Algorithm& algorithm) noexcept {
  const std::lock_guard lock(keeping_);
  if (const Choice* there = find(g)) return there;
  if (count_ >= kMost) return nullptr;
  auto* const c = new (std::nothrow) Choice;
  if (c == nullptr) return nullptr;
  c->geometry = g;
  c->algorithm = algorithm;
  auto& first = first_[bucket_of(g)];
  c->next = first.load(std::memory_order_relaxed);
  first.store(c, std::memory_order_release);
  ++count_;
  return c;
}

}  // namespace verglas::cublaslt
