#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

#include "oracle/compare.hpp"
#include "oracle/memory.hpp"

// A whole chain, D = gelu(A·B + bias) in fp16 and the sums of D's columns, computed by a plain fp32 loop: it must lie inside the
// limits whatever the order of its sums, and must not when it is broken.

namespace {

using namespace oracle;
using Dims = std::vector<std::int64_t>;

constexpr int kM = 9, kN = 7, kK = 53;

struct Chain {
  std::vector<float> a = std::vector<float>(kM * kK), b = std::vector<float>(kK * kN), bias = std::vector<float>(kN);
  std::vector<std::uint16_t> d = std::vector<std::uint16_t>(kM * kN);
  std::vector<float> sums = std::vector<float>(kN);

  explicit Chain(unsigned seed) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal;
    for (std::vector<float>* x : {&a, &b, &bias})
      for (float& v : *x) v = normal(random);
  }

  Graph graph() const {
    Graph g;
    const auto put = [&](const char* name, const void* data, Dims dims, Format format) {
      Tensor t;
      t.name = name;
      t.dims = dims;
      t.format = format;
      t.memory = Memory{data, dims, packed_strides(dims), false, false};
      return t;
    };
    Tensor middle;
    middle.dims = {1, kM, kN};
    middle.is_virtual = true;
    const int x = g.add(put("a", a.data(), {1, kM, kK}, Format::fp32));
    const int y = g.add(put("b", b.data(), {1, kK, kN}, Format::fp32));
    const int z = g.add(put("bias", bias.data(), {kN}, Format::fp32));
    const int c = g.product(x, y, middle);
    const int t = g.apply(Pointwise::add, {c, z}, middle);
    Tensor out = put("d", d.data(), {1, kM, kN}, Format::fp16);
    out.is_output = true;
    const int stored = g.apply(Pointwise::gelu, {t}, out);
    Tensor sum = put("sums", sums.data(), {1, 1, kN}, Format::fp32);
    sum.is_output = true;
    g.reduce(Reduction::add, stored, sum);
    return g;
  }

  /// `skip_k`: leaves one product out at (0, 0). `unrounded`: reduces the fp32 values instead of the stored ones.
  void run(bool backwards, bool skip_k = false, bool unrounded = false) {
    for (int n = 0; n < kN; ++n) {
      float total = 0;
      for (int m = 0; m < kM; ++m) {
        float sum = 0;
        for (int i = 0; i < kK; ++i) {
          const int k = backwards ? kK - 1 - i : i;
          if (skip_k && m + n == 0 && k == 17) continue;
          sum += a[static_cast<std::size_t>(m * kK + k)] * b[static_cast<std::size_t>(k * kN + n)];
        }
        const float t = sum + bias[static_cast<std::size_t>(n)];
        const float v = 0.5f * t * (1.0f + std::erf(t * 0.70710678f));
        const std::size_t at = static_cast<std::size_t>(m * kN + n);
        d[at] = static_cast<std::uint16_t>(encode(Format::fp16, static_cast<double>(v)));
        total += unrounded ? v : static_cast<float>(decode(Format::fp16, d[at]));
      }
      sums[static_cast<std::size_t>(n)] = total;
    }
  }
};

TEST(OracleChain, EveryOrderOfSummationIsInside) {
  for (unsigned seed = 0; seed < 40; ++seed)
    for (bool backwards : {false, true}) {
      Chain chain(seed);
      chain.run(backwards);
      EXPECT_EQ(failures(compare_outputs(chain.graph())), "") << "seed " << seed;
    }
}

TEST(OracleChain, AMissingProductOrAZeroedElementIsNoticed) {
  for (unsigned seed = 0; seed < 40; ++seed) {
    Chain chain(seed);
    chain.run(false, true);
    // Unless gelu flattens it: far to the left every value is 0 in fp16.
    const Bound d00 = evaluate(chain.graph())[5].elements[0];
    if (std::fabs(d00.hi) > 0.1) {
      EXPECT_NE(failures(compare_outputs(chain.graph())), "") << "seed " << seed;
    }
    chain.run(false);
    std::size_t at = 0;  // one that is not in the flat tail of gelu
    while (decode(Format::fp16, chain.d[at]) < 0.5) ++at;
    chain.d[at] ^= 0x0010;
    const Comparison d = compare_outputs(chain.graph())[0];
    EXPECT_EQ(d.wrong, 1) << d.text();
    EXPECT_EQ(d.first, (Dims{0, static_cast<std::int64_t>(at) / kN, static_cast<std::int64_t>(at) % kN}));
  }
}

TEST(OracleChain, AReductionOfUnroundedValuesIsNoticed) {
  int noticed = 0;
  for (unsigned seed = 0; seed < 40; ++seed) {
    Chain chain(seed);
    chain.run(false, false, true);
    noticed += failures(compare_outputs(chain.graph())).empty() ? 0 : 1;
  }
  EXPECT_GT(noticed, 20);
}

}  // namespace
