#include <functional>
#include <vector>

#include "chain/analyse.hpp"
#include "graph/ir.hpp"
#include "recipe/recipe.hpp"
#include "refusal/refusal.hpp"
#include "verglas/verglas.hpp"

// Rules call.*: one call of a compiled plan. Every refused call leaves the outputs as they were.
namespace {

using namespace verglas;

/// y (2, 4, 6) = a (2, 4, 8) · b (1, 8, 6) + bias (1, 1, 6), and s, the sum of y over its rows; fp32.
struct Sample {
  Graph g{{.io_data_type = DataType::fp32}};
  std::vector<float> memory = std::vector<float>(4096, 1.0F);
  std::vector<TensorView> views;
  enum { kA, kB, kBias, kY, kS };

  Sample() {
    const Tensor a = g.tensor({.name = "a", .dim = {2, 4, 8}, .stride = {32, 8, 1}});
    const Tensor b = g.tensor({.name = "b", .dim = {1, 8, 6}, .stride = {48, 6, 1}});
    const Tensor bias = g.tensor({.name = "bias", .dim = {1, 1, 6}, .stride = {6, 6, 1}});
    Tensor y = g.add(g.matmul(a, b), bias);
    y.set_name("y").set_output(true);
    g.reduction(y, ReductionMode::add).set_name("s").set_dim({2, 1, 6}).set_output(true);
    float* const p = memory.data();
    views = {TensorView::dense(p, DataType::fp32, {2, 4, 8}), TensorView::dense(p + 64, DataType::fp32, {1, 8, 6}),
             TensorView::dense(p + 128, DataType::fp32, {1, 1, 6}), TensorView::dense(p + 256, DataType::fp32, {2, 4, 6}),
             TensorView::dense(p + 512, DataType::fp32, {2, 1, 6})};
  }
};

/// What the CPU plan says after `change`; "" when it serves the call.
std::string after(const std::function<void(std::vector<TensorView>&)>& change) {
  Sample s;
  const CompiledPlan plan = s.g.compile();
  change(s.views);
  const std::vector<float> before = s.memory;
  const Status status = plan.execute(s.views);
  if (status.ok()) return {};
  EXPECT_EQ(s.memory, before) << "a refused call wrote";
  return plan.explain(status, s.views).what();
}

/// With addresses taken out of the text.
std::string without_addresses(std::string text) {
  for (std::size_t at = text.find("0x"); at != std::string::npos; at = text.find("0x", at + 1)) {
    std::size_t end = at + 2;
    while (end < text.size() && std::isxdigit(static_cast<unsigned char>(text[end])) != 0) ++end;
    text.replace(at, end - at, "P");
  }
  return text;
}

using Views = std::vector<TensorView>;

REFUSES(call_operand_count) {
  EXPECT_EQ(after([](Views& v) { v.pop_back(); }), "invalid_call [call.operand_count] call: got 4 buffers, wanted 5");
  EXPECT_EQ(after([](Views&) {}), "");
}

REFUSES(call_null) {
  EXPECT_EQ(after([](Views& v) { v[Sample::kBias].data = nullptr; }),
            "invalid_call [call.null] aux 'bias': got a null address for extents (1, 1, 6), wanted an address");
  EXPECT_EQ(after([](Views& v) {  // K = 0: operands have no element
              v[Sample::kA].extent[2] = v[Sample::kB].extent[1] = 0;
              v[Sample::kA].data = v[Sample::kB].data = nullptr;
            }),
            "");
}

REFUSES(call_read_only) {
  EXPECT_EQ(after([](Views& v) { v[Sample::kY].read_only = true; }),
            "invalid_call [call.read_only] output 'y': got a read-only buffer, wanted one that can be written");
  EXPECT_EQ(after([](Views& v) { v[Sample::kA].read_only = true; }), "");
}

REFUSES(call_rank) {
  EXPECT_EQ(after([](Views& v) { v[Sample::kB].rank = 1; }),
            "invalid_call [call.rank] b 'b': got rank 1 from shape (1), wanted rank 3, or 2 where the batch is 1");
  EXPECT_EQ(after([](Views& v) { v[Sample::kB] = TensorView::dense(v[Sample::kB].data, DataType::fp32, {8, 6}); }), "");
}

REFUSES(call_operand_device) {
  EXPECT_EQ(after([](Views& v) { v[Sample::kA].device = {DeviceType::cuda, 1}; }),
            "invalid_call [call.operand_device] a 'a': got memory on cuda:1, wanted memory on the host");
  EXPECT_EQ(after([](Views& v) { v[Sample::kA].device = {DeviceType::unknown, 0}; }), "");
}

REFUSES(call_dtype) {
  EXPECT_EQ(after([](Views& v) { v[Sample::kA].dtype = DataType::int32; }),
            "invalid_call [call.dtype] a 'a': got int32, wanted fp32 as declared");
  EXPECT_EQ(after([](Views& v) { v[Sample::kA] = TensorView::address(v[Sample::kA].data); }), "");
}

REFUSES(call_stride) {
  EXPECT_EQ(after([](Views& v) { v[Sample::kA].stride[1] = -8; }),
            "invalid_call [call.stride] a 'a': got strides (32, -8, 1), wanted none below 0");
  EXPECT_EQ(after([](Views& v) { v[Sample::kB].stride[0] = -48; }), "");  // an axis of extent 1 is not walked
}

REFUSES(call_overflow) {
  EXPECT_EQ(
      after([](Views& v) { v[Sample::kA].stride[0] = std::int64_t{1} << 61; }),
      "invalid_call [call.overflow] a 'a': got shape (2, 4, 8) with strides (2305843009213693952, 8, 1), wanted no negative "
      "extent and a byte offset below 2^63");
  EXPECT_EQ(after([](Views& v) { v[Sample::kB].stride[0] = std::int64_t{1} << 61; }), "");
}

REFUSES(call_extent_limit) {
  const auto columns = [](std::int64_t n) {
    return [n](Views& v) {
      v[Sample::kB].extent[2] = n;
      v[Sample::kB].stride[2] = 0;
    };
  };
  EXPECT_EQ(after(columns(std::int64_t{1} << 31)),
            "invalid_call [call.extent_limit] call: got L = 2, M = 4, N = 2147483648, K = 8, wanted each below 2147483648");
  EXPECT_NE(after(columns((std::int64_t{1} << 31) - 1)).find("[call.output_extent]"), std::string::npos);  // the next rule
}

REFUSES(call_batch) {
  EXPECT_EQ(after([](Views& v) { v[Sample::kB].extent[0] = 2; }),
            "invalid_call [call.batch] b 'b': got batch 2 from shape (2, 8, 6), wanted batch 1");
  EXPECT_EQ(after([](Views& v) { v[Sample::kA].extent[0] = v[Sample::kY].extent[0] = v[Sample::kS].extent[0] = 1; }), "");
}

REFUSES(call_extent) {
  EXPECT_EQ(after([](Views& v) { v[Sample::kB].extent[1] = 7; }),
            "invalid_call [call.extent] b 'b': got K = 7 from shape (1, 7, 6), wanted 8 as in shape (1, 8, 6)");
  EXPECT_EQ(after([](Views& v) { v[Sample::kB].extent[1] = v[Sample::kA].extent[2] = 7; }), "");
}

REFUSES(call_alignment) {
  EXPECT_EQ(without_addresses(after([](Views& v) { v[Sample::kY].data = static_cast<char*>(v[Sample::kY].data) + 2; })),
            "invalid_call [call.alignment] output 'y': got address P, wanted a multiple of 4 bytes");
  EXPECT_EQ(after([](Views& v) { v[Sample::kY].data = static_cast<char*>(v[Sample::kY].data) + 4; }), "");
}

REFUSES(call_output_extent) {
  EXPECT_EQ(after([](Views& v) { v[Sample::kS].extent[1] = 4; }),
            "invalid_call [call.output_extent] reduction 's': got M = 4 from shape (2, 4, 6), wanted 1 as in shape (2, 1, 6)");
  EXPECT_EQ(after([](Views& v) { v[Sample::kA].extent[1] = v[Sample::kY].extent[1] = 3; }), "");
}

REFUSES(call_span) {
  EXPECT_EQ(
      after([](Views& v) { v[Sample::kY].observed_bytes = 191; }),
      "invalid_call [call.span] output 'y': got a buffer of 191 bytes, wanted 192 bytes for shape (2, 4, 6) with strides (24, "
      "6, 1)");
  EXPECT_EQ(after([](Views& v) { v[Sample::kY].observed_bytes = 192; }), "");
}

REFUSES(call_aux_extent) {
  EXPECT_EQ(after([](Views& v) { v[Sample::kBias] = TensorView::dense(v[Sample::kBias].data, DataType::fp32, {5}); }),
            "invalid_call [call.aux_extent] aux 'bias': got shape (5), wanted (1, 1, 6) or the same without its unit axes");
  EXPECT_EQ(after([](Views& v) { v[Sample::kBias] = TensorView::dense(v[Sample::kBias].data, DataType::fp32, {6}); }), "");
}

REFUSES(call_overlap) {
  EXPECT_EQ(without_addresses(after([](Views& v) { v[Sample::kS].data = static_cast<float*>(v[Sample::kY].data) + 47; })),
            "invalid_call [call.overlap] reduction 's' and output 'y': got bytes P to P, which meet P to P of the other operand, "
            "wanted memory of its own");
  EXPECT_EQ(after([](Views& v) { v[Sample::kS].data = static_cast<float*>(v[Sample::kY].data) + 48; }), "");
}

TEST(Overlap, TwoOutputsOfOneLayoutMayInterleave) {
  Graph g{{.io_data_type = DataType::fp32}};
  const Tensor a = g.tensor({.name = "a", .dim = {2, 3, 1}, .stride = {3, 1, 1}});
  const Tensor b = g.tensor({.name = "b", .dim = {2, 1, 4}, .stride = {4, 4, 1}});
  Tensor x = g.matmul(a, b);
  Tensor y = g.relu(x);
  x.set_name("x").set_output(true);
  y.set_name("y").set_output(true);
  const CompiledPlan plan = g.compile();
  std::vector<float> in(32, -2.0F), out(64, 9.0F);
  // Columns 0 to 3 of each 8 are x, 4 to 7 are y.
  const auto half = [&](std::int64_t first) {
    return TensorView::strided(out.data() + first, DataType::fp32, {2, 3, 4}, {8, 16, 1});
  };
  Views views = {TensorView::dense(in.data(), DataType::fp32, {2, 3, 1}), TensorView::dense(in.data(), DataType::fp32, {2, 1, 4}),
                 half(0), half(4)};
  plan.run(views);
  for (std::size_t i = 0; i < 48; ++i) EXPECT_EQ(out[i], 4.0F) << i;
  EXPECT_EQ(out[48], 9.0F);
  const auto refused = [&](const TensorView& other) {
    views[3] = other;
    return plan.execute(views).code == ErrorCode::invalid_call;
  };
  EXPECT_TRUE(refused(half(3))) << "they meet";
  EXPECT_TRUE(refused(half(0))) << "they are one";
  EXPECT_TRUE(refused(TensorView::strided(out.data() + 4, DataType::fp32, {2, 3, 4}, {24, 8, 1}))) << "of another layout";
  views[3] = TensorView::strided(reinterpret_cast<char*>(out.data()) + 18, DataType::fp32, {2, 3, 4}, {8, 16, 1});
  EXPECT_EQ(plan.execute(views).code, ErrorCode::invalid_call) << "half an element apart";
  views[3] = half(4);
  EXPECT_EQ(plan.execute(views).code, ErrorCode::ok);
}

REFUSES(call_output_alias) {
  EXPECT_EQ(
      after([](Views& v) { v[Sample::kY].stride[1] = 5; }),
      "invalid_call [call.output_alias] output 'y': got shape (2, 4, 6) with strides (24, 5, 1), wanted strides that put no two "
      "elements in one place");
  EXPECT_EQ(after([](Views& v) { v[Sample::kY].stride[1] = 7, v[Sample::kY].stride[0] = 27; }), "");
}

// ---- Rules that an engine adds to the contract: the same evaluator with the requirements of a GPU.

class Idle final : public recipe::Launcher {
 public:
  explicit Idle(Device now) : now_(now) {}
  Status launch(const recipe::Binding&, const recipe::Call&) const noexcept override { return {}; }
  Device current_device(Device, bool&) const noexcept override { return now_; }
  Error failure(Status) const override { return {ErrorCode::internal, "internal", "never fails"}; }

