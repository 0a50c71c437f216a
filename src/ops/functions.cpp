#include <new>

#include "ops/definition.hpp"
#include "verglas/ops/gemm.hpp"

namespace verglas::ops {
namespace {

constexpr std::align_val_t kAlignment{64};

/// Allocates the outputs that `tensors` lacks and are no option, and runs.
std::vector<Array> run(std::string_view name, std::vector<TensorView> tensors, const Options& options, float alpha) {
  const Operation op = Operation::named(name);
  const std::vector<TensorView> outputs = op.outputs(tensors, options);
  if (tensors[0].device.type != DeviceType::cpu)
    throw broken(Rule::op_device, std::string(name), "memory on a CUDA device", "memory on the host, or outputs from the caller");
  std::vector<Array> made;
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    if (outputs[i].dtype == DataType::not_set) continue;
    made.emplace_back(outputs[i]);
    tensors[i] = made.back().view();
  }
  op.run(tensors, options, alpha);
  return made;
}

}  // namespace

void Array::Free::operator()(std::byte* p) const noexcept { operator delete(p, kAlignment); }

Array::Array(const TensorView& like) : view_(like) {
  std::int64_t bytes = bytes_of(like.dtype);
  for (int i = 0; i < like.rank; ++i) bytes *= like.extent[static_cast<std::size_t>(i)];
  memory_.reset(static_cast<std::byte*>(operator new(static_cast<std::size_t>(bytes), kAlignment)));
  view_.data = memory_.get();
  view_.device = {};
  view_.observed_bytes = bytes;
}

GemmAmaxResult gemm_amax_forward(const TensorView& a, const TensorView& b, const Options& options) {
  auto out = run("gemm_amax", {a, b, {}, {}, {}, {}}, options, 1.0F);
  return {std::move(out[0]), std::move(out[1])};
}

GemmSwigluResult gemm_swiglu_forward(const TensorView& a, const TensorView& b, float alpha, const Options& options) {
  auto out = run("gemm_swiglu", {a, b, {}, {}, {}, {}, {}, {}, {}}, options, alpha);
  return {std::move(out[0]), std::move(out[1])};
}

GemmSreluResult gemm_srelu_forward(const TensorView& a, const TensorView& b, const TensorView& prob, float alpha,
                                   const Options& options) {
  auto out = run("gemm_srelu", {a, b, {}, {}, {}, {}, prob, {}, {}, {}}, options, alpha);
  return {std::move(out[0]), std::move(out[1])};
}

GemmSreluGradients gemm_srelu_backward(const TensorView& a, const TensorView& b, const TensorView& c, const TensorView& prob,
                                       float alpha, const Options& options) {
  auto out = run("gemm_dsrelu", {a, b, c, {}, {}, {}, {}, prob, {}, {}, {}}, options, alpha);
  return {std::move(out[0]), std::move(out[1])};
}

}  // namespace verglas::ops
