#include "ops/definition.hpp"

namespace verglas::ops {
namespace {

using enum DataType;

/// C = A · Bᵀ and the largest magnitude in it, before it is rounded.
class GemmAmax final : public Definition {
 public:
  enum { kA, kB, kSfa, kSfb, kC, kAmax };

  std::string_view name() const noexcept override { return "gemm_amax"; }
  TileRules tile_rules(const Problem&) const noexcept override { return {.step_n = 128, .longest_cluster = 4}; }
  std::span<const TensorInfo> tensors() const noexcept override {
    static constexpr std::array<TensorInfo, 6> kTensors = {{{"a", false, false},
                                                            {"b", false, false},
                                                            {"sfa", false, true},
                                                            {"sfb", false, true},
                                                            {"c", true, false},
                                                            {"amax", true, false}}};
    return kTensors;
  }

  void infer(Problem& p) const override {
    p.require({kA, kB});
    if (p.has(kSfa) || p.has(kSfb)) p.require({kSfa, kSfb});
    p.require_accumulator({fp32});
    bool fp4 = false;
    if (p.has(kSfa))
      fp4 = p.read_scaled_product(kA, kB, kSfa, kSfb);
    else
      p.read_plain_product(kA, kB);
    if (!fp4 || !p.make_fp4(kC, p.n, p.options.c_dtype))
      p.make_matrix(kC, p.n, p.options.c_dtype, fp32, {fp32, fp16, bf16, fp8_e4m3, fp8_e5m2});
    p.make_scalar(kAmax, 3);
  }

  void describe(const Problem&, Description& d) const override {
    const Tensor c = d.product(d.matrix_a(kA, kSfa), d.matrix_b(kB, kSfb));
    d.store(c, kC, Cut::full);
    d.store_amax(c, kAmax);
  }
};

}  // namespace

const Definition& gemm_amax() noexcept {
  static const GemmAmax definition;
  return definition;
}

}  // namespace verglas::ops
