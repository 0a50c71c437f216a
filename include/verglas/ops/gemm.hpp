#pragma once
#include <cstddef>
#include <memory>

#include "verglas/ops/operation.hpp"

/// Products with an activation or a maximum, as functions that allocate what they answer. docs/ops/ has formulas, types and
/// errors.
namespace verglas::ops {

/// Host memory with its view; moved, not copied.
class Array {
 public:
  Array() = default;
  /// Uninitialised memory for a tensor like this; 64-byte aligned.
  explicit Array(const TensorView& like);
  const TensorView& view() const noexcept { return view_; }
  template <class T>
  T* data() const noexcept {
    return static_cast<T*>(view_.data);
  }

 private:
  struct Free {
    void operator()(std::byte* p) const noexcept;
  };
  std::unique_ptr<std::byte, Free> memory_;
  TensorView view_;
};

/// Functions answer new host memory; inputs on a GPU need their outputs from the caller, through `Operation::run` or a class.

struct GemmAmaxResult {
  Array c, amax;
};
GemmAmaxResult gemm_amax_forward(const TensorView& a, const TensorView& b, const Options& options = {});

struct GemmSwigluResult {
  Array ab12, c;
};
GemmSwigluResult gemm_swiglu_forward(const TensorView& a, const TensorView& b, float alpha = 1.0F, const Options& options = {});

struct GemmSreluResult {
  Array c, d;
};
/// `prob` (M, 1, L) in fp32; `TensorView{}` counts as ones.
GemmSreluResult gemm_srelu_forward(const TensorView& a, const TensorView& b, const TensorView& prob = {}, float alpha = 1.0F,
                                   const Options& options = {});

struct GemmSreluGradients {
  Array d, dprob;
};
/// `c` is the gradient of the forward D.
GemmSreluGradients gemm_srelu_backward(const TensorView& a, const TensorView& b, const TensorView& c, const TensorView& prob = {},
                                       float alpha = 1.0F, const Options& options = {});

}  // namespace verglas::ops