 private:
  Device now_;
};

struct Demand {
  recipe::Requirements::Matrix a = {};
  WorkspaceSize workspace = {};
  Device now = {DeviceType::cuda, 0};
  Workspace given = {};
  recipe::Tiles tiles = {};
};

std::string demanded(const Demand& d, const std::function<void(Views&)>& change = [](Views&) {}) {
  Sample s;
  s.g.validate();
  const auto chain = chain::analyse(s.g.data());
  recipe::Requirements q;
  q.device = {DeviceType::cuda, 0};
  q.workspace = d.workspace;
  q.matrix = {{0, d.a}};
  q.tiles = d.tiles;
  const recipe::Recipe recipe = recipe::build(*chain, q);
  for (TensorView& v : s.views) v.device = q.device;
  change(s.views);
  const Idle launcher(d.now);
  const recipe::Call call{s.views, {}, d.given};
  const Status status = recipe::execute(recipe, launcher, call);
  return status.ok() ? "" : recipe::explain(recipe, *chain, launcher, status, call).what();
}

REFUSES(call_device) {
  EXPECT_EQ(demanded({.now = {DeviceType::cuda, 1}}),
            "invalid_call [call.device] call: got current device cuda:1, wanted cuda:0");
  EXPECT_EQ(demanded({}), "");
}

REFUSES(call_major) {
  const auto transposed = [](Views& v) { v[Sample::kA].stride = {32, 1, 4}; };
  EXPECT_EQ(
      demanded({.a = {.k_major = true}}, transposed),
      "invalid_call [call.major] a 'a': got stride 4 along K from shape (2, 4, 8) with strides (32, 1, 4), wanted stride 1 along "
      "it, as declared");
  EXPECT_EQ(demanded({.a = {.k_major = false}}, transposed), "");
}

REFUSES(call_modulus) {
  EXPECT_EQ(demanded({.a = {.modulus = 16}}), "invalid_call [call.modulus] a 'a': got K = 8, wanted a multiple of 16");
  EXPECT_EQ(demanded({.a = {.modulus = 8}}), "");
}

REFUSES(call_outer_stride) {
  EXPECT_EQ(demanded({.a = {.stride_multiple = 16}}, [](Views& v) { v[Sample::kA].stride[1] = 9; }),
            "invalid_call [call.outer_stride] a 'a': got a stride of 9 elements of 4 bytes along M, wanted a multiple of 16 "
            "bytes below "
            "2^40");
  EXPECT_EQ(demanded({.a = {.stride_multiple = 16}}, [](Views& v) { v[Sample::kA].stride[1] = 12; }), "");
  // Two elements of fp4 in a byte: strides are still in elements.
  const auto packed = [](std::int64_t pitch) -> std::string {
    Graph g;
    const Tensor a = g.tensor({.name = "a", .dim = {4, 64}, .stride = {64, 1}, .data_type = DataType::fp4_e2m1});
    const Tensor scale = g.tensor({.name = "scale", .dim = {4, 4}, .stride = {4, 1}, .data_type = DataType::fp8_e4m3});
    const Tensor b = g.tensor({.name = "b", .dim = {64, 2}, .stride = {2, 1}, .data_type = DataType::fp32});
    g.matmul(g.block_scale_dequantize(a, scale, {1, 16}), b).set_output(true);
    g.validate();
    const auto chain = chain::analyse(g.data());
    recipe::Requirements q;
    q.matrix = {{chain->inputs[0].role, {.stride_multiple = 32}}};
    const recipe::Recipe recipe = recipe::build(*chain, q);
    alignas(16) static unsigned char memory[4096];
    const auto at = [](int i) { return static_cast<void*>(memory + 1024 * i); };
    const std::vector<TensorView> views = {
        TensorView::strided(at(0), DataType::fp4_e2m1, {4, 64}, {pitch, 1}), TensorView::dense(at(1), DataType::fp32, {64, 2}),
        TensorView::dense(at(2), DataType::fp8_e4m3, {4, 4}), TensorView::dense(at(3), DataType::bf16, {4, 2})};
    const Idle launcher({});
    const recipe::Call call{views, {}, {}};
    const Status status = recipe::execute(recipe, launcher, call);
    return status.ok() ? "" : recipe::explain(recipe, *chain, launcher, status, call).what();
  };
  EXPECT_EQ(packed(80),
            "invalid_call [call.outer_stride] a 'a': got a stride of 80 elements of half a byte along M, wanted a multiple of 16 "
            "bytes below 2^40");
  EXPECT_EQ(packed(96), "");
}

REFUSES(call_grid) {
  // L = 2 and M = 4 as in the sample, at addresses that nothing reads.
  const auto wide = [](std::int64_t n) {
    return [n](Views& v) {
      const auto set = [&](int i, std::int64_t batches, std::int64_t rows) {
        TensorView& x = v[static_cast<std::size_t>(i)];
        x.data = reinterpret_cast<void*>(std::uintptr_t{1} << 40 << i);
        x.extent = {batches, rows, n};
        x.stride = {rows * n, n, 1};
      };
      set(Sample::kB, 1, 8);
      set(Sample::kBias, 1, 1);
      set(Sample::kY, 2, 4);
      set(Sample::kS, 2, 1);
    };
  };
  EXPECT_EQ(
      demanded({.tiles = {1, 1}}, wide(1 << 28)),
      "invalid_call [call.grid] call: got L = 2, M = 4, N = 268435456 in tiles of 1 x 1, wanted fewer than 2147483648 tiles");
  EXPECT_EQ(demanded({.tiles = {1, 1}}, wide((1 << 28) - 1)), "");
  EXPECT_EQ(demanded({.tiles = {3, 2}}, wide(1 << 28)), "");
  EXPECT_NE(demanded({.tiles = {3, 2}}, wide((1 << 30) + 1)), "");  // 2 x 2 x (2^29 + 1) tiles
  EXPECT_EQ(demanded({.tiles = {4, 2}}, wide((1 << 30) + 1)), "");
  EXPECT_EQ(demanded({}, wide(1 << 28)), "");
}

REFUSES(call_workspace) {
  alignas(256) static char memory[512];
  const WorkspaceSize size{256, 128};
  EXPECT_EQ(without_addresses(demanded({.workspace = size})),
            "invalid_call [call.workspace] workspace: got 0 bytes at P, wanted 256 bytes at a multiple of 128");
  EXPECT_EQ(demanded({.workspace = size, .given = {memory, 256}}), "");
  EXPECT_NE(demanded({.workspace = size, .given = {memory, 255}}), "");
  EXPECT_NE(demanded({.workspace = size, .given = {memory + 64, 256}}), "");
}

}  // namespace
