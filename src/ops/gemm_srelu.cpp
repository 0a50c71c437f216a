#include "ops/definition.hpp"

namespace verglas::ops {
namespace {

using enum DataType;

constexpr std::initializer_list<DataType> kFloats = {fp32, fp16, bf16};
constexpr std::initializer_list<DataType> kOutputs = {fp32, fp16, bf16, fp8_e4m3, fp8_e5m2};

/// What both directions ask of their inputs.
void read_inputs(Problem& p, int a, int b, int sfa, int sfb, int prob, int sfd, int norm_const) {
  p.require({a, b});
  if (p.has(sfa) || p.has(sfb)) p.require({sfa, sfb});
  p.require_type(a, {fp32, fp16, bf16, fp8_e4m3, fp8_e5m2});
  p.require_same_type(b, a);
  if (p.has(sfa)) throw broken(Rule::op_not_yet, p.who(sfa) + " is a block scale");
  for (const int scale : {sfd, norm_const})
    if (p.has(scale)) throw broken(Rule::op_not_yet, p.who(scale) + " asks for a quantised output");
  p.require_accumulator({fp32});
  p.read_product(a, b);
  if (p.has(prob)) p.read_column(prob);
}

/// An fp8 D without scales would be neither cuDNN's quantised output nor a plain one.
void refuse_narrow(const Problem& p, int d) {
  const DataType type = p.layout[static_cast<std::size_t>(d)].dtype;
  if (type == fp8_e4m3 || type == fp8_e5m2)
    throw broken(Rule::op_not_yet, p.who(d) + " in " + std::string(name_of(type)) + " asks for a quantised output");
}

/// C = alpha · A · Bᵀ; D = prob · max(C, 0)².
class GemmSrelu final : public Definition {
 public:
  enum { kA, kB, kC, kD, kSfa, kSfb, kProb, kSfd, kAmax, kNormConst };

  std::string_view name() const noexcept override { return "gemm_srelu"; }
  std::span<const TensorInfo> tensors() const noexcept override {
    static constexpr std::array<TensorInfo, 10> kTensors = {{{"a", false, false},
                                                             {"b", false, false},
                                                             {"c", true, false},
                                                             {"d", true, false},
                                                             {"sfa", false, true},
                                                             {"sfb", false, true},
                                                             {"prob", false, true},
                                                             {"sfd", true, true},
                                                             {"amax", true, true},
                                                             {"norm_const", false, true}}};
    return kTensors;
  }

  void infer(Problem& p) const override {
    read_inputs(p, kA, kB, kSfa, kSfb, kProb, kSfd, kNormConst);
    p.make_matrix(kC, p.n, p.options.c_dtype, bf16, kOutputs);
    p.make_matrix(kD, p.n, p.options.d_dtype, bf16, kOutputs, kC);
    refuse_narrow(p, kD);
    if (p.has(kAmax)) p.make_scalar(kAmax, 1);
  }

  void describe(const Problem& p, Description& d) const override {
    Graph& g = d.graph;
    const Tensor c = g.mul(d.product(d.input(kA, Cut::a), d.input(kB, Cut::b)), d.alpha());
    const Tensor r = g.relu(c);
    Tensor out = g.mul(r, r);
    if (p.has(kProb)) out = g.mul(out, d.input(kProb, Cut::column));
    d.store(c, kC, Cut::full);
    d.store(out, kD, Cut::full);
    if (p.has(kAmax)) d.store_amax(out, kAmax);
  }
};

/// X = alpha · A · Bᵀ, r = max(X, 0); D = 2 · r · (C · prob); dprob = Σ r² · C over the columns. C is the gradient of the output.
class GemmDsrelu final : public Definition {
 public:
  enum { kA, kB, kC, kD, kDprob, kSfa, kSfb, kProb, kSfd, kAmax, kNormConst };

  std::string_view name() const noexcept override { return "gemm_dsrelu"; }
  std::span<const TensorInfo> tensors() const noexcept override {
    static constexpr std::array<TensorInfo, 11> kTensors = {{{"a", false, false},
                                                             {"b", false, false},
                                                             {"c", false, false},
                                                             {"d", true, false},
                                                             {"dprob", true, false},
                                                             {"sfa", false, true},
                                                             {"sfb", false, true},
                                                             {"prob", false, true},
                                                             {"sfd", true, true},
                                                             {"amax", true, true},
                                                             {"norm_const", false, true}}};
    return kTensors;
  }

  void infer(Problem& p) const override {
    p.require({kC});
    read_inputs(p, kA, kB, kSfa, kSfb, kProb, kSfd, kNormConst);
    p.require_type(kC, kFloats);
    p.read_matrix(kC, {p.m, p.n, p.l});
    p.make_matrix(kD, p.n, p.options.d_dtype, bf16, kOutputs);
    refuse_narrow(p, kD);
    p.make_column(kDprob);
    if (p.has(kAmax)) p.make_scalar(kAmax, 1);
  }

  void describe(const Problem& p, Description& d) const override {
    Graph& g = d.graph;
    const Tensor x = g.mul(d.product(d.input(kA, Cut::a), d.input(kB, Cut::b)), d.alpha());
    const Tensor c = d.input(kC, Cut::full);
    const Tensor r = g.relu(x);
    const Tensor weighted = p.has(kProb) ? g.mul(c, d.input(kProb, Cut::column)) : c;
    const Tensor out = g.mul(g.mul(g.scalar(2.0), r), weighted);
    d.store(out, kD, Cut::full);
    d.store_row_sum(g.mul(g.mul(r, r), c), kDprob);
    if (p.has(kAmax)) d.store_amax(out, kAmax);
  }
};

}  // namespace

const Definition& gemm_srelu() noexcept {
  static const GemmSrelu definition;
  return definition;
}

const Definition& gemm_dsrelu() noexcept {
  static const GemmDsrelu definition;
  return definition;
}

}  // namespace verglas::ops
