#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <list>

#include "oracle/formats.hpp"
#include "support/feature_graph.hpp"

// Graphs that the device's kernels are compared on say something: the CPU engine serves them, and what it makes of their data is
// numbers, of which not all are 0.
namespace verglas {
namespace {

using Bytes = std::vector<std::uint8_t>;

std::size_t span_bytes(const OperandInfo& o) {
  std::int64_t count = 1;
  for (std::size_t i = 0; i < o.dim.size(); ++i) count += (o.dim[i] - 1) * o.stride[i];
  return static_cast<std::size_t>((count * bits_of(o.dtype) + 7) / 8);
}

struct Tally {
  std::size_t elements = 0, nans = 0, nonzero = 0;
};

/// Elements of an output, gaps among them, which begin as 0x3C.
Tally tally_of(const OperandInfo& o, const Bytes& bytes) {
  Tally t;
  if (o.dtype == DataType::fp4_e2m1) {
    for (const std::uint8_t b : bytes) t.elements += 2, t.nonzero += (b & 0x77U) != 0 ? 1 : 0;
    return t;
  }
  const auto size = static_cast<std::size_t>(bytes_of(o.dtype));
  for (std::size_t at = 0; at + size <= bytes.size(); at += size) {
    std::uint64_t bits = 0;
    std::memcpy(&bits, &bytes[at], size);
    const double v = oracle::decode(static_cast<oracle::Format>(o.dtype), bits);
    ++t.elements;
    t.nans += std::isnan(v) ? 1 : 0;
    t.nonzero += v != 0 ? 1 : 0;
  }
  return t;
}

TEST(FeatureGraphs, GiveNumbersOnTheCpuEngine) {
  std::size_t refused = 0, served = 0, zero = 0;
  for (std::uint64_t i = 0; i < 150; ++i) {
    const std::uint64_t seed = i / 3;
    SCOPED_TRACE(seed);
    const support::FeatureGraph drawn(seed, static_cast<int>(i % 3));
    CompiledPlan plan;
    try {
      Graph g;
      drawn.describe(g);
      plan = g.compile();
    } catch (const Error& e) {
      ++refused;
      if (std::getenv("VERGLAS_LIST")) std::printf("%s\n", e.what());
      continue;
    }
    const auto one = [&](const char* name, const std::pair<std::size_t, DataType>& what) {
      OperandInfo info;
      info.name = name;
      info.dtype = what.second;
      Bytes bytes(what.first, 0xFF);
      drawn.fill(info, bytes);
      return bytes;
    };
    const support::FeatureGraph::ByAddress by_address = drawn.by_address();
    const Bytes weights = one("matrix", by_address.weights), scales = one("scales", by_address.scales);
    std::list<Bytes> memory;
    std::vector<TensorView> call;
    for (const OperandInfo& o : plan.operands()) {
      Bytes& bytes = memory.emplace_back(span_bytes(o), o.is_output ? 0x3C : 0xFF);
      if (const bool of_scales = o.roles == "b_scale_addresses"; of_scales || o.roles == "b_addresses") {
        const auto address = reinterpret_cast<std::uint64_t>((of_scales ? scales : weights).data());
        for (std::size_t at = 0; at < bytes.size(); at += 8) std::memcpy(&bytes[at], &address, 8);
      } else if (!o.is_output) {
        drawn.fill(o, bytes);
      }
      call.push_back(TensorView::address(bytes.data()));
    }
    const Status s = plan.execute(call);
    ASSERT_TRUE(s.ok()) << plan.explain(s, call).what();
    ++served;
    auto bytes = memory.begin();
    for (const OperandInfo& o : plan.operands()) {
      if (o.is_output) {
        const Tally t = tally_of(o, *bytes);
        EXPECT_EQ(t.nans, 0U) << o.name << " of " << t.elements;
        zero += t.elements > 200 && t.nonzero == 0 ? 1 : 0;
      }
      ++bytes;
    }
  }
  std::printf("%zu served, %zu refused, %zu outputs of nothing but 0\n", served, refused, zero);
  EXPECT_LT(refused, served / 10);
  EXPECT_LT(zero, served / 10);
}

}  // namespace
}  // namespace verglas
