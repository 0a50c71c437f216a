#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <random>

#include "oracle/formats.hpp"
#include "support/gpu.hpp"
#include "verglas/verglas.hpp"

// Operands and outputs of the epilogue that travel through shared memory, on a real device, bit for bit: small integers, every
// plan, both orders, ragged extents, gaps between lines that keep their poison.
namespace verglas {
namespace {

constexpr Device kGpu{DeviceType::cuda, 0};

/// Declared axes (L, rows, columns).
struct Laid {
  std::vector<std::int64_t> dim, stride;
  DataType type;
  std::int64_t elements;

  Laid(std::int64_t l, std::int64_t rows, std::int64_t columns, bool along_rows, std::int64_t pad, DataType t) : type(t) {
    const std::int64_t pitch = (along_rows ? rows : columns) + pad, lines = along_rows ? columns : rows;
    dim = {l, rows, columns};
    stride = {pitch * lines, along_rows ? 1 : pitch, along_rows ? pitch : 1};
    elements = l * pitch * lines;
  }
  std::size_t size() const { return static_cast<std::size_t>(bytes_of(type)); }
  std::size_t at(std::int64_t l, std::int64_t r, std::int64_t c) const {
    return static_cast<std::size_t>((dim[0] == 1 ? 0 : l) * stride[0] + (dim[1] == 1 ? 0 : r) * stride[1] +
                                    (dim[2] == 1 ? 0 : c) * stride[2]) *
           size();
  }
  void put(std::vector<std::uint8_t>& bytes, std::int64_t l, std::int64_t r, std::int64_t c, double v) const {
    const std::uint64_t bits = oracle::encode(static_cast<oracle::Format>(type), v);
    std::memcpy(bytes.data() + at(l, r, c), &bits, size());
  }
};

struct Input {
  Laid laid;
  std::vector<int> value;
  std::vector<std::uint8_t> bytes;
  Input(Laid l, std::mt19937& g) : laid(std::move(l)), bytes(static_cast<std::size_t>(laid.elements) * laid.size(), 0xFF) {
    std::uniform_int_distribution<int> draw(-3, 3);
    for (std::int64_t i = 0; i < laid.dim[0]; ++i)
      for (std::int64_t r = 0; r < laid.dim[1]; ++r)
        for (std::int64_t c = 0; c < laid.dim[2]; ++c) {
          value.push_back(draw(g));
          laid.put(bytes, i, r, c, value.back());
        }
  }
  int at(std::int64_t l, std::int64_t r, std::int64_t c) const {
    const auto pick = [](std::int64_t x, std::int64_t extent) { return extent == 1 ? 0 : x; };
    return value[static_cast<std::size_t>((pick(l, laid.dim[0]) * laid.dim[1] + pick(r, laid.dim[1])) * laid.dim[2] +
                                          pick(c, laid.dim[2]))];
  }
};

struct Case {
  std::int64_t l, m, n, k;
  DataType d = DataType::bf16, residual = DataType::bf16;
  bool d_along_m = false, residual_along_m = false, second_along_m = false;
  int outputs = 2;  ///< h = a·b·scale + bias + residual; relu(h); −h
  bool has_residual = true, has_vectors = true, one_residual = false;
  std::int64_t pad = 0;
  DataType second = DataType::not_set;  ///< of the second output where it has a type of its own
  DataType of_second() const { return second == DataType::not_set ? d : second; }
};
std::ostream& operator<<(std::ostream& o, const Case& c) {
  return o << c.l << 'x' << c.m << 'x' << c.n << 'x' << c.k << ' ' << name_of(c.d) << (c.d_along_m ? " along m" : "") << ", "
           << c.outputs << " outputs, the second " << name_of(c.of_second()) << (c.second_along_m ? ", the second along m" : "")
           << (c.has_residual ? ", residual " + std::string(name_of(c.residual)) : "") << (c.residual_along_m ? " along m" : "")
           << (c.one_residual ? " for all batches" : "") << (c.has_vectors ? ", vectors" : "") << ", pad " << c.pad;
}

class Sm90Staging : public ::testing::TestWithParam<Case> {};

TEST_P(Sm90Staging, IsExactOnEveryPlan) {
  VERGLAS_NEEDS_GPU();
  const Case& c = GetParam();
  const cuda::DriverTable& driver = **cuda::driver();
  const cuda::PrimaryContext primary(driver, 0);
  const cuda::CurrentContext current(driver, primary.handle());
  std::mt19937 g(static_cast<unsigned>(c.m * 7919 + c.n * 104729 + c.k));
  const Input a(Laid(c.l, c.m, c.k, false, 0, DataType::bf16), g), b(Laid(c.l, c.k, c.n, true, 0, DataType::bf16), g);
  const Input residual(Laid(c.one_residual ? 1 : c.l, c.m, c.n, c.residual_along_m, c.pad, c.residual), g);
  const Input bias(Laid(1, 1, c.n, false, 0, DataType::bf16), g), scale(Laid(c.l, c.m, 1, false, 0, DataType::fp32), g);
  std::vector<Laid> outputs = {Laid(c.l, c.m, c.n, c.d_along_m, c.pad, c.d)};
  if (c.outputs > 1) outputs.emplace_back(c.l, c.m, c.n, c.second_along_m, c.pad, c.of_second());
  if (c.outputs > 2) outputs.emplace_back(c.l, c.m, c.n, false, c.pad, DataType::fp32);

  Graph graph;
  std::vector<const Input*> inputs = {&a, &b};
  const auto tensor = [&](const char* name, const Input& x) {
    if (&x != &a && &x != &b) inputs.push_back(&x);
    return graph.tensor({.name = name, .dim = x.laid.dim, .stride = x.laid.stride, .data_type = x.laid.type});
  };
  Tensor h = graph.matmul(tensor("a", a), tensor("b", b));
  if (c.has_vectors) h = graph.mul(h, tensor("scale", scale));
  if (c.has_vectors) h = graph.add(h, tensor("bias", bias));
  h = c.has_residual ? graph.add(h, tensor("residual", residual)) : graph.pointwise(PointwiseMode::neg, {h}, {});
  const auto mark = [&](Tensor t, std::size_t i) {
    t.set_output(true).set_data_type(outputs[i].type).set_dim(outputs[i].dim).set_stride(outputs[i].stride);
  };
  mark(h, 0);
  if (c.outputs > 1) mark(graph.relu(h), 1);
  if (c.outputs > 2) mark(graph.pointwise(PointwiseMode::neg, {h}, {}), 2);

  std::vector<std::vector<std::uint8_t>> want;
  for (const Laid& x : outputs) want.emplace_back(static_cast<std::size_t>(x.elements) * x.size(), 0xEE);
  for (std::int64_t l = 0; l < c.l; ++l)
    for (std::int64_t m = 0; m < c.m; ++m)
      for (std::int64_t n = 0; n < c.n; ++n) {
        double v = 0;
        for (std::int64_t k = 0; k < c.k; ++k) v += a.at(l, m, k) * b.at(l, k, n);
        if (c.has_vectors) v = v * scale.at(l, m, n) + bias.at(l, m, n);
        v = c.has_residual ? v + residual.at(l, m, n) : -v;
        const auto format = static_cast<oracle::Format>(c.d);
        const double held = oracle::decode(format, oracle::encode(format, v));
        outputs[0].put(want[0], l, m, n, held);
        if (c.outputs > 1) outputs[1].put(want[1], l, m, n, held > 0 ? held : 0.0);
        if (c.outputs > 2) outputs[2].put(want[2], l, m, n, -held);
      }

  const PlanList plans = graph.plans({.device = kGpu, .deselect_engines = {"cpu", "cublaslt"}});
  ASSERT_GE(plans.size(), 1U) << plans.unsupported_text();
  const std::vector<CompiledPlan> compiled = support::compile_each_tile_once(plans);
  // Two sets of buffers: the second call finds stages and barriers as the first left them, and maps of other addresses.
  std::deque<support::DeviceBuffer> memory[2];
  std::vector<void*> addresses[2];
  for (std::size_t set = 0; set < 2; ++set) {
    for (const Input* x : inputs) memory[set].emplace_back(driver, x->bytes.size(), 0xFF).upload(x->bytes.data());
    for (const auto& bytes : want) memory[set].emplace_back(driver, bytes.size(), 0xEE);
    for (const support::DeviceBuffer& x : memory[set]) addresses[set].push_back(x.data());
  }
  for (const CompiledPlan& plan : compiled) {
    SCOPED_TRACE(plan.name());
    for (const std::size_t set : {0, 1, 0}) {
      for (std::size_t i = inputs.size(); i < memory[set].size(); ++i) memory[set][i].fill(0xEE);
      const Status s = plan.execute(addresses[set]);
      std::vector<TensorView> views;
      for (void* p : addresses[set]) views.push_back(TensorView::address(p));
      ASSERT_TRUE(s.ok()) << plan.explain(s, views).what();
      ASSERT_EQ(driver.cuCtxSynchronize(), cuda::CUDA_SUCCESS);
      for (std::size_t i = 0; i < want.size(); ++i) {
        const auto got = memory[set][inputs.size() + i].download();
        const auto wrong = std::mismatch(got.begin(), got.end(), want[i].begin()).first - got.begin();
        ASSERT_EQ(static_cast<std::size_t>(wrong), got.size())
            << "output " << i << " byte " << wrong << " of line "
            << wrong / static_cast<std::ptrdiff_t>(outputs[i].size()) / std::max(outputs[i].stride[1], outputs[i].stride[2]);
      }
      for (const support::DeviceBuffer& x : memory[set]) ASSERT_EQ(x.touched_guard_bytes(), 0);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Cases, Sm90Staging,
    ::testing::Values(
        Case{.l = 1, .m = 700, .n = 904, .k = 200}, Case{.l = 1, .m = 130, .n = 1100, .k = 24, .pad = 4},
        Case{.l = 3, .m = 72, .n = 333, .k = 64, .one_residual = true, .pad = 3},
        Case{.l = 2, .m = 136, .n = 300, .k = 72, .d_along_m = true, .residual_along_m = true, .second_along_m = true},
        Case{.l = 1, .m = 203, .n = 270, .k = 64, .d_along_m = true, .residual_along_m = true, .pad = 5},
        Case{.l = 1, .m = 333, .n = 520, .k = 136, .d = DataType::fp32, .residual = DataType::fp32},
        Case{.l = 1,
             .m = 203,
             .n = 270,
             .k = 64,
             .d = DataType::fp32,
             .residual = DataType::fp32,
             .d_along_m = true,
             .residual_along_m = true,
             .second_along_m = true,
             .pad = 1},
        Case{.l = 1, .m = 520, .n = 640, .k = 64, .d = DataType::fp16, .residual = DataType::bf16, .outputs = 3},
        Case{.l = 1, .m = 700, .n = 904, .k = 200, .outputs = 1, .has_vectors = false},
        Case{.l = 1, .m = 700, .n = 904, .k = 200, .d_along_m = true, .outputs = 1, .has_residual = false},
        Case{.l = 1, .m = 700, .n = 904, .k = 200, .second_along_m = true, .has_residual = false, .has_vectors = false},
        Case{.l = 1, .m = 264, .n = 520, .k = 64, .residual_along_m = true}, Case{.l = 1, .m = 1, .n = 8, .k = 8},
        Case{.l = 1, .m = 2500, .n = 3000, .k = 64},
        Case{.l = 1, .m = 333, .n = 520, .k = 136, .d = DataType::fp32, .second = DataType::bf16},
        Case{
            .l = 1, .m = 203, .n = 270, .k = 64, .d = DataType::fp32, .has_residual = false, .pad = 18, .second = DataType::bf16},
        Case{.l = 2,
             .m = 136,
             .n = 300,
             .k = 72,
             .d = DataType::fp32,
             .d_along_m = true,
             .second_along_m = true,
             .has_residual = false,
             .second = DataType::fp16},
        Case{.l = 1, .m = 264, .n = 520, .k = 64, .d = DataType::fp32, .second_along_m = true, .second = DataType::bf16},
        Case{.l = 1,
             .m = 700,
             .n = 900,
             .k = 24,
             .has_residual = false,
             .has_vectors = false,
             .pad = 12,
             .second = DataType::fp8_e4m3},
        Case{.l = 2, .m = 130, .n = 528, .k = 24, .has_vectors = false, .second = DataType::fp8_e5m2}));

}  // namespace
}  // namespace verglas
