#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "beside_cpu.hpp"
#include "numeric/convert.hpp"
#include "support/gpu.hpp"
#include "verglas/ops/operation.hpp"

// Operations whose outputs are quantised, on a device and by the CPU engine.
namespace verglas {
namespace {

using enum DataType;
using gpu_test::Bytes;

/// One tensor of an operation, as bytes on the host and the view of them.
struct Held {
  Bytes bytes;
  TensorView view;
};

std::size_t bytes_of_view(const TensorView& v) {
  std::int64_t count = 1;
  for (int i = 0; i < v.rank; ++i) count *= v.extent[static_cast<std::size_t>(i)];
  return static_cast<std::size_t>(count * bytes_of(v.dtype));
}

/// A dense tensor of small integers; of e8m0 powers of two around 1, of uint8 pairs of fp4.
Held filled(DataType type, std::initializer_list<std::int64_t> extents, std::initializer_list<std::int64_t> strides,
            std::mt19937& random) {
  Held t{{}, TensorView::strided(nullptr, type, extents, strides)};
  t.bytes.resize(bytes_of_view(t.view));
  const auto size = static_cast<std::size_t>(bytes_of(type));
  for (std::size_t at = 0; at < t.bytes.size(); at += size) {
    if (type == fp8_e8m0)
      t.bytes[at] = static_cast<std::uint8_t>(125 + random() % 5);
    else if (type == uint8)
      t.bytes[at] = static_cast<std::uint8_t>(random());
    else
      numeric::from_float(static_cast<float>(static_cast<int>(random() % 5) - 2), &t.bytes[at], type);
  }
  return t;
}

class Sm90Operations : public support::GpuTest {
 protected:
  /// Runs the operation on both sides; afterwards `tensors` hold the host's outputs, and the answer is the device's bytes.
  std::vector<Bytes> run(const char* name, std::vector<Held>& tensors, const ops::Options& options) {
    const ops::Operation operation = ops::Operation::named(name);
    std::vector<TensorView> host, device;
    std::vector<std::unique_ptr<support::DeviceBuffer>> memory;
    for (Held& t : tensors) {
      TensorView here = t.view, there = t.view;
      auto& buffer = memory.emplace_back(std::make_unique<support::DeviceBuffer>(*driver_, t.bytes.size(), 0xFF));
      if (!t.bytes.empty()) {
        buffer->upload(t.bytes.data());
        here.data = t.bytes.data();
        there.data = buffer->data();
        there.device = {DeviceType::cuda, 0};
      }
      host.push_back(here);
      device.push_back(there);
    }
    operation.run(host, options, 0.5F);
    operation.run(device, options, 0.5F);
    EXPECT_EQ(driver_->cuCtxSynchronize(), cuda::CUDA_SUCCESS);
    std::vector<Bytes> got;
    for (const auto& buffer : memory) {
      EXPECT_EQ(buffer->touched_guard_bytes(), 0);
      got.push_back(buffer->download());
    }
    return got;
  }
  std::mt19937 random_{5};
};

TEST_F(Sm90Operations, SwigluOfScaledOperandsQuantisesItsResult) {
  for (const auto& [data, scale, block] :
       {std::tuple{fp8_e4m3, fp8_e8m0, 32}, {fp8_e5m2, fp8_e8m0, 32}, {uint8, fp8_e8m0, 32}, {uint8, fp8_e4m3, 16}}) {
    constexpr std::int64_t m = 200, n = 320, k = 128, l = 2;
    const std::int64_t k_bytes = data == uint8 ? k / 2 : k, atoms = k / block / 4, c_atoms = (n / 2 / block + 3) / 4;
    const auto operand = [&](std::int64_t rows) {
      return filled(data, {rows, k_bytes, l}, {k_bytes, 1, rows * k_bytes}, random_);
    };
    const auto scales = [&](DataType type, std::int64_t rows, std::int64_t columns) {
      const std::int64_t r = (rows + 127) / 128;
      Held t = filled(type, {32, 4, r, 4, columns, l}, {16, 4, 512 * columns, 1, 512, 512 * columns * r}, random_);
      for (std::uint8_t& byte : t.bytes)
        if (type == fp8_e4m3) byte = static_cast<std::uint8_t>(0x30 + random_() % 16);
      return t;
    };
    std::vector<Held> t;
    t.push_back(operand(m));
    t.push_back(operand(n));
    t.push_back(filled(fp32, {m, n, l}, {n, 1, m * n}, random_));
    t.push_back(filled(fp8_e4m3, {m, n / 2, l}, {n / 2, 1, m * n / 2}, random_));
    t.push_back(scales(scale, m, atoms));
    t.push_back(scales(scale, n, atoms));
    t.push_back(filled(fp32, {1, 1, 1}, {1, 1, 1}, random_));
    t.push_back(scales(scale, m, c_atoms));
    t.push_back(filled(fp32, {1}, {1}, random_));
    const float norm = 2;
    std::memcpy(t.back().bytes.data(), &norm, sizeof norm);
    ops::Options options;
    options.sf_vec_size = block;
    const std::vector<Bytes> got = run("gemm_swiglu", t, options);
    EXPECT_EQ(got[2], t[2].bytes) << "ab12, " << name_of(data) << ' ' << block;
    float amax = 0, want = 0;
    std::memcpy(&amax, got[6].data(), 4);
    std::memcpy(&want, t[6].bytes.data(), 4);
    EXPECT_NEAR(amax, want, 1e-6 * want);
    // The exponential is not the CPU engine's to the last bit: now and then a code or a scale is the one beside.
    for (const std::size_t out : {std::size_t{3}, std::size_t{7}}) {
      std::size_t differ = 0, far = 0;
      for (std::size_t i = 0; i < got[out].size(); ++i) {
        differ += got[out][i] != t[out].bytes[i] ? 1 : 0;
        far += std::abs(int{got[out][i]} - int{t[out].bytes[i]}) > 1 ? 1 : 0;
      }
      EXPECT_LE(differ, got[out].size() / 500) << out << ", " << name_of(data) << ' ' << block;
      EXPECT_LE(far, got[out].size() / 2000) << out << ", " << name_of(data) << ' ' << block;
    }
  }
}

TEST_F(Sm90Operations, TheProjectionHasTheBitsOfTheCpuEngine) {
  for (const bool scaled : {false, true}) {
    constexpr std::int64_t tokens = 96, k = 128, heads = 3;
    const DataType type = scaled ? fp8_e4m3 : bf16;
    std::vector<Held> t;
    t.push_back(filled(type, {tokens, k}, {k, 1}, random_));
    t.push_back(filled(type, {192 * heads, k}, {k, 1}, random_));
    for (int table = 0; table < 2; ++table) t.push_back(filled(bf16, {tokens, 64}, {64, 1}, random_));
    for (const std::int64_t rows : {tokens, 192 * heads})
      t.push_back(scaled ? filled(fp8_e8m0, {rows, k / 32}, {k / 32, 1}, random_) : Held{});
    const auto out = [&](DataType of, std::int64_t rows, std::int64_t columns) {
      t.push_back(filled(of, {rows, heads, columns}, {heads * columns, columns, 1}, random_));
    };
    out(fp8_e4m3, tokens, 192);
    out(uint8, tokens, 6);
    out(fp8_e4m3, tokens, 192);
    out(uint8, tokens / 32, 192);
    const std::vector<Bytes> got = run("gemm_proj_rope_mxfp8", t, {});
    for (std::size_t i = 6; i < 10; ++i) EXPECT_EQ(got[i], t[i].bytes) << "output " << i << (scaled ? ", scaled" : "");
  }
}

}  // namespace
}  // namespace verglas
