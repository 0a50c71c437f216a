#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <memory>
#include <thread>

#include "oracle/formats.hpp"
#include "support/gpu.hpp"
#include "support/random.hpp"
#include "verglas/verglas.hpp"

// A programmatic launch is there before the kernel in front of it has ended. Here that kernel writes its weights, into the same
// memory with other numbers every time: what it wrote must be multiplied, not what lay there before.
namespace verglas {
namespace {

constexpr Device kGpu{DeviceType::cuda, 0};
constexpr std::size_t kN = 576, kK = 1088, kDepth = 16, kSources = 3, kRounds = 12;

std::vector<int> drawn(std::size_t count, std::uint64_t seed) {
  support::Random random(seed);
  std::vector<int> v(count);
  for (int& x : v) x = static_cast<int>(random.between(-1, 1));
  return v;
}

/// rows × columns of x (rows, depth) and y (columns, depth)
std::vector<int> product(const std::vector<int>& x, const std::vector<int>& y, std::size_t rows, std::size_t columns,
                         std::size_t depth) {
  std::vector<int> d(rows * columns);
  for (std::size_t i = 0; i < rows; ++i)
    for (std::size_t j = 0; j < columns; ++j)
      for (std::size_t k = 0; k < depth; ++k) d[i * columns + j] += x[i * depth + k] * y[j * depth + k];
  return d;
}

PlanList plans(std::int64_t m, std::int64_t n, std::int64_t k, DataType out) {
  Graph g;
  const Tensor a = g.tensor({.name = "a", .dim = {m, k}, .stride = {k, 1}});
  const Tensor b = g.tensor({.name = "b", .dim = {k, n}, .stride = {1, k}});
  g.matmul(a, b).set_output(true).set_data_type(out);
  return g.plans({.device = kGpu, .deselect_engines = {"cpu", "cublaslt"}});
}

std::vector<CompiledPlan> programmatic(const PlanList& all, std::size_t most) {
  std::vector<std::size_t> chosen;
  for (std::size_t i = 0; i < all.size() && chosen.size() < most; ++i)
    if (all.knobs(i).at("PROGRAMMATIC") != 0) chosen.push_back(i);
  std::vector<CompiledPlan> compiled(chosen.size());
  std::vector<std::jthread> compilers;
  for (std::size_t i = 0; i < chosen.size(); ++i) compilers.emplace_back([&, i] { compiled[i] = all.compile(chosen[i]); });
  return compilers.clear(), compiled;
}

class Sm90Programmatic : public support::GpuTest {
 protected:
  std::unique_ptr<support::DeviceBuffer> uploaded(const std::vector<int>& values) const {
    std::vector<std::uint16_t> bits;
    for (const int v : values) bits.push_back(static_cast<std::uint16_t>(oracle::encode(oracle::Format::bf16, v)));
    auto buffer = std::make_unique<support::DeviceBuffer>(*driver_, bits.size() * 2, 0);
    buffer->upload(bits.data());
    return buffer;
  }
};

TEST_F(Sm90Programmatic, WeightsOfTheKernelInFrontAreRead) {
  cuda::CUstream stream = nullptr;
  cuda::check(*driver_, driver_->cuStreamCreate(&stream, cuda::kStreamNonBlocking), "cuStreamCreate", "a test");
  const std::vector<int> factor = drawn(kK * kDepth, 1);
  const auto factor_there = uploaded(factor);
  std::array<std::vector<int>, kSources> source, weights;
  std::array<std::unique_ptr<support::DeviceBuffer>, kSources> source_there;
  for (std::size_t s = 0; s < kSources; ++s) {
    source[s] = drawn(kN * kDepth, 2 + s);
    source_there[s] = uploaded(source[s]);
    weights[s] = product(source[s], factor, kN, kK, kDepth);
  }
  support::DeviceBuffer weights_there(*driver_, kN * kK * 2, 0xFF);
  const std::vector<CompiledPlan> makes = programmatic(plans(kN, kK, kDepth, DataType::bf16), 1);
  ASSERT_EQ(makes.size(), 1U);
  for (const std::size_t m : {16U, 64U, 128U}) {
    const std::vector<int> a = drawn(m * kK, 9 + m);
    const auto a_there = uploaded(a);
    std::array<std::vector<float>, kSources> want;
    for (std::size_t s = 0; s < kSources; ++s) {
      const std::vector<int> d = product(a, weights[s], m, kN, kK);
      want[s].assign(d.begin(), d.end());
    }
    for (const CompiledPlan& takes : programmatic(plans(static_cast<std::int64_t>(m), kN, kK, DataType::fp32), 6)) {
      std::vector<std::unique_ptr<support::DeviceBuffer>> d;
      for (std::size_t i = 0; i < kRounds; ++i) d.push_back(std::make_unique<support::DeviceBuffer>(*driver_, m * kN * 4, 0xFF));
      for (std::size_t i = 0; i < kRounds; ++i) {
        const std::array<void*, 3> made = {source_there[i % kSources]->data(), factor_there->data(), weights_there.data()};
        const std::array<void*, 3> taken = {a_there->data(), weights_there.data(), d[i]->data()};
        ASSERT_TRUE(makes[0].execute(made, {stream}).ok());
        ASSERT_TRUE(takes.execute(taken, {stream}).ok());
      }
      cuda::check(*driver_, driver_->cuStreamSynchronize(stream), "cuStreamSynchronize", "a test");
      for (std::size_t i = 0; i < kRounds; ++i) {
        const auto got = d[i]->download();
        EXPECT_EQ(std::memcmp(got.data(), want[i % kSources].data(), got.size()), 0) << takes.name() << ", round " << i;
        EXPECT_EQ(d[i]->touched_guard_bytes(), 0);
      }
    }
  }
  driver_->cuStreamDestroy(stream);
}

}  // namespace
}  // namespace verglas
