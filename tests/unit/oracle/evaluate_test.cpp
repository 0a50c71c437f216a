#include "oracle/evaluate.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "oracle/compare.hpp"
#include "oracle/memory.hpp"
#include "oracle/sum.hpp"

namespace {

using namespace oracle;
using Dims = std::vector<std::int64_t>;

constexpr double kInf = std::numeric_limits<double>::infinity();

/// Owns the bytes of tensors while a graph looks at them.
struct Store {
  std::vector<std::vector<std::byte>> blocks;
  Memory dense(Format format, const Dims& dims, const std::vector<double>& values) {
    blocks.emplace_back(static_cast<std::size_t>(count_of(dims)) * 8 + 8);
    for (std::size_t i = 0; i < values.size(); ++i) put_at(format, blocks.back().data(), static_cast<std::int64_t>(i), values[i]);
    return {blocks.back().data(), dims, packed_strides(dims), false, false};
  }
};

Tensor input(Store& store, const char* name, Format format, const Dims& dims, const std::vector<double>& values) {
  Tensor t;
  t.name = name;
  t.dims = dims;
  t.format = format;
  t.memory = store.dense(format, dims, values);
  return t;
}

Tensor scalar(double value) {
  Tensor t;
  t.dims = {1, 1, 1};
  t.value = value;
  return t;
}

Tensor middle(Format format, const Dims& dims, bool is_output = false) {
  Tensor t;
  t.dims = dims;
  t.format = format;
  t.is_virtual = !is_output;
  t.is_output = is_output;
  return t;
}

std::vector<double> exact_values(const Result& r) {
  std::vector<double> values;
  for (const Bound& b : r.elements) {
    EXPECT_TRUE(b.lo == b.hi || !b.number) << b.lo << " " << b.hi;
    values.push_back(b.number ? b.lo : std::nan(""));
  }
  return values;
}

TEST(OracleMatmul, SumsSmallIntegersExactly) {
  Store s;
  Graph g;
  const int a = g.add(input(s, "a", Format::bf16, {1, 2, 3}, {1, 2, 3, 4, 5, 6}));
  const int b = g.add(input(s, "b", Format::bf16, {1, 3, 2}, {1, -1, 2, 0, 0, 3}));
  const int c = g.product(a, b, middle(Format::fp32, {1, 2, 2}));
  const Result r = evaluate(g)[static_cast<std::size_t>(c)];
  EXPECT_EQ(r.dims, (Dims{1, 2, 2}));
  EXPECT_EQ(exact_values(r), (std::vector<double>{5, 8, 14, 14}));
}

TEST(OracleMatmul, ReadsKernelOrderPerRole) {
  Store s;
  Graph g;
  Tensor x = input(s, "x", Format::fp32, {1, 2, 2}, {1, 2, 3, 4});
  x.memory->kernel_order = true;
  const int a = g.add(x);
  const int c = g.product(a, a, middle(Format::fp32, {1, 2, 2}));
  // Second role reads (b, N, K): X · Xᵀ.
  EXPECT_EQ(exact_values(evaluate(g)[static_cast<std::size_t>(c)]), (std::vector<double>{5, 11, 11, 25}));
  g.tensors[static_cast<std::size_t>(a)].memory->kernel_order = false;
  EXPECT_EQ(exact_values(evaluate(g)[static_cast<std::size_t>(c)]), (std::vector<double>{7, 10, 15, 22}));
}

TEST(OracleMatmul, KernelOrderSurvivesAPrologue) {
  Store s;
  Graph g;
  const int a = g.add(input(s, "a", Format::fp32, {1, 1, 2}, {1, 10}));
  Tensor w = input(s, "w", Format::int8, {1, 3, 2}, {1, 2, 3, 4, 5, 6});
  w.dims = {1, 2, 3};
  w.memory->kernel_order = true;
  const int cast = g.apply(Pointwise::neg, {g.add(w)}, middle(Format::bf16, {1, 2, 3}));
  const int c = g.product(a, cast, middle(Format::fp32, {1, 1, 3}));
  EXPECT_EQ(exact_values(evaluate(g)[static_cast<std::size_t>(c)]), (std::vector<double>{-21, -43, -65}));
}

TEST(OracleMatmul, BroadcastsOneBatch) {
  Store s;
  Graph g;
  const int a = g.add(input(s, "a", Format::fp32, {2, 1, 1}, {2, 3}));
  const int b = g.add(input(s, "b", Format::fp32, {1, 1, 2}, {5, 7}));
  const int c = g.product(a, b, middle(Format::fp32, {2, 1, 2}));
  EXPECT_EQ(exact_values(evaluate(g)[static_cast<std::size_t>(c)]), (std::vector<double>{10, 14, 15, 21}));
}

TEST(OracleMatmul, DepthZeroGivesTheEpilogueOfZero) {
  Store s;
  Graph g;
  const int a = g.add(input(s, "a", Format::fp32, {1, 2, 0}, {}));
  const int b = g.add(input(s, "b", Format::fp32, {1, 0, 2}, {}));
  const int c = g.product(a, b, middle(Format::fp32, {1, 2, 2}));
  const int d = g.apply(Pointwise::add, {c, g.add(scalar(3))}, middle(Format::fp32, {1, 2, 2}));
  EXPECT_EQ(exact_values(evaluate(g)[static_cast<std::size_t>(d)]), (std::vector<double>{3, 3, 3, 3}));
}

TEST(OracleMatmul, WrapsInt32) {
  Store s;
  Graph g;
  const int a = g.add(input(s, "a", Format::int32, {1, 1, 2}, {65536, 1}));
  const int b = g.add(input(s, "b", Format::int32, {1, 2, 1}, {65536, 7}));
  const int c = g.product(a, b, middle(Format::int32, {1, 1, 1}), Format::int32);
  EXPECT_EQ(exact_values(evaluate(g)[static_cast<std::size_t>(c)]), (std::vector<double>{7}));
}

TEST(OracleMatmul, NanAndInfinityFollowIeee) {
  Store s;
  Graph g;
  const int a = g.add(input(s, "a", Format::fp32, {1, 4, 2}, {std::nan(""), 1, kInf, 1, kInf, -kInf, kInf, 0}));
  const int b = g.add(input(s, "b", Format::fp32, {1, 2, 1}, {1, 1}));
  const int c = g.product(a, b, middle(Format::fp32, {1, 4, 1}));
  const Result got = evaluate(g)[static_cast<std::size_t>(c)];
  EXPECT_FALSE(got.elements[0].number);
  EXPECT_EQ(got.elements[1].lo, kInf);
  EXPECT_FALSE(got.elements[1].nan);
  EXPECT_FALSE(got.elements[2].number);
  EXPECT_EQ(got.elements[3].lo, kInf);
}

TEST(OracleSum, IsExactUpToTwentyFourBits) {
  Sum fits;
  for (double v : {8388608.0, -8388607.0, 1.0}) fits.add(v);
  EXPECT_TRUE(fits.is_exact());
  EXPECT_EQ(fits.finish().lo, 2);
  EXPECT_EQ(fits.finish().hi, 2);
  Sum passes = fits;
  passes.add(1.0);
  EXPECT_FALSE(passes.is_exact());
  EXPECT_LT(passes.finish().lo, 3);
  EXPECT_GT(passes.finish().hi, 3);
  Sum scaled;
  for (double v : {0.5, 0.25, -0.75}) scaled.add(v);
  EXPECT_TRUE(scaled.is_exact());
  EXPECT_TRUE(std::signbit(scaled.finish().lo) && !std::signbit(scaled.finish().hi)) << "the sign of a cancelled sum is open";
  Sum wide;
  wide.add(1.0);
  wide.add(std::ldexp(1.0, -25));
  EXPECT_FALSE(wide.is_exact());
}

TEST(OracleSum, AllowsWhatEachOrderMayOverflowTo) {
  Sum mixed;
  for (double v : {3e38, 3e38, -3e38, -3e38}) mixed.add(v);
  EXPECT_TRUE(mixed.finish().contains(kInf));
  EXPECT_TRUE(mixed.finish().contains(std::nan("")));
  EXPECT_TRUE(mixed.finish().contains(0));
  Sum one_sided;
  for (double v : {3e38, 3e38}) one_sided.add(v);
  EXPECT_TRUE(one_sided.finish().contains(kInf));
  EXPECT_FALSE(one_sided.finish().contains(std::nan("")));
  EXPECT_FALSE(one_sided.finish().contains(3e38));
}

// The example of the rounding rules: C fp16, T1 bf16, R1 and T2 fp32, S fp16; one element, all bits by hand.
TEST(OracleRounding, EveryNodeRoundsToItsDeclaredType) {
  Store s;
  Graph g;
  const Dims one{1, 1, 1};
  const int a = g.add(input(s, "a", Format::fp16, {1, 1, 2}, {2048, 1}));
  const int b = g.add(input(s, "b", Format::fp16, {1, 2, 1}, {1, 1}));
  const int c = g.product(a, b, middle(Format::fp16, one));  // 2049 → 2048, half to even
  const int t1 = g.apply(Pointwise::add, {c, g.add(input(s, "bias", Format::fp32, one, {9}))}, middle(Format::bf16, one));
  const int r1 = g.apply(Pointwise::relu, {t1}, middle(Format::fp32, one));
  const int t2 = g.apply(Pointwise::mul, {c, g.add(input(s, "scale", Format::fp32, one, {0.5}))}, middle(Format::fp32, one));
  const int gelu = g.apply(Pointwise::gelu, {t2}, middle(Format::fp32, one));
  const int sum = g.apply(Pointwise::add, {r1, gelu}, middle(Format::fp16, one));
  const int scaled = g.apply(Pointwise::mul, {sum, g.add(scalar(std::ldexp(1.0, -12)))}, middle(Format::fp32, one));
  const int y = g.apply(Pointwise::tanh, {scaled}, middle(Format::fp32, one, true));
  const std::vector<Result> r = evaluate(g);
  const auto at = [&](int i) { return r[static_cast<std::size_t>(i)].elements[0]; };
  EXPECT_EQ(exact_values(r[static_cast<std::size_t>(c)])[0], 2048);   // 0x6800
  EXPECT_EQ(exact_values(r[static_cast<std::size_t>(t1)])[0], 2064);  // 2057 between 2048 and 2064 (step 16): 0x4501
  EXPECT_EQ(exact_values(r[static_cast<std::size_t>(r1)])[0], 2064);
  EXPECT_EQ(exact_values(r[static_cast<std::size_t>(t2)])[0], 1024);
  EXPECT_EQ(exact_values(r[static_cast<std::size_t>(sum)])[0], 3088);  // 0x6A08
  EXPECT_EQ(encode(Format::fp16, at(c).lo), 0x6800u);
  EXPECT_EQ(encode(Format::bf16, at(t1).lo), 0x4501u);
  EXPECT_EQ(encode(Format::fp16, at(sum).lo), 0x6A08u);
  EXPECT_EQ(at(scaled).lo, 0.75390625);
  EXPECT_TRUE(at(y).contains(fl32(std::tanh(0.75390625))));
  EXPECT_FALSE(at(y).contains(fl32(std::tanh(3082.5 / 4096)))) << "a chain that does not round in between must be noticed";
}

TEST(OracleRounding, SplitsAtADiscontinuityWithinTheBound) {
  // 0.1f · 10 is not exact; whether its sum passes 1 is open, so both answers of a comparison are.
  Store s;
  Graph g;
  const int a = g.add(input(s, "a", Format::fp32, {1, 1, 3}, {0.1, 0.2, 0.7}));
  const int b = g.add(input(s, "b", Format::fp32, {1, 3, 1}, {1, 1, 1}));
  const int c = g.product(a, b, middle(Format::fp32, {1, 1, 1}));
  const int d = g.apply(Pointwise::cmp_ge, {c, g.add(scalar(1))}, middle(Format::fp32, {1, 1, 1}));
  const Bound r = evaluate(g)[static_cast<std::size_t>(d)].elements[0];
  EXPECT_TRUE(r.contains(0));
  EXPECT_TRUE(r.contains(1));
}

TEST(OracleAux, EveryRankBroadcastsAsDeclared) {
  Store s;
  const auto run = [&](const Dims& declared, const Dims& live) {
    Graph g;
    const int a = g.add(input(s, "a", Format::fp32, {1, 2, 1}, {0, 0}));
    const int b = g.add(input(s, "b", Format::fp32, {1, 1, 3}, {0, 0, 0}));
    const int c = g.product(a, b, middle(Format::fp32, {1, 2, 3}));
    Tensor aux = input(s, "x", Format::fp32, live, {1, 2, 3, 4, 5, 6});
    aux.dims = declared;
    aux.strides = packed_strides(declared);
    const int d = g.apply(Pointwise::add, {c, g.add(aux)}, middle(Format::fp32, {1, 2, 3}));
    return exact_values(evaluate(g)[static_cast<std::size_t>(d)]);
  };
  const std::vector<double> columns{1, 2, 3, 1, 2, 3}, rows{1, 1, 1, 2, 2, 2}, all{1, 2, 3, 4, 5, 6};
  EXPECT_EQ(run({3}, {3}), columns);
  EXPECT_EQ(run({1, 1, 3}, {3}), columns);
  EXPECT_EQ(run({1, 1, 3}, {1, 3}), columns);
  EXPECT_EQ(run({3}, {1, 1, 3}), columns);
  EXPECT_EQ(run({1, 2, 1}, {2}), rows);
  EXPECT_EQ(run({2, 1}, {1, 2, 1}), rows);
  EXPECT_EQ(run({1, 2, 3}, {2, 3}), all);
}

TEST(OracleIndex, CountsAlongTheAxis) {
  Store s;
  Graph g;
  const int x = g.add(input(s, "x", Format::fp32, {1, 2, 3}, {9, 9, 9, 9, 9, 9}));
  Attributes rows, columns;
  rows.axis = 1;
  columns.axis = 2;
  const int m = g.apply(Pointwise::gen_index, {x}, middle(Format::fp32, {1, 2, 3}), rows);
  const int n = g.apply(Pointwise::gen_index, {x}, middle(Format::int32, {1, 2, 3}), columns, Format::int32);
  const std::vector<Result> r = evaluate(g);
  EXPECT_EQ(exact_values(r[static_cast<std::size_t>(m)]), (std::vector<double>{0, 0, 0, 1, 1, 1}));
  EXPECT_EQ(exact_values(r[static_cast<std::size_t>(n)]), (std::vector<double>{0, 1, 2, 0, 1, 2}));
}

TEST(OracleGraph, RefusesCyclesAndMissingMemory) {
  Graph g;
  Tensor t = middle(Format::fp32, {1});
  const int x = g.add(t);
  const int y = g.apply(Pointwise::neg, {x}, t);
  Node back;
  back.mode = Pointwise::neg;
  back.inputs = {y};
  back.output = x;
  g.nodes.push_back(back);
  EXPECT_THROW(evaluate(g), std::invalid_argument);
  Graph h;
  h.apply(Pointwise::neg, {h.add(t)}, t);
  EXPECT_THROW(evaluate(h), std::invalid_argument);
}

}  // namespace
