#include "oracle/judge.hpp"

#include <gtest/gtest.h>

#include <functional>
#include <utility>

namespace {

using namespace oracle;
using Dims = std::vector<std::int64_t>;

constexpr int kA = 0, kB = 1, kBias = 3, kY = 4, kSum = 5;

Tensor named(const char* name, Dims dims, bool is_output = false) {
  Tensor t;
  t.name = name;
  t.dims = std::move(dims);
  t.is_output = is_output;
  t.is_virtual = false;
  return t;
}

/// Y = A·B + bias, and the sum of Y over M; L 2, M 3, N 4, K 5; B shared by the batch.
Graph sample() {
  Graph g;
  const int a = g.add(named("a", {2, 3, 5}));
  const int b = g.add(named("b", {1, 5, 4}));
  Tensor c = named("c", {2, 3, 4});
  c.is_virtual = true;
  const int product = g.product(a, b, c);
  const int bias = g.add(named("bias", {1, 1, 4}));
  const int y = g.apply(Pointwise::add, {product, bias}, named("y", {2, 3, 4}, true));
  g.reduce(Reduction::add, y, named("sum", {2, 1, 4}, true));
  return g;
}

std::vector<Binding> legal_call(const Graph& g) {
  std::vector<Binding> call;
  for (std::size_t i = 0; i < g.tensors.size(); ++i)
    if (!g.tensors[i].is_virtual) call.push_back({g.tensors[i].uid, as_declared(g.tensors[i], 0x1000 * (i + 1))});
  return call;
}

/// The verdict on the legal call after `change` to the buffer of one tensor.
Verdict after(int tensor, const std::function<void(Buffer&)>& change) {
  const Graph g = sample();
  std::vector<Binding> call = legal_call(g);
  for (Binding& b : call)
    if (b.uid == g.tensors[static_cast<std::size_t>(tensor)].uid) change(b.buffer);
  return judge(g, call);
}

std::set<std::string> broken(int tensor, const std::function<void(Buffer&)>& change) { return after(tensor, change).rules(); }

const std::set<std::string> kLegal{};

TEST(OracleJudge, TheDeclaredCallIsLegal) {
  EXPECT_EQ(broken(kA, [](Buffer&) {}), kLegal);
  for (int t : {kA, kB, kBias, kY, kSum})
    EXPECT_EQ(broken(t, [](Buffer& b) { b = {.address = b.address, .bare = true}; }), kLegal);
}

TEST(OracleJudge, KeysAreEachGivenOnce) {
  const Graph g = sample();
  std::vector<Binding> call = legal_call(g);
  call.pop_back();
  EXPECT_TRUE(judge(g, call).breaks("missing", "sum"));
  call = legal_call(g);
  call.push_back({99, call[0].buffer});
  EXPECT_TRUE(judge(g, call).breaks("unknown"));
  call.back().uid = g.tensors[2].uid;  // virtual
  EXPECT_TRUE(judge(g, call).breaks("unknown"));
  call.back().uid = g.tensors[kA].uid;
  EXPECT_TRUE(judge(g, call).breaks("duplicate", "a"));
}

TEST(OracleJudge, OneBufferAlone) {
  using S = std::set<std::string>;
  EXPECT_EQ(broken(kA, [](Buffer& b) { b.address = 0; }), S{"null"});
  EXPECT_EQ(broken(kB, [](Buffer& b) { b.device = DeviceKind::cuda; }), S{"device"});
  EXPECT_EQ(broken(kB, [](Buffer& b) { b.device = DeviceKind::unknown; }), kLegal);
  EXPECT_EQ(broken(kBias, [](Buffer& b) { b.format = Format::int32; }), S{"dtype"});
  EXPECT_EQ(broken(kY, [](Buffer& b) { b.address += 2; }), S{"alignment"});
  EXPECT_EQ(broken(kY, [](Buffer& b) { b.address += 4; }), kLegal);
  EXPECT_EQ(broken(kY, [](Buffer& b) { b.read_only = true; }), S{"read_only"});
  EXPECT_EQ(broken(kA, [](Buffer& b) { b.read_only = true; }), kLegal);
  EXPECT_EQ(broken(kA, [](Buffer& b) { b.observed_bytes = 119; }), S{"span"});
  EXPECT_EQ(broken(kA, [](Buffer& b) { b.observed_bytes = 120; }), kLegal);
  EXPECT_EQ(broken(kA, [](Buffer& b) { b.dims[2] = -1; }), S{"extent.negative"});
  EXPECT_EQ(broken(kA, [](Buffer& b) { b.strides[1] = -5; }), S{"stride.negative"});
  EXPECT_EQ(broken(kA, [](Buffer& b) { b.strides[1] = std::int64_t{1} << 62; }), S{"overflow"});
}

TEST(OracleJudge, Ranks) {
  for (int t : {kA, kB, kY, kSum})
    for (std::size_t rank : {0u, 1u, 4u})
      EXPECT_TRUE(after(t,
                        [&](Buffer& b) {
                          b.dims.resize(rank, 1);
                          b.strides.resize(rank, 1);
                        })
                      .breaks("rank"))
          << t << " " << rank;
  const auto bias = [](Dims dims) {
    return broken(kBias, [&](Buffer& b) {
      b.dims = dims;
      b.strides = packed_strides(dims);
    });
  };
  EXPECT_EQ(bias({4}), kLegal);
  EXPECT_EQ(bias({1, 4}), kLegal);
  EXPECT_EQ(bias({4, 1, 1}), kLegal);
  EXPECT_EQ(bias({2, 2}), std::set<std::string>{"extent.aux"});
  EXPECT_EQ(bias({}), std::set<std::string>{"extent.aux"});
  EXPECT_EQ(bias({3}), std::set<std::string>{"extent.aux"});
}

TEST(OracleJudge, ExtentsMustAgree) {
  using S = std::set<std::string>;
  EXPECT_EQ(broken(kB, [](Buffer& b) { b.dims[1] = 6; }), S{"extent.k"});
  EXPECT_EQ(broken(kB, [](Buffer& b) { b.dims[0] = 2; }), S{"extent.batch"}) << "a broadcast batch stays 1";
  EXPECT_EQ(broken(kB, [](Buffer& b) { b.dims[2] = 5; }), (S{"extent.aux", "extent.output"}));
  EXPECT_EQ(broken(kY, [](Buffer& b) { b.dims[1] = 2; }), S{"extent.output"});
  EXPECT_EQ(broken(kSum, [](Buffer& b) { b.dims[1] = 3; }).count("extent.output"), 1u);
}

TEST(OracleJudge, LiveExtentsAreFree) {
  const Graph g = sample();
  const auto call = [&](std::int64_t l, std::int64_t m, std::int64_t n, std::int64_t k) {
    std::vector<Binding> c = legal_call(g);
    const Dims dims[] = {{l, m, k}, {1, k, n}, {1, 1, n}, {l, m, n}, {l, 1, n}};
    for (std::size_t i = 0; i < c.size(); ++i) {
      c[i].buffer.dims = dims[i];
      c[i].buffer.strides = packed_strides(dims[i]);
    }
    return c;
  };
  for (const Dims& d : std::vector<Dims>{{1, 1, 1, 1}, {3, 7, 2, 9}, {2, 0, 4, 5}, {0, 3, 4, 5}, {2, 3, 0, 5}, {2, 3, 4, 0}})
    EXPECT_EQ(judge(g, call(d[0], d[1], d[2], d[3])).text(), "legal");
  // An empty operand needs neither pointer nor alignment nor stride.
  std::vector<Binding> empty = call(2, 3, 4, 0);
  empty[0].buffer.address = 0;
  empty[0].buffer.strides = {-1, 0, 1};
  EXPECT_EQ(judge(g, empty).text(), "legal");
  empty[3].buffer.address = 0;
  EXPECT_EQ(judge(g, empty).rules(), std::set<std::string>{"null"}) << "the output is not empty when K = 0";
}

TEST(OracleJudge, KernelOrderSwapsTheSecondOperand) {
  EXPECT_EQ(broken(kB, [](Buffer& b) { b.kernel_order = true; }),
            (std::set<std::string>{"extent.k", "extent.aux", "extent.output"}));
  EXPECT_EQ(broken(kB,
                   [](Buffer& b) {
                     b.kernel_order = true;
                     b.dims = {1, 4, 5};
                     b.strides = {20, 5, 1};
                   }),
            kLegal);
}

TEST(OracleJudge, StridesOfInputsAreFreeAndOfOutputsInjective) {
  using S = std::set<std::string>;
  EXPECT_EQ(broken(kA, [](Buffer& b) { b.strides = {0, 0, 0}; }), kLegal);
  EXPECT_EQ(broken(kBias, [](Buffer& b) { b.strides[2] = 0; }), kLegal);
  EXPECT_EQ(broken(kY, [](Buffer& b) { b.strides = {24, 8, 2}; }), kLegal);
  EXPECT_EQ(broken(kY, [](Buffer& b) { b.strides = {1, 2, 6}; }), kLegal);
  EXPECT_EQ(broken(kY, [](Buffer& b) { b.strides[2] = 0; }), S{"zero_stride_output"});
  EXPECT_EQ(broken(kY, [](Buffer& b) { b.strides = {12, 3, 1}; }), S{"alias_output"});
  EXPECT_EQ(broken(kSum, [](Buffer& b) { b.strides[1] = 0; }), kLegal) << "strides of unit axes mean nothing";
  EXPECT_TRUE(is_injective({2, 2}, {3, 2}));
  EXPECT_FALSE(is_injective({2, 2}, {2, 2}));
}

TEST(OracleJudge, InjectiveNeverAcceptsAMeeting) {
  for (std::int64_t code = 0; code < 4 * 4 * 4 * 9 * 9 * 9; ++code) {
    std::int64_t c = code;
    const auto take = [&](std::int64_t n) { return std::exchange(c, c / n) % n; };
    const Dims dims{take(4) + 1, take(4) + 1, take(4) + 1}, strides{take(9), take(9), take(9)};
    if (!is_injective(dims, strides)) continue;
    std::set<std::int64_t> met;
    for (std::int64_t i = 0; i < dims[0]; ++i)
      for (std::int64_t j = 0; j < dims[1]; ++j)
        for (std::int64_t k = 0; k < dims[2]; ++k)
          ASSERT_TRUE(met.insert(i * strides[0] + j * strides[1] + k * strides[2]).second) << code;
  }
}

TEST(OracleJudge, OutputsKeepApart) {
  using S = std::set<std::string>;
  const std::uint64_t a = 0x1000 * (kA + 1), y = 0x1000 * (kY + 1);
  EXPECT_EQ(broken(kSum, [&](Buffer& b) { b.address = y + 92; }), S{"overlap"});  // the last byte range of y: 24 elements
  EXPECT_EQ(broken(kSum, [&](Buffer& b) { b.address = y + 96; }), kLegal);
  EXPECT_EQ(broken(kY, [&](Buffer& b) { b.address = a; }), S{"overlap"});
  EXPECT_EQ(broken(kY, [&](Buffer& b) { b.address = a + 120; }), kLegal);
  EXPECT_EQ(broken(kB, [&](Buffer& b) { b.address = a; }), kLegal) << "inputs may share memory";
}

TEST(OracleJudge, TwoOutputsOfOneLayoutMayInterleave) {
  Graph g;
  const int a = g.add(named("a", {3, 5}));
  const int b = g.add(named("b", {5, 4}));
  const int x = g.product(a, b, named("x", {3, 4}, true));
  const int y = g.apply(Pointwise::relu, {x}, named("y", {3, 4}, true));
  const auto legal = [&](std::uint64_t apart, Dims strides) {
    std::vector<Binding> call = legal_call(g);
    Buffer& of_x = call[static_cast<std::size_t>(x)].buffer;
    Buffer& of_y = call[static_cast<std::size_t>(y)].buffer;
    of_x.address = 0x9000;
    of_x.strides = {8, 1};
    of_y.address = 0x9000 + apart;
    of_y.strides = std::move(strides);
    return !judge(g, call).breaks("overlap");
  };
  EXPECT_TRUE(legal(16, {8, 1}));
  EXPECT_FALSE(legal(12, {8, 1}));
  EXPECT_FALSE(legal(18, {8, 1})) << "half an element";
  EXPECT_FALSE(legal(16, {9, 1})) << "of another layout";
}

TEST(OracleJudge, RankTwoIsRankThreeOfOneBatch) {
  for (const bool declared_three : {false, true}) {
    Graph g;
    const auto dims = [&](std::int64_t rows, std::int64_t columns) {
      return declared_three ? Dims{1, rows, columns} : Dims{rows, columns};
    };
    const int a = g.add(named("a", dims(3, 5)));
    const int b = g.add(named("b", dims(5, 4)));
    g.product(a, b, named("c", dims(3, 4), true));
    std::vector<Binding> call = legal_call(g);
    EXPECT_EQ(judge(g, call).text(), "legal");
    call[0].buffer.dims = {3, 5};
    call[0].buffer.strides = {5, 1};
    EXPECT_EQ(judge(g, call).text(), "legal");
    call[0].buffer.dims = {1, 3, 5};
    call[0].buffer.strides = {15, 5, 1};
    EXPECT_EQ(judge(g, call).text(), "legal");
    call[0].buffer.dims = {2, 3, 5};
    EXPECT_EQ(judge(g, call).text(), "extent.batch (a)");
  }
  // A batch that is not 1 cannot be left out.
  EXPECT_TRUE(after(kA, [](Buffer& b) {
                b.dims = {3, 5};
                b.strides = {5, 1};
              }).breaks("extent.output", "y"));
}

TEST(OracleJudge, DeclaredExtentOneIsFullUnlessScalarOrMissing) {
  // Declared M = 1 and N = 4, called with M = 3.
  const auto legal = [](Dims declared, Dims live) {
    Graph g;
    const int a = g.add(named("a", {1, 1, 5}));
    const int b = g.add(named("b", {1, 5, 4}));
    Tensor c = named("c", {1, 1, 4});
    c.is_virtual = true;
    const int product = g.product(a, b, c);
    const int aux = g.add(named("aux", declared));
    g.apply(Pointwise::add, {product, aux}, named("y", {1, 1, 4}, true));
    std::vector<Binding> call = legal_call(g);
    const Dims dims[] = {{1, 3, 5}, {1, 5, 4}, live, {1, 3, 4}};
    for (std::size_t i = 0; i < call.size(); ++i) {
      call[i].buffer.dims = dims[i];
      call[i].buffer.strides = packed_strides(dims[i]);
    }
    return judge(g, call).legal();
  };
  EXPECT_TRUE(legal({1, 4}, {3, 4}));
  EXPECT_FALSE(legal({1, 4}, {4}));
  EXPECT_TRUE(legal({4}, {4}));
  EXPECT_FALSE(legal({4}, {3, 4}));
  EXPECT_TRUE(legal({1, 1, 1}, {1}));
  EXPECT_FALSE(legal({1, 1, 1}, {3}));
}

TEST(OracleJudge, HostScalarsLieOnTheHost) {
  Graph g;
  const int a = g.add(named("a", {2, 3}));
  const int b = g.add(named("b", {3, 4}));
  Tensor c = named("c", {2, 4});
  c.is_virtual = true;
  const int product = g.product(a, b, c);
  Tensor alpha = named("alpha", {1});
  alpha.is_host_scalar = true;
  const int scalar = g.add(alpha);
  g.apply(Pointwise::mul, {product, scalar}, named("y", {2, 4}, true));
  std::vector<Binding> call = legal_call(g);
  for (Binding& binding : call)
    if (binding.uid != g.tensors[static_cast<std::size_t>(scalar)].uid) binding.buffer.device = DeviceKind::cuda;
  JudgeOptions device;
  device.device = DeviceKind::cuda;
  EXPECT_EQ(judge(g, call, device).text(), "legal");
  EXPECT_FALSE(judge(g, call).legal());
  call[0].buffer.device_id = 1;
  EXPECT_EQ(judge(g, call, device).text(), "device (a)");
}

TEST(OracleJudge, ExtentsStayBelowTwoToTheThirtyOne) {
  const auto limit = [](std::int64_t k) {
    Graph g;
    const int a = g.add(named("a", {1, 1}));
    const int b = g.add(named("b", {1, 1}));
    g.product(a, b, named("c", {1, 1}, true));
    std::vector<Binding> call = legal_call(g);
    call[0].buffer.dims = {1, k};
    call[1].buffer.dims = {k, 1};
    call[0].buffer.strides = call[1].buffer.strides = {0, 0};
    return judge(g, call).rules();
  };
  EXPECT_EQ(limit(2147483647), kLegal);
  EXPECT_EQ(limit(2147483648), std::set<std::string>{"extent.large"});
}

TEST(OracleJudge, OneTensorInTwoRolesAnswersForBoth) {
  Graph g;
  const int a = g.add(named("a", {1, 4, 4}));
  g.product(a, a, named("c", {1, 4, 4}, true));
  std::vector<Binding> call = legal_call(g);
  EXPECT_EQ(judge(g, call).text(), "legal");
  call[0].buffer.dims = {1, 4, 5};
  EXPECT_TRUE(judge(g, call).breaks("extent.k", "a"));
}

TEST(OracleJudge, PrologueOperandsAreReadAtTheirRoot) {
  Graph g;
  const int a = g.add(named("a", {1, 2, 3}));
  const int scale = g.add(named("scale", {1, 1, 1}));
  Tensor t = named("t", {1, 2, 3});
  t.is_virtual = true;
  const int scaled = g.apply(Pointwise::mul, {a, scale}, t);
  const int b = g.add(named("b", {1, 3, 4}));
  g.product(scaled, b, named("c", {1, 2, 4}, true));
  std::vector<Binding> call = legal_call(g);
  EXPECT_EQ(judge(g, call).text(), "legal");
  call[1].buffer.dims = {};
  call[1].buffer.strides = {};
  EXPECT_EQ(judge(g, call).text(), "legal") << "a scalar of rank 0";
  call[1].buffer.dims = {2};
  call[1].buffer.strides = {1};
  EXPECT_EQ(judge(g, call).text(), "extent.aux (scale)");
  call.erase(call.begin() + 1);
  EXPECT_EQ(judge(g, call).text(), "missing (scale)");
}

}  // namespace
