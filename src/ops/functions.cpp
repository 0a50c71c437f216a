#include <new>

#include "ops/definition.hpp"
#include "verglas/ops/gemm.hpp"

namespace verglas::ops {
namespace {

constexpr std::align_val_t kAlignment{64};

/// Allocates the outputs that `tensors` lacks and are no option, and runs. Outputs by place.
std::vector<Array> run(std::string_view name, std::vector<TensorView> tensors, const Options& options, float alpha = 1.0F) {
  const Operation op = Operation::named(name);
  const std::vector<TensorView> outputs = op.outputs(tensors, options);
  if (tensors[0].device.type != DeviceType::cpu)
    throw broken(Rule::op_device, std::string(name), "memory on a CUDA device", "memory on the host, or outputs from the caller");
  std::vector<Array> made(outputs.size());
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    if (outputs[i].dtype == DataType::not_set) continue;
    made[i] = Array(outputs[i]);
    tensors[i] = made[i].view();
  }
  op.run(tensors, options, alpha);
  return made;
}

}  // namespace

void Array::Free::operator()(std::byte* p) const noexcept { operator delete(p, kAlignment); }

Array::Array(const TensorView& like) : view_(like) {
  std::int64_t bits = bits_of(like.dtype);
  for (int i = 0; i < like.rank; ++i)
    if (__builtin_mul_overflow(bits, like.extent[static_cast<std::size_t>(i)], &bits)) throw std::bad_alloc();
  const std::int64_t bytes = bits / 8 + (bits % 8 != 0 ? 1 : 0);
  memory_.reset(static_cast<std::byte*>(operator new(static_cast<std::size_t>(bytes), kAlignment)));
  view_.data = memory_.get();
  view_.device = {};
  view_.observed_bytes = bytes;
}

GemmAmaxResult gemm_amax_forward(const TensorView& a, const TensorView& b, const Options& options, const BlockScales& scales) {
  auto out = run("gemm_amax", {a, b, scales.a, scales.b, {}, {}}, options);
  return {.c = std::move(out[4]), .amax = std::move(out[5])};
}

GemmSwigluResult gemm_swiglu_forward(const TensorView& a, const TensorView& b, float alpha, const Options& options,
                                     const BlockScales& scales) {
  auto out = run("gemm_swiglu", {a, b, {}, {}, scales.a, scales.b, {}, {}, scales.norm_const}, options, alpha);
  return {.ab12 = std::move(out[2]), .c = std::move(out[3]), .sfc = std::move(out[7]), .amax = std::move(out[6])};
}

GemmSreluResult gemm_srelu_forward(const TensorView& a, const TensorView& b, const TensorView& prob, float alpha,
                                   const Options& options, const BlockScales& scales) {
  auto out = run("gemm_srelu", {a, b, {}, {}, scales.a, scales.b, prob, {}, {}, scales.norm_const}, options, alpha);
  return {.c = std::move(out[2]), .d = std::move(out[3]), .amax = std::move(out[8]), .sfd = std::move(out[7])};
}

GemmSreluGradients gemm_srelu_backward(const TensorView& a, const TensorView& b, const TensorView& c, const TensorView& prob,
                                       float alpha, const Options& options, const BlockScales& scales) {
  auto out = run("gemm_dsrelu", {a, b, c, {}, {}, scales.a, scales.b, prob, {}, {}, scales.norm_const}, options, alpha);
  return {.d = std::move(out[3]), .dprob = std::move(out[4]), .amax = std::move(out[9]), .sfd = std::move(out[8])};
}

GemmProjRopeMxfp8Result gemm_proj_rope_mxfp8_forward(const TensorView& x, const TensorView& w, const TensorView& cos,
                                                     const TensorView& sin, const TensorView& x_scale, const TensorView& w_scale,
                                                     const Options& options) {
  auto out = run("gemm_proj_rope_mxfp8", {x, w, cos, sin, x_scale, w_scale, {}, {}, {}, {}}, options);
  return {.out_fp8_row = std::move(out[6]),
          .out_scales_row = std::move(out[7]),
          .out_fp8_col = std::move(out[8]),
          .out_scales_col = std::move(out[9])};
}

}  // namespace verglas::ops
