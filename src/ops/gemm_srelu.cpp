#include "ops/definition.hpp"

namespace verglas::ops {
namespace {

using enum DataType;

constexpr TileRules kTiles{.step_n = 64, .longest_cluster = 4, .pairs = true};
constexpr std::initializer_list<DataType> kFloats = {fp32, fp16, bf16};
constexpr std::initializer_list<DataType> kOutputs = {fp32, fp16, bf16, fp8_e4m3, fp8_e5m2};

/// Places of what both directions have.
struct Places {
  int a, b, d, sfa, sfb, prob, sfd, amax, norm_const;
};

/// What both directions ask of their inputs. Tells whether A and B are fp4.
bool read_inputs(Problem& p, const Places& at) {
  p.require({at.a, at.b});
  const bool scaled = p.has(at.sfa) || p.has(at.sfb);
  if (scaled) p.require({at.sfa, at.sfb});
  p.require_accumulator({fp32});
  bool fp4 = false;
  if (scaled)
    fp4 = p.read_scaled_product(at.a, at.b, at.sfa, at.sfb);
  else
    p.read_plain_product(at.a, at.b);
  if (p.has(at.prob)) p.read_column(at.prob);
  return fp4;
}

/// An fp8 D has scales of its own and a factor that its numbers were multiplied by before.
void read_outputs(Problem& p, const Places& at, bool fp4) {
  const DataType type = p.layout[static_cast<std::size_t>(at.d)].dtype;
  const bool narrow = type == fp8_e4m3 || type == fp8_e5m2;
  if (narrow && p.block != 0 && fp4)
    throw broken(Rule::op_dtype, p.who(at.d), std::string(name_of(type)) + " beside fp4 operands", "fp32, fp16, bf16");
  for (const int place : {at.sfd, at.norm_const})
    if (!narrow && p.has(place)) throw broken(Rule::op_missing, p.who(place), "a tensor", "none where d is not fp8");
  if (narrow && p.block == 0)
    throw broken(Rule::op_dtype, p.who(at.d), std::string(name_of(type)) + " beside operands without scales", "fp32, fp16, bf16");
  if (narrow) {
    if (p.n % p.block != 0)
      throw broken(Rule::op_extent, p.who(at.b), "N = " + std::to_string(p.n),
                   "a multiple of " + std::to_string(p.block) + ": so many columns of d have one scale");
    p.least.fill(p.block);
    p.require({at.norm_const});
    p.read_scalar(at.norm_const);
    p.make_scales(at.sfd, p.n, p.at(at.sfa).dtype);
  }
  if (p.has(at.amax) || (fp4 && !narrow)) p.make_scalar(at.amax, 1);
}

/// Stores D as it is, or in blocks with a scale each, and the largest magnitude where it is asked for.
void store_d(const Problem& p, Description& d, const Tensor& out, const Places& at) {
  if (p.layout[static_cast<std::size_t>(at.sfd)].dtype != not_set)
    d.store_quantised(d.graph.mul(out, d.scalar(at.norm_const)), at.d, at.sfd);
  else
    d.store(out, at.d, Cut::full);
  if (p.has(at.amax)) d.store_amax(out, at.amax);
}

/// C = alpha · A · Bᵀ; D = prob · max(C, 0)².
class GemmSrelu final : public Definition {
 public:
  enum { kA, kB, kC, kD, kSfa, kSfb, kProb, kSfd, kAmax, kNormConst };
  static constexpr Places kPlaces{kA, kB, kD, kSfa, kSfb, kProb, kSfd, kAmax, kNormConst};

  std::string_view name() const noexcept override { return "gemm_srelu"; }
  TileRules tile_rules(const Problem&) const noexcept override { return kTiles; }
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
    const bool fp4 = read_inputs(p, kPlaces);
    p.make_matrix(kC, p.n, p.options.c_dtype, bf16, kOutputs);
    p.make_matrix(kD, p.n, p.options.d_dtype, bf16, kOutputs, kC);
    read_outputs(p, kPlaces, fp4);
  }

  void describe(const Problem& p, Description& d) const override {
    Graph& g = d.graph;
    const Tensor c = g.mul(d.product(d.matrix_a(kA, kSfa), d.matrix_b(kB, kSfb)), d.alpha());
    const Tensor r = g.relu(c);
    Tensor out = g.mul(r, r);
    if (p.has(kProb)) out = g.mul(out, d.input(kProb, Cut::column));
    d.store(c, kC, Cut::full);
    store_d(p, d, out, kPlaces);
  }
};

/// X = alpha · A · Bᵀ, r = max(X, 0); D = 2 · r · (C · prob); dprob = Σ r² · C over the columns. C is the gradient of the output.
class GemmDsrelu final : public Definition {
 public:
  enum { kA, kB, kC, kD, kDprob, kSfa, kSfb, kProb, kSfd, kAmax, kNormConst };
  static constexpr Places kPlaces{kA, kB, kD, kSfa, kSfb, kProb, kSfd, kAmax, kNormConst};

  std::string_view name() const noexcept override { return "gemm_dsrelu"; }
  TileRules tile_rules(const Problem&) const noexcept override { return kTiles; }
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
    const bool fp4 = read_inputs(p, kPlaces);
    p.require_type(kC, kFloats);
    p.read_matrix(kC, {p.m, p.n, p.l});
    p.make_matrix(kD, p.n, p.options.d_dtype, bf16, kOutputs);
    p.make_column(kDprob);
    read_outputs(p, kPlaces, fp4);
  }

  void describe(const Problem& p, Description& d) const override {
    Graph& g = d.graph;
    const Tensor x = g.mul(d.product(d.matrix_a(kA, kSfa), d.matrix_b(kB, kSfb)), d.alpha());
    const Tensor c = d.input(kC, Cut::full);
    const Tensor r = g.relu(x);
    const Tensor weighted = p.has(kProb) ? g.mul(c, d.input(kProb, Cut::column)) : c;
    const Tensor out = g.mul(g.mul(g.scalar(2.0), r), weighted);
    store_d(p, d, out, kPlaces);
    d.store_row_sum(g.mul(g.mul(r, r), c), kDprob);
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
