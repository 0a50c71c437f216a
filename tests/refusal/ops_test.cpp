#include <functional>
#include <vector>

#include "refusal/refusal.hpp"
#include "verglas/verglas.hpp"

// Rules op.*: ready-made operations. The rule op.framework is Python's, tests/python/ops.
namespace {

using namespace verglas;
using refusal::said;

/// a (4, 3, 2), b (64, 3, 2), k-major, and the outputs of gemm_swiglu; fp32.
struct Sample {
  std::vector<float> memory = std::vector<float>(4096, 1.0F);
  std::vector<TensorView> views;
  ops::Options options;
  enum { kA, kB, kAb12, kC, kSfa, kSfb, kAmax, kSfc, kNormConst };

  Sample() { views = {of(0, 4, 3), of(64, 64, 3), of(512, 4, 64), of(1024, 4, 32), {}, {}, {}, {}, {}}; }
  TensorView of(std::int64_t at, std::int64_t rows, std::int64_t columns) {
    return TensorView::strided(memory.data() + at, DataType::fp32, {rows, columns, 2}, {columns, 1, rows * columns});
  }
};

/// What the operation says after `change`; "" when it serves the call.
std::string after(const std::function<void(Sample&)>& change) {
  Sample s;
  change(s);
  const std::vector<float> before = s.memory;
  const std::string text = said([&] { ops::Operation::named("gemm_swiglu").run(s.views, s.options); });
  if (!text.empty()) {
    EXPECT_EQ(s.memory, before) << "a refused call wrote";
  }
  return text;
}

using S = Sample;

REFUSES(op_name) {
  EXPECT_EQ(said([] { ops::Operation::named("gemm_swigly"); }),
            "invalid_call [op.name] operation: got 'gemm_swigly', wanted gemm_amax, gemm_swiglu, gemm_srelu, gemm_dsrelu, "
            "gemm_proj_rope_mxfp8");
  EXPECT_EQ(said([] { ops::Operation::named("gemm_swiglu"); }), "");
}

REFUSES(op_missing) {
  EXPECT_EQ(after([](S& s) { s.views[S::kC] = {}; }), "invalid_call [op.missing] gemm_swiglu, c: got no tensor, wanted one");
  EXPECT_EQ(after([](S& s) { s.views[S::kSfa] = s.views[S::kA]; }),
            "invalid_call [op.missing] gemm_swiglu, sfb: got no tensor, wanted one");
  EXPECT_EQ(after([](S& s) { s.views.pop_back(); }), "invalid_call [op.missing] gemm_swiglu: got 8 tensors, wanted 9 places");
  EXPECT_EQ(after([](S&) {}), "");
}

REFUSES(op_rank) {
  EXPECT_EQ(after([](S& s) { s.views[S::kA] = TensorView::dense(s.memory.data(), DataType::fp32, {4, 3}); }),
            "invalid_call [op.rank] gemm_swiglu, a: got shape (4, 3), wanted 3 axes");
  EXPECT_EQ(after([](S& s) {
              for (const int i : {S::kA, S::kB, S::kAb12, S::kC}) s.views[static_cast<std::size_t>(i)].extent[2] = 1;
            }),
            "");
}

REFUSES(op_extent) {
  EXPECT_EQ(after([](S& s) { s.views[S::kB] = s.of(64, 64, 4); }),
            "invalid_call [op.extent] gemm_swiglu, b: got shape (64, 4, 2), wanted (64, 3, 2)");
  EXPECT_EQ(after([](S& s) { s.views[S::kB] = s.of(64, 32, 3); }),
            "invalid_call [op.extent] gemm_swiglu, b: got N = 32, wanted a multiple of 64: runs of 32 rows of up and of gate");
  EXPECT_EQ(after([](S& s) { s.views[S::kC] = s.of(1024, 4, 64); }),
            "invalid_call [op.extent] gemm_swiglu, c: got shape (4, 64, 2), wanted (4, 32, 2)");
  EXPECT_EQ(after([](S& s) { s.views[S::kA] = s.of(0, 4, 3); }), "");
}

REFUSES(op_dtype) {
  EXPECT_EQ(after([](S& s) { s.views[S::kA].dtype = DataType::int8; }),
            "invalid_call [op.dtype] gemm_swiglu, a: got int8, wanted fp32, fp16, bf16, fp8_e4m3, fp8_e5m2");
  EXPECT_EQ(after([](S& s) { s.views[S::kB].dtype = DataType::bf16; }),
            "invalid_call [op.dtype] gemm_swiglu, b: got bf16, wanted fp32 as a");
  const auto with_alpha = [](DataType type, std::int64_t count) {
    Sample s;
    const TensorView alpha = TensorView::dense(s.memory.data() + 2048, type, {count});
    return said([&] { ops::Operation::named("gemm_swiglu").run(s.views, s.options, alpha); });
  };
  EXPECT_EQ(with_alpha(DataType::bf16, 1), "invalid_call [op.dtype] gemm_swiglu, alpha: got bf16, wanted one element of fp32");
  EXPECT_EQ(with_alpha(DataType::fp32, 2),
            "invalid_call [op.dtype] gemm_swiglu, alpha: got several elements, wanted one element of fp32");
  EXPECT_EQ(with_alpha(DataType::fp32, 1), "");
  EXPECT_EQ(after([](S& s) { s.views[S::kA].dtype = s.views[S::kB].dtype = DataType::bf16; }), "");
}

REFUSES(op_layout) {
  EXPECT_EQ(after([](S& s) { s.views[S::kA].stride = {4, 1, 16}; }),
            "invalid_call [op.layout] gemm_swiglu, a: got strides (4, 1, 16) for shape (4, 3, 2), wanted a packed matrix");
  EXPECT_EQ(after([](S& s) { s.views[S::kC].stride = {1, 4, 128}; }),
            "invalid_call [op.layout] gemm_swiglu, c: got strides (1, 4, 128), wanted (32, 1, 128), the major of ab12");
  EXPECT_EQ(after([](S& s) { s.views[S::kA].stride = {1, 4, 12}; }), "");
}

REFUSES(op_option) {
  EXPECT_EQ(after([](S& s) { s.options.acc_dtype = DataType::bf16; }),
            "invalid_call [op.option] gemm_swiglu, acc_dtype: got bf16, wanted fp32");
  EXPECT_EQ(after([](S& s) { s.options.sf_vec_size = 8; }),
            "invalid_call [op.option] gemm_swiglu, sf_vec_size: got 8, wanted 16 or 32");
  EXPECT_EQ(
      after([](S& s) { s.options.mma_tiler_mn = {64, 128}; }),
      "invalid_call [op.option] gemm_swiglu, mma_tiler_mn: got (64, 128), wanted 128 or 256, and a multiple of 32 up to 256");
  EXPECT_EQ(after([](S& s) { s.options.cluster_shape_mn = {3, 1}; }),
            "invalid_call [op.option] gemm_swiglu, cluster_shape_mn: got (3, 1), wanted powers of two, 16 blocks at most");
  EXPECT_EQ(after([](S& s) {
              s.options.sf_vec_size = 32;
              s.options.mma_tiler_mn = {256, 96};
              s.options.cluster_shape_mn = {2, 1};
            }),
            "");
  EXPECT_EQ(after([](S& s) { s.options = {.mma_tiler_mn = {256, 128}, .cluster_shape_mn = {1, 2}}; }),
            "invalid_call [op.option] gemm_swiglu, cluster_shape_mn: got (1, 2), wanted an even number of tiles of 256 rows");
  EXPECT_EQ(after([](S& s) { s.options = {.mma_tiler_mn = {128, 128}, .cluster_shape_mn = {2, 1}}; }),
            "invalid_call [op.option] gemm_swiglu, cluster_shape_mn: got (2, 1), wanted (1, 1) with tiles of 128 rows");
  EXPECT_EQ(after([](S& s) { s.options = {.mma_tiler_mn = {128, 128}, .cluster_shape_mn = {1, 1}}; }), "");
}

// Scales of blocks are told what they are, and what they would have to be.
TEST(RefusesScales, op_layout) {
  Sample s;
  const auto with = [&](TensorView scales) {
    s.views[S::kA] = TensorView::dense(nullptr, DataType::fp8_e4m3, {4, 32, 1});
    s.views[S::kB] = TensorView::dense(nullptr, DataType::fp8_e4m3, {64, 32, 1});
    s.views[S::kSfa] = scales;
    s.views[S::kSfb] = TensorView::dense(nullptr, DataType::fp8_e8m0, {1, 1, 1, 32, 4, 4});
    for (const int i : {S::kAb12, S::kC}) s.views[static_cast<std::size_t>(i)] = {};
    return said([&] { ops::Operation::named("gemm_swiglu").outputs(s.views, {.sf_vec_size = 32}); });
  };
  EXPECT_EQ(with(TensorView::dense(nullptr, DataType::fp8_e8m0, {4, 1})),
            "invalid_call [op.extent] gemm_swiglu, sfa: got shape (4, 1), wanted (32, 4, 1, 4, 1, 1) or (1, 1, 1, 32, 4, 4)");
  EXPECT_EQ(with(TensorView::strided(nullptr, DataType::fp8_e8m0, {1, 1, 1, 32, 4, 4}, {512, 512, 512, 16, 1, 4})),
            "invalid_call [op.layout] gemm_swiglu, sfa: got strides (512, 512, 512, 16, 1, 4), wanted (512, 512, 512, 16, 4, 1): "
            "atoms one after another");
  EXPECT_EQ(with(TensorView::dense(nullptr, DataType::fp8_e8m0, {1, 1, 1, 32, 4, 4})), "");
}

REFUSES(op_device) {
  EXPECT_EQ(after([](S& s) { s.views[S::kC].device = {DeviceType::cuda, 1}; }),
            "invalid_call [op.device] gemm_swiglu, c: got memory on CUDA device 1, wanted the host as the first tensor");
  EXPECT_EQ(after([](S& s) { s.views[S::kC].device = {}; }), "");
}

REFUSES(op_sample) {
  Sample s;
  ops::Prepared op(ops::Operation::named("gemm_swiglu"), s.views);
  EXPECT_EQ(said([&] { op.execute(s.views); }), "invalid_graph [plan.stage] gemm_swiglu is not compiled yet: call compile()");
  op.compile();
  std::vector<TensorView> other = s.views;
  other[S::kC].dtype = DataType::bf16;
  EXPECT_EQ(said([&] { op.execute(other); }), "invalid_call [op.sample] gemm_swiglu, c: got bf16, wanted fp32 as the sample");
  other = s.views;
  other[S::kA] = TensorView::strided(s.memory.data(), DataType::fp32, {4, 3, 2}, {1, 4, 12});
  EXPECT_EQ(said([&] { op.execute(other); }),
            "invalid_call [op.sample] gemm_swiglu, a: got axis 0 contiguous, wanted axis 1 contiguous as the sample");
  other = s.views;
  other = s.views;
  for (const int i : {S::kA, S::kB, S::kAb12, S::kC}) other[static_cast<std::size_t>(i)].extent[2] = 1;
  other[S::kC].dtype = DataType::fp32;
  EXPECT_EQ(said([&] { op.execute(other); }),
            "invalid_call [op.sample] gemm_swiglu: got a batch of 1, wanted a batch that is not 1 as the samples");
  EXPECT_EQ(said([&] { op.execute(s.views); }), "");
}

}  // namespace
