#pragma once
#include <nanobind/nanobind.h>

#include <span>
#include <vector>

#include "buffers.hpp"
#include "verglas/ops/operation.hpp"

namespace verglas::python {

/// A tensor without memory.
struct TensorSpec {
  TensorView view;

  std::vector<std::int64_t> list(const std::array<std::int64_t, kMaxRank>& values) const {
    return {values.begin(), values.begin() + view.rank};
  }
};

/// K of A and B: fp4 lie in pairs along it, also where there is one pair and strides do not tell.
inline constexpr int kPairsAxis = 1;

/// What Python hands over for the places of an operation: None, a TensorSpec or an array.
class Given {
 public:
  /// `stream` is that of the call, for producers that have to know.
  Given(const ops::Operation& op, const nb::sequence& tensors, nb::handle stream = Py_None);
  /// As many objects as places, whose `infos_of` these are.
  Given(std::span<const OperandInfo> infos, std::span<PyObject* const> objects, nb::handle stream);
  Given(const Given&) = delete;
  Given& operator=(const Given&) = delete;

  std::span<const TensorView> views() const noexcept { return {views_, count_}; }
  /// The stream named, or the one on which the producer of a CUDA tensor works now.
  Stream stream(nb::handle named) const;

 private:
  void add(std::span<const OperandInfo> infos, PyObject* object);

  std::size_t count_ = 0;
  alignas(TensorView) std::byte memory_[sizeof(TensorView) * ops::kMaxTensors];  // not initialised: only count_ of them are
  TensorView* views_ = reinterpret_cast<TensorView*>(memory_);
  std::array<PyObject*, ops::kMaxTensors> objects_;
  Keepers keep_;
};

/// A factor as it was given. Throws op.option for what is no number.
float alpha_of(const ops::Operation& op, nb::handle value);

/// How the places of an operation are named in messages. For ever.
std::span<const OperandInfo> infos_of(const ops::Operation& op);

}  // namespace verglas::python
