#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

#include "chain/analyse.hpp"
#include "engine/sm90/engine.hpp"
#include "ops/definition.hpp"

// Every combination of types of the pages in docs/ops: served by the CPU engine and on a Hopper GPU, there by tiles that two
// consumers share, since those of one take up to 1.9 times as long, or refused by a named rule.
// What a page says is written down here once more; values are the business of tests/python and tests/gpu.
namespace verglas::ops {
namespace {

using enum DataType;

constexpr std::int64_t kM = 4096, kN = 4096, kK = 4096, kL = 2;

/// The rule that refuses it, "" where none does.
struct Answer {
  std::string cpu, sm90;
  std::int64_t consumers = 0;  ///< of the plan that is ranked first
};

TensorView matrix(DataType type, std::int64_t rows, std::int64_t columns) {
  return TensorView::strided(nullptr, type, {rows, columns, kL}, {columns, 1, rows * columns});
}
/// fp4 comes as bytes of two.
TensorView operand(DataType type, std::int64_t rows) {
  return type == fp4_e2m1 ? matrix(uint8, rows, kK / 2) : matrix(type, rows, kK);
}
TensorView atoms(DataType type, std::int64_t rows, std::int64_t columns, std::int64_t block) {
  const std::int64_t r = (rows + 127) / 128, c = (columns / block + 3) / 4;
  return TensorView::strided(nullptr, type, {32, 4, r, 4, c, kL}, {16, 4, 512 * c, 1, 512, 512 * c * r});
}
TensorView one() { return TensorView::dense(nullptr, fp32, {1}); }

Answer asked(const char* name, const std::map<std::string, TensorView>& tensors, const Options& options) {
  const Operation operation = Operation::named(name);
  std::vector<TensorView> places;
  for (const TensorInfo& info : operation.tensors()) {
    const auto it = tensors.find(std::string(info.name));
    places.push_back(it == tensors.end() ? TensorView{} : it->second);
  }
  const std::map<std::string_view, const Definition*> definitions = {{"gemm_amax", &gemm_amax()},
                                                                     {"gemm_swiglu", &gemm_swiglu()},
                                                                     {"gemm_srelu", &gemm_srelu()},
                                                                     {"gemm_dsrelu", &gemm_dsrelu()},
                                                                     {"gemm_proj_rope_mxfp8", &gemm_proj_rope_mxfp8()}};
  try {
    const std::vector<TensorView> outputs = operation.outputs(places, options);
    for (std::size_t i = 0; i < places.size(); ++i)
      if (!is_given(places[i])) places[i] = outputs[i];
    const Problem p = problem_of(*definitions.at(name), places, options);
    Description d(p);
    p.definition.describe(p, d);
    Answer answer;
    const PlanList plans = d.graph.plans();
    if (plans.size() == 0) answer.cpu = plans.declines().front().rule;
    const auto chain = chain::analyse(d.graph.data());
    if (!chain)
      answer.sm90 = answer.cpu;
    else if (const auto claim = sm90::claim_chain(*chain); !claim)
      answer.sm90 = std::string(info_of(claim.error().rule).id);
    else if (const auto ranked = sm90::configurations_of(*chain, 132); ranked.empty())
      answer.sm90 = "no kernel";
    else
      answer.consumers = ranked.front().at("CONSUMERS");
    return answer;
  } catch (const Error& e) {
    return {e.rule(), e.rule()};
  }
}

const std::vector<DataType> kPlain = {fp32, fp16, bf16, fp8_e4m3, fp8_e5m2};
const std::vector<DataType> kScaled = {fp4_e2m1, fp8_e4m3, fp8_e5m2};
const std::vector<DataType> kFloats = {fp32, fp16, bf16};

bool is_narrow(DataType t) { return t == fp8_e4m3 || t == fp8_e5m2; }
bool is_float(DataType t) { return t == fp32 || t == fp16 || t == bf16; }

/// Operands with or without scales.
struct Operands {
  DataType type = bf16, scale = not_set;
  int block = 0;

