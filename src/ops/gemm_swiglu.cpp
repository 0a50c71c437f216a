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
    for (const int place : {kSfc, kNormConst})
      if (p.has(place)) throw broken(Rule::op_not_yet, p.who(place) + " asks for a quantised output");
    if (scaled || p.at(kA).dtype == fp32 || p.at(kA).dtype == bf16)
      p.require_accumulator({fp32});
    else
      p.require_accumulator({fp32, fp16});
    bool fp4 = false;
    if (scaled)
      fp4 = p.read_scaled_product(kA, kB, kSfa, kSfb);
    else
      p.read_plain_product(kA, kB);
    if (p.n % 64 != 0)
      throw broken(Rule::op_extent, p.who(kB), "N = " + std::to_string(p.n),
                   "a multiple of 64: runs of 32 rows of up and of gate");
    p.make_matrix(kAb12, p.n, p.options.ab12_dtype, fp32, {fp32, fp16, bf16, fp8_e4m3, fp8_e5m2});
    p.make_matrix(kC, p.n / 2, p.options.c_dtype, fp16, {fp32, fp16, bf16}, kAb12);
    if (!scaled) return;
    p.split_scales(kSfa, p.m);
    p.split_scales(kSfb, p.n);
    if (!p.has(kAmax) && !(fp4 && p.layout[kC].dtype == bf16)) return;
    if (p.at(kA).device.type != DeviceType::cpu) throw broken(Rule::op_not_yet, p.who(kAmax) + " is the largest of two launches");
    p.make_scalar(kAmax, 3);
  }

  /// Atoms of scales have 128 rows, and a graph takes the same runs of each: so one has the first pairs and one the second.
  int parts(const Problem& p) const noexcept override { return p.block == 0 ? 1 : 2; }
  int largest() const noexcept override { return kAmax; }

  void describe(const Problem& p, Description& d) const override {
    d.by_batch = true;
    Graph& g = d.graph;
    if (p.block != 0) {
      const Tensor a = d.batch_of_a(kA, kSfa);
      const Tensor up = d.product(a, d.quarter_of_b(kB, kSfb, 2 * d.part));
      const Tensor gate = d.product(a, d.quarter_of_b(kB, kSfb, 2 * d.part + 1));
      const Tensor alpha = d.alpha();
      const Tensor u = g.mul(up, alpha), v = g.mul(gate, alpha), c = g.mul(u, g.swish(v));
      d.store(u, kAb12, Cut::quarters, 2 * d.part);
      d.store(v, kAb12, Cut::quarters, 2 * d.part + 1);
      d.store(c, kC, Cut::halves, d.part);
      if (p.layout[kAmax].dtype != not_set) d.store_amax(c, kAmax);
      return;
    }
    // Two products that share A, of every second run of 32 rows of B. Runs are the batch: a stride cannot skip from run to run.
    const Tensor a = d.input(kA, Cut::a_batch);
    const Tensor up = d.product(a, d.input(kB, Cut::b_runs, 0));
    const Tensor gate = d.product(a, d.input(kB, Cut::b_runs, 1));
    const Tensor alpha = d.alpha();
    const Tensor u = g.mul(up, alpha);
    const Tensor v = g.mul(gate, alpha);
    d.store(u, kAb12, Cut::pair_runs, 0);
    d.store(v, kAb12, Cut::pair_runs, 1);
    d.store(g.mul(u, g.swish(v)), kC, Cut::runs);
  }
};

}  // namespace

const Definition& gemm_swiglu() noexcept {
  static const GemmSwiglu definition;
  return definition;
}

}  // namespace verglas::ops
