#include "ops/definition.hpp"

namespace verglas::ops {
namespace {

using enum DataType;

/// AB12 = alpha · A · Bᵀ; C = up · swish(gate). Columns of AB12 alternate: 32 of up, 32 of gate.
class GemmSwiglu final : public Definition {
 public:
  enum { kA, kB, kAb12, kC, kSfa, kSfb, kAmax, kSfc, kNormConst };

  std::string_view name() const noexcept override { return "gemm_swiglu"; }
  TileRules tile_rules(const Problem& p) const noexcept override {
    const bool scaled = p.has(kSfa) || p.has(kSfb);
    return {.step_n = scaled ? 64 : 32, .pairs = true, .one_block_at_128 = !scaled};
  }
  std::span<const TensorInfo> tensors() const noexcept override {
    static constexpr std::array<TensorInfo, 9> kTensors = {{{"a", false, false},
                                                            {"b", false, false},
                                                            {"ab12", true, false},
                                                            {"c", true, false},
                                                            {"sfa", false, true},
                                                            {"sfb", false, true},
                                                            {"amax", true, true},
                                                            {"sfc", true, true},
                                                            {"norm_const", false, true}}};
    return kTensors;
  }

  void infer(Problem& p) const override {
    p.require({kA, kB});
    const bool scaled = p.has(kSfa) || p.has(kSfb) || p.has(kAmax) || p.has(kSfc) || p.has(kNormConst);
    if (scaled) p.require({kSfa, kSfb});
    if (scaled || p.at(kA).dtype == fp32 || p.at(kA).dtype == bf16)
      p.require_accumulator({fp32});
    else
      p.require_accumulator({fp32, fp16});
    bool fp4 = false;
    if (scaled)
      fp4 = p.read_scaled_product(kA, kB, kSfa, kSfb);
    else
      p.read_plain_product(kA, kB);
    if (p.n % (2 * kRun) != 0)
      throw broken(Rule::op_extent, p.who(kB), "N = " + std::to_string(p.n),
                   "a multiple of 64: runs of 32 rows of up and of gate");
    p.least[kB] = p.least[kAb12] = 2 * kRun;
    p.least[kC] = kRun;
    p.make_matrix(kAb12, p.n, p.options.ab12_dtype, fp32, {fp32, fp16, bf16, fp8_e4m3, fp8_e5m2});
    p.make_matrix(kC, p.n / 2, p.options.c_dtype, fp16, {fp32, fp16, bf16, fp8_e4m3, fp8_e5m2}, kAb12);
    read_c(p, scaled);
    if (scaled && (p.has(kAmax) || (fp4 && p.layout[kC].dtype == bf16))) p.make_scalar(kAmax, 3);
  }

  void describe(const Problem& p, Description& d) const override {
    Graph& g = d.graph;
    const Tensor x = g.mul(d.product(d.matrix_a(kA, kSfa), d.matrix_b(kB, kSfb)), d.alpha());
    const Tensor up = g.take_runs(x, kRun, false), gate = g.take_runs(x, kRun, true);
    const Tensor c = g.mul(up, g.swish(gate));
    d.store(x, kAb12, Cut::full);
    if (p.layout[kSfc].dtype != not_set)
      d.store_quantised(g.mul(c, d.scalar(kNormConst)), kC, kSfc);
    else
      d.store(c, kC, Cut::full);
    if (p.has(kAmax)) d.store_amax(c, kAmax);
  }

 private:
  static constexpr std::int64_t kRun = 32;  ///< columns of up, then columns of gate

  /// An fp8 C has scales of its own, and a factor that its numbers were multiplied by before.
  static void read_c(Problem& p, bool scaled) {
    const DataType type = p.layout[kC].dtype;
    const bool narrow = type == fp8_e4m3 || type == fp8_e5m2;
    for (const int place : {kSfc, kNormConst})
      if (!narrow && p.has(place)) throw broken(Rule::op_missing, p.who(place), "a tensor", "none where c is not fp8");
    if (!narrow) return;
    if (!scaled)
      throw broken(Rule::op_dtype, p.who(kC), std::string(name_of(type)) + " beside operands without scales", "fp32, fp16, bf16");
    p.require({kNormConst});
    p.read_scalar(kNormConst);
    p.make_scales(kSfc, p.n / 2, p.at(kSfa).dtype);
  }
};

}  // namespace

const Definition& gemm_swiglu() noexcept {
  static const GemmSwiglu definition;
  return definition;
}

}  // namespace verglas::ops
