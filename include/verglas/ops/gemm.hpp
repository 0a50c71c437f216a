#pragma once
#include <cstddef>
#include <memory>

#include "verglas/ops/operation.hpp"

/// The operations as functions that allocate what they answer. docs/ops/ has formulas, types and
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
/// An output that was not asked for is an `Array` without a type. `TensorView{}` is an input that is not given.

/// Of operands with a scale for each block of `Options::sf_vec_size` elements along K.
struct BlockScales {
  TensorView a, b;        ///< both or none
  TensorView norm_const;  ///< one fp32, with a quantised output
};

struct GemmAmaxResult {
  Array c, amax;
};
GemmAmaxResult gemm_amax_forward(const TensorView& a, const TensorView& b, const Options& options = {},
                                 const BlockScales& scales = {});

struct GemmSwigluResult {
  Array ab12, c, sfc, amax;
};
GemmSwigluResult gemm_swiglu_forward(const TensorView& a, const TensorView& b, float alpha = 1.0F, const Options& options = {},
                                     const BlockScales& scales = {});

struct GemmSreluResult {
  Array c, d, amax, sfd;
};
/// `prob` (M, 1, L) in fp32; ones where it is not given.
GemmSreluResult gemm_srelu_forward(const TensorView& a, const TensorView& b, const TensorView& prob = {}, float alpha = 1.0F,
                                   const Options& options = {}, const BlockScales& scales = {});

struct GemmSreluGradients {
  Array d, dprob, amax, sfd;
};
/// `c` is the gradient of the forward D.
GemmSreluGradients gemm_srelu_backward(const TensorView& a, const TensorView& b, const TensorView& c, const TensorView& prob = {},
                                       float alpha = 1.0F, const Options& options = {}, const BlockScales& scales = {});

struct GemmProjRopeMxfp8Result {
  Array out_fp8_row, out_scales_row, out_fp8_col, out_scales_col;
};
/// Of x and w in bf16, or in e4m3 with scales in plain order.
GemmProjRopeMxfp8Result gemm_proj_rope_mxfp8_forward(const TensorView& x, const TensorView& w, const TensorView& cos,
                                                     const TensorView& sin, const TensorView& x_scale = {},
                                                     const TensorView& w_scale = {}, const Options& options = {});

}  // namespace verglas::ops