  std::string name() const {
    return std::string(name_of(type)) + (block == 0 ? "" : " by " + std::string(name_of(scale)) + " of " + std::to_string(block));
  }
  /// docs/ops/README.md, *Block scales*.
  std::string refused() const {
    if (block == 0) return "";
    const bool is_e4m3 = scale == fp8_e4m3;
    return type == fp4_e2m1 ? (is_e4m3 && block == 32 ? "op.option" : "") : (is_e4m3 || block == 16 ? "op.option" : "");
  }
  void put(std::map<std::string, TensorView>& t, Options& o) const {
    t["a"] = operand(type, kM);
    t["b"] = operand(type, kN);
    if (block == 0) return;
    t["sfa"] = atoms(scale, kM, kK, block);
    t["sfb"] = atoms(scale, kN, kK, block);
    o.sf_vec_size = block;
  }
};

std::vector<Operands> all_operands() {
  std::vector<Operands> all;
  for (const DataType t : kPlain) all.push_back({t});
  for (const DataType t : kScaled)
    for (const DataType s : {fp8_e8m0, fp8_e4m3, int8, uint8})
      for (const int block : {16, 32}) all.push_back({t, s, block});
  return all;
}

int refusals = 0, served = 0;
void expect(const std::string& what, const Answer& is, const std::string& cpu, const std::string& sm90, int consumers = 2) {
  EXPECT_EQ(is.cpu, cpu) << what;
  EXPECT_EQ(is.sm90, sm90) << what;
  EXPECT_EQ(is.consumers, sm90.empty() ? consumers : 0) << what;
  ++(cpu.empty() && sm90.empty() ? served : refusals);
}

TEST(OperationTables, OfAmax) {
  for (const Operands& x : all_operands())
    for (const DataType c : {fp32, fp16, bf16, fp8_e4m3, fp8_e5m2, fp4_e2m1, uint8, int8})
      for (const Major major : {Major::n, Major::m}) {
        std::map<std::string, TensorView> t;
        Options o{.c_dtype = c, .major = major};
        x.put(t, o);
        const bool in_pairs = c == fp4_e2m1 || c == uint8;
        const std::string rule = !x.refused().empty() ? x.refused()
                                 : c == int8          ? "op.dtype"
                                 : !in_pairs          ? ""
                                 : x.type != fp4_e2m1 ? "op.dtype"
                                 : major == Major::m  ? "op.layout"
                                                      : "";
        expect("gemm_amax of " + x.name() + ", c " + std::string(name_of(c)), asked("gemm_amax", t, o), rule, rule);
      }
}

TEST(OperationTables, OfSwiglu) {
  for (const Operands& x : all_operands())
    for (const DataType ab : {fp32, fp16, bf16, fp8_e4m3, fp8_e5m2})
      for (const DataType c : {fp32, fp16, bf16, fp8_e4m3, fp8_e5m2})
        for (const DataType sums : {fp32, fp16})
          for (const bool norm : {false, true}) {
            if (norm && !is_narrow(c)) continue;
            std::map<std::string, TensorView> t;
            Options o{.ab12_dtype = ab, .c_dtype = c, .acc_dtype = sums};
            x.put(t, o);
            if (norm) t["norm_const"] = one();
            const bool is_wide = x.block != 0 || norm || x.type == fp32 || x.type == bf16;
            const std::string rule = norm && x.block == 0           ? "op.missing"
                                     : sums == fp16 && is_wide      ? "op.option"
                                     : !x.refused().empty()         ? x.refused()
                                     : is_narrow(c) && x.block == 0 ? "op.dtype"
                                     : is_narrow(c) && !norm        ? "op.missing"
                                                                    : "";
            expect("gemm_swiglu of " + x.name() + ", ab12 " + std::string(name_of(ab)) + ", c " + std::string(name_of(c)) +
                       (norm ? " with norm_const" : ""),
                   asked("gemm_swiglu", t, o), rule, rule);
          }
}

TEST(OperationTables, OfSquaredReluAndItsGradient) {
  for (const bool backward : {false, true})
    for (const Operands& x : all_operands())
      for (const DataType c : kPlain)
        for (const DataType d : kPlain)
          for (const bool norm : {false, true}) {
            if (norm && !is_narrow(d)) continue;
            std::map<std::string, TensorView> t;
            Options o{.c_dtype = c, .d_dtype = d};
            x.put(t, o);
            if (norm) t["norm_const"] = one();
            if (backward) t["c"] = matrix(c, kM, kN);
            t["prob"] = matrix(fp32, kM, 1);
            const std::string rule = !x.refused().empty()                                   ? x.refused()
                                     : backward && !is_float(c)                             ? "op.dtype"
                                     : is_narrow(d) && (x.block == 0 || x.type == fp4_e2m1) ? "op.dtype"
                                     : is_narrow(d) && !norm                                ? "op.missing"
                                                                                            : "";
            const std::string name = backward ? "gemm_dsrelu" : "gemm_srelu";
            // Decoding, two reductions, and an operand of D's extents that is not of its size is too much code.
            const bool is_long = backward && x.type == fp4_e2m1 && (c == fp32) != (d == fp32);
            expect(name + " of " + x.name() + ", c " + std::string(name_of(c)) + ", d " + std::string(name_of(d)) +
                       (norm ? " with norm_const" : ""),
                   asked(name.c_str(), t, o), rule, rule, is_long ? 1 : 2);
          }
}

TEST(OperationTables, OfTheProjection) {
  for (const DataType type : {bf16, fp8_e4m3, fp8_e5m2, fp16})
    for (const DataType scale : {not_set, uint8, fp8_e8m0, fp8_e4m3})
      for (const bool w_out_in : {true, false})
        for (const auto& [head, rotated] :
             {std::pair<std::int64_t, std::int64_t>{192, 64}, {128, 64}, {64, 64}, {96, 32}, {256, 128}, {192, 48}, {80, 32}}) {
          const std::int64_t n = kN / head * head;
          std::map<std::string, TensorView> t;
          Options o{.w_out_in = w_out_in, .head_dim = static_cast<int>(head)};
          const auto dense = [&](DataType of, std::int64_t rows, std::int64_t columns) {
            return TensorView::dense(nullptr, of, {rows, columns});
          };
          t["x"] = dense(type, kM, kK);
          t["w"] = w_out_in ? dense(type, n, kK) : dense(type, kK, n);
          t["cos"] = t["sin"] = dense(bf16, kM, rotated);
          if (scale != not_set) {
            t["x_scale"] = dense(scale, kM, kK / 32);
            t["w_scale"] = w_out_in ? dense(scale, n, kK / 32) : dense(scale, kK / 32, n);
          }
          const std::string rule = type != bf16 && type != fp8_e4m3           ? "op.dtype"
                                   : (type == fp8_e4m3) != (scale != not_set) ? "op.missing"
                                   : scale == fp8_e4m3                        ? "op.dtype"
                                   : head % 32 != 0                           ? "op.option"
                                   : rotated % 32 != 0                        ? "op.extent"
                                                                              : "";
          const std::string sm90 = rule.empty() && (head % 64 != 0 || rotated != 64) ? "sm90.rope" : rule;
          expect("gemm_proj_rope_mxfp8 of " + std::string(name_of(type)) + " by " + std::string(name_of(scale)) + ", heads of " +
                     std::to_string(head) + " with " + std::to_string(rotated),
                 asked("gemm_proj_rope_mxfp8", t, o), rule, sm90);
        }
  std::printf("%d combinations served by both engines, %d refused by a rule\n", served, refusals);
}

}  // namespace
}  // namespace verglas::ops
