#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <optional>
#include <string>

#include "cuda/context.hpp"
#include "engine/sm90/parameter_block.hpp"
#include "oracle/judge.hpp"
#include "support/fake_nvrtc.hpp"
#include "support/judged.hpp"
#include "support/random.hpp"
#include "support/recording_driver.hpp"
#include "verglas/verglas.hpp"

// Legal and illegal calls of plans for a GPU, on a driver in memory. Refused exactly where the independent judge says illegal, by
// a rule that the judge has found too, and then nothing is enqueued; served by one kernel whose parameters are what the views
// say.
namespace {

using namespace support;
using verglas::DataType;
using verglas::TensorView;
using verglas::sm90::ParameterBlock;
using Dims = std::vector<std::int64_t>;

constexpr int kShards = 4;
constexpr int kCallsOfAPlan = 60;
constexpr std::int64_t kCalls = 24000;
constexpr unsigned kMultiprocessors = 132;

std::int64_t calls_in_all() { return std::getenv("VERGLAS_SLOW") != nullptr ? 120000 : kCalls; }

enum Operand { kA, kB, kD };

/// One operand as declared: user axes (batch, rows, columns), the batch left out at rank 2.
struct Declared {
  Dims dims, strides;
  DataType dtype = DataType::bf16;
};

struct Problem {
  std::int64_t l = 1, m = 1, n = 1, k = 1;
  Dims dims_of(int operand, bool a_repeats, bool b_repeats) const {
    if (operand == kA) return {a_repeats ? 1 : l, m, k};
    if (operand == kB) return {b_repeats ? 1 : l, k, n};
    return {l, m, n};
  }
};

/// Strides that put `inner` (an axis from the end: 1 or 2) next to each other and round the rows up to `unit` elements; inner 0:
/// no axis lies dense.
Dims strides_of(const Dims& dims, int inner, std::int64_t unit, std::int64_t gap) {
  const std::size_t n = dims.size(), in = n - static_cast<std::size_t>(inner == 2 ? 2 : 1), out = in == n - 1 ? n - 2 : n - 1;
  const auto up = [&](std::int64_t x) { return (std::max<std::int64_t>(x, 1) + unit - 1) / unit * unit + gap * unit; };
  Dims s(n, 1);
  s[in] = inner == 0 ? 3 : 1;
  s[out] = up(dims[in] * s[in]);
  if (n == 3) s[0] = up(dims[out] * s[out]);
  return s;
}

/// One graph, its plan and its reference.
struct Case {
  Problem declared;
  bool a_repeats = false, b_repeats = false;
  int rank = 3;
  int inner[3] = {1, 1, 1};
  std::int64_t unit[3] = {8, 8, 8};
  DataType input = DataType::bf16, output = DataType::bf16;
  oracle::Graph reference;
  verglas::CompiledPlan plan;
  std::string text;
};

std::string text_of(const Dims& d) {
  std::string s = "(";
  for (const std::int64_t x : d) s += (s.size() > 1 ? ", " : "") + std::to_string(x);
  return s + ")";
}

Case draw_plan(std::uint64_t seed) {
  Random r(seed);
  Case c;
  const auto extent = [&] { return r.chance(10) ? 1 : r.chance(3) ? 0 : r.chance(50) ? r.between(1, 70) : 8 * r.between(1, 80); };
  c.declared = {r.chance(50) ? 1 : r.between(2, 4), extent(), extent(), extent()};
  c.rank = c.declared.l == 1 && r.chance(50) ? 2 : 3;
  c.a_repeats = c.declared.l > 1 && r.chance(20);
  c.b_repeats = c.declared.l > 1 && !c.a_repeats && r.chance(40);
  c.input = r.pick({DataType::bf16, DataType::fp16});
  c.output = r.pick({DataType::bf16, DataType::fp16, DataType::fp32});
  verglas::Graph g({.io_data_type = c.input});
  Dims dims[3], strides[3];
  for (int i = 0; i < 3; ++i) {
    const std::int64_t element = verglas::bytes_of(i == kD ? c.output : c.input);
    c.inner[i] = i == kD ? 1 : r.pick({1, 1, 2, 2, 0});
    if (i == kD && r.chance(10)) c.inner[i] = r.pick({0, 2});
    c.unit[i] = std::max<std::int64_t>(1, r.pick({16, 16, 16, 8, 4, 2}) / element);
    dims[i] = c.declared.dims_of(i, c.a_repeats, c.b_repeats);
    if (c.rank == 2) dims[i].erase(dims[i].begin());
    strides[i] = strides_of(dims[i], c.inner[i], c.unit[i], r.chance(30) ? r.between(1, 3) : 0);
    if (i != kD && r.chance(4)) strides[i][0] = r.pick({std::int64_t{0}, std::int64_t{1} << 39, std::int64_t{1} << 40});
    c.text += std::string(i == kA ? "a " : i == kB ? ", b " : ", d ") + text_of(dims[i]) + " strides " + text_of(strides[i]);
  }
  const verglas::Tensor a = g.tensor({.name = "a", .dim = dims[kA], .stride = strides[kA]});
  const verglas::Tensor b = g.tensor({.name = "b", .dim = dims[kB], .stride = strides[kB]});
  verglas::Tensor d = g.matmul(a, b);
  d.set_name("d").set_output(true).set_data_type(c.output).set_stride(strides[kD]);
  verglas::PlanList plans = g.plans({.device = {verglas::DeviceType::cuda, 0}, .deselect_engines = {"cpu"}});
  if (plans.size() == 0) throw std::logic_error(c.text + ": " + plans.unsupported_text());
  c.plan = plans.compile(static_cast<std::size_t>(r.between(0, static_cast<std::int64_t>(plans.size()) - 1)));
  c.text += "; " + c.plan.name();
  const auto tensor = [&](int i) {
    oracle::Tensor t;
    t.name = i == kA ? "a" : i == kB ? "b" : "d";
    t.uid = c.plan.operands()[static_cast<std::size_t>(i)].uid;
    t.dims = dims[i];
    t.strides = strides[i];
    t.format = static_cast<oracle::Format>(i == kD ? c.output : c.input);
    t.is_output = i == kD;
    return t;
  };
  const int ra = c.reference.add(tensor(kA)), rb = c.reference.add(tensor(kB));
  c.reference.product(ra, rb, tensor(kD));
  return c;
}

TensorView view_of(const Dims& dims, const Dims& strides, DataType type, std::uintptr_t address) {
  TensorView v;
  v.data = reinterpret_cast<void*>(address);
  v.dtype = type;
  v.rank = static_cast<std::int8_t>(dims.size());
  v.device = {verglas::DeviceType::cuda, 0};
  std::copy(dims.begin(), dims.end(), v.extent.begin());
  std::copy(strides.begin(), strides.end(), v.stride.begin());
  return v;
}

std::int64_t bytes_of(const TensorView& v) {
  std::int64_t last = 0;
  for (int i = 0; i < v.rank; ++i) {
    const auto at = static_cast<std::size_t>(i);
    if (v.extent[at] <= 0) return 0;
    if (v.extent[at] > 1 && (v.extent[at] > 1 << 20 || v.stride[at] > 1 << 30)) return 0;
    if (v.extent[at] > 1) last += (v.extent[at] - 1) * v.stride[at];
  }
  return (last + 1) * verglas::bytes_of(v.dtype);
}

struct Attempt {
  std::vector<TensorView> views;
  std::vector<std::int64_t> uids;
  int current = -1;  ///< device that is made current; −1: none is
  std::string changes;
};

/// Live extents of its own, laid out as the declaration is; mostly legal.
Attempt draw_call(const Case& c, Random& r) {
  Problem live = c.declared;
  const auto extent = [&] { return r.chance(5) ? 0 : r.chance(10) ? 1 : r.between(1, 400); };
  if (r.chance(60)) live = {c.declared.l == 1 ? 1 : r.between(c.rank == 2 ? 1 : 0, 5), extent(), extent(), extent()};
  if (r.chance(3)) live.m = live.n = std::int64_t{1} << r.between(20, 24);  // around the limit of the grid
  Attempt t;
  for (int i = 0; i < 3; ++i) {
    const verglas::OperandInfo& info = c.plan.operands()[static_cast<std::size_t>(i)];
    Dims dims = live.dims_of(i, c.a_repeats, c.b_repeats);
    if (c.rank == 2 && r.chance(70)) dims.erase(dims.begin());
    Dims strides = strides_of(dims, c.inner[i], c.unit[i], r.chance(30) ? r.between(1, 3) : 0);
    const bool same = c.rank == static_cast<int>(dims.size()) && dims == info.dim;
    if (same && r.chance(60)) strides = info.stride;
    std::uintptr_t address = static_cast<std::uintptr_t>(i + 1) << 52;
    if (r.chance(30)) address += static_cast<std::uintptr_t>(16 * r.between(0, 1000));
    t.views.push_back(view_of(dims, strides, info.dtype, address));
    TensorView& v = t.views.back();
    if (same && strides == info.stride && r.chance(15)) v = TensorView::address(v.data);
    if (i == kB && !v.is_bare() && r.chance(20)) {
      v.order = verglas::AxisOrder::kernel;
      const auto last = static_cast<std::size_t>(v.rank - 1);
      std::swap(v.extent[last], v.extent[last - 1]);
      std::swap(v.stride[last], v.stride[last - 1]);
    }
    t.uids.push_back(info.uid);
  }
  t.current = r.chance(30) ? 0 : -1;
  return t;
}

std::string change(Attempt& t, const Case& c, Random& r) {
  const auto i = static_cast<std::size_t>(r.between(0, 2));
  if (i >= t.views.size()) return {};
  TensorView& v = t.views[i];
  if (v.is_bare()) {
    const verglas::OperandInfo& info = c.plan.operands()[i];
    v = view_of(info.dim, info.stride, info.dtype, reinterpret_cast<std::uintptr_t>(v.data));
  }
  if (v.rank < 2) return {};
  const std::string who = std::string(" of ") + "abd"[i];
  const auto axis = static_cast<std::size_t>(r.between(0, v.rank - 1));
  const auto move = [&](std::int64_t bytes) { v.data = static_cast<char*>(v.data) + bytes; };
  switch (r.between(0, 24)) {
    case 0:
      t.views.pop_back();
      t.uids.pop_back();
      return "one buffer less";
    case 1: t.current = 1; return "device 1 is current";
    case 2: v.data = nullptr; return "null" + who;
    case 3: v.read_only = true; return "read-only" + who;
    case 4: v.rank = static_cast<std::int8_t>(r.pick({0, 1, 2, 3, 4})); return "rank" + who;
    case 5:
      v.device = r.pick({verglas::Device{}, {verglas::DeviceType::cuda, 1}, {verglas::DeviceType::unknown, 0}});
      return "device" + who;
    case 6: v.dtype = r.pick({DataType::fp32, DataType::bf16, DataType::fp16, DataType::int8}); return "type" + who;
    case 7: move(r.pick({1, 2, 4, 8, 16, 32, -2})); return "moved" + who;
    case 8: v.stride[axis] += r.pick({-8, -4, -2, -1, 1, 2, 4, 8}); return "another stride" + who;
    case 9:
      std::swap(v.stride[static_cast<std::size_t>(v.rank - 1)], v.stride[static_cast<std::size_t>(v.rank - 2)]);
      return "transposed" + who;
    case 10: v.stride[axis] = -r.between(1, 100); return "negative stride" + who;
    case 11: v.stride[axis] = 0; return "stride 0" + who;
    case 12: v.stride[axis] = std::int64_t{1} << r.between(34, 62); return "huge stride" + who;
    case 13: v.extent[axis] += r.pick({-1, 1}); return "another extent" + who;
    case 14: v.extent[axis] = r.pick({-1, 0, 1}); return "odd extent" + who;
    case 15: v.extent[axis] = (std::int64_t{1} << 31) - r.between(0, 1); return "huge extent" + who;
    case 16: v.observed_bytes = std::max<std::int64_t>(bytes_of(v) - 1, 0); return "a byte less than reached" + who;
    case 17: v.observed_bytes = bytes_of(v); return "just the bytes reached" + who;
    case 18: v.data = r.pick(t.views).data; return "memory of another" + who;
    case 19: {
      const TensorView& other = r.pick(t.views);
      if (other.is_bare() || other.data == nullptr) return {};
      v.data = static_cast<char*>(other.data) + (bytes_of(other) + 15) / 16 * 16 - (r.chance(50) ? 16 : 0);
      return "memory beside another" + who;
    }
    case 20:
      v.order = v.order == verglas::AxisOrder::kernel ? verglas::AxisOrder::declared : verglas::AxisOrder::kernel;
      return "axis order" + who;
    default:
      for (int k = 0; k < v.rank; ++k)
        if (v.extent[static_cast<std::size_t>(k)] == 1) v.stride[static_cast<std::size_t>(k)] = r.between(-1000, 1000);
      return "strides of unit axes" + who;
  }
}

/// Axes (batch, rows, columns) as the kernel names them: A (m, k), B (n, k), D (m, n).
struct Rows {
  std::uint64_t address = 0;
  std::int64_t extent[3] = {1, 1, 1}, stride[3] = {0, 0, 0};
};
Rows rows_of(int operand, Dims dims, Dims strides, bool kernel_order, std::uint64_t address) {
  if (dims.size() == 2) {
    dims.insert(dims.begin(), 1);
    strides.insert(strides.begin(), 0);
  }
  if (operand == kB && !kernel_order) {
    std::swap(dims[1], dims[2]);
    std::swap(strides[1], strides[2]);
  }
  Rows out;
  out.address = address;
  std::copy(dims.begin(), dims.end(), out.extent);
  std::copy(strides.begin(), strides.end(), out.stride);
  return out;
}

/// What of the parameters of a launch is not as the views say; empty when all is.
std::string fault_of(const Case& c, const std::vector<TensorView>& views, const Launch& launch) {
  const auto block = launch.as<ParameterBlock>();
  Rows rows[3], declared[3];
  for (int i = 0; i < 3; ++i) {
    const TensorView& v = views[static_cast<std::size_t>(i)];
    const verglas::OperandInfo& info = c.plan.operands()[static_cast<std::size_t>(i)];
    const auto address = reinterpret_cast<std::uintptr_t>(v.data);
    declared[i] = rows_of(i, info.dim, info.stride, false, 0);
    rows[i] = v.is_bare()
                  ? rows_of(i, info.dim, info.stride, false, address)
                  : rows_of(i, {v.extent.begin(), v.extent.begin() + v.rank}, {v.stride.begin(), v.stride.begin() + v.rank},
                            v.order == verglas::AxisOrder::kernel, address);
  }
  const std::int64_t l = rows[kD].extent[0], m = rows[kD].extent[1], n = rows[kD].extent[2], k = rows[kA].extent[2];
  // Knobs may exchange rows and columns: then A is B to the kernel, and the rows of D are its columns.
  const bool exchanged = c.plan.knobs().at("EXCHANGED") != 0;
  if (block.m != (exchanged ? n : m) || block.n != (exchanged ? m : n) || block.k != k || block.batches != l)
    return "extents of the block";
  const std::int64_t tile_m = c.plan.knobs().at("TILE_M"), tile_n = c.plan.knobs().at("TILE_N");
  const std::int64_t tiles = l * ((block.m + tile_m - 1) / tile_m) * ((block.n + tile_n - 1) / tile_n);
  const std::int64_t split = c.plan.knobs().at("SPLIT"), grid = split * std::min(tiles, kMultiprocessors / split);
  if (block.tiles != tiles) return "tiles";
  if (launch.grid != Dim3{static_cast<unsigned>(grid), 1, 1}) return "grid";
  const std::int64_t bytes[3] = {verglas::bytes_of(c.input), verglas::bytes_of(c.input), verglas::bytes_of(c.output)};
  const verglas::sm90::ViewBlock* const blocks[3] = {exchanged ? &block.b_view[0] : &block.a_view[0],
                                                     exchanged ? &block.a_view[0] : &block.b_view[0], &block.d_view};
  int maps = 0;
  for (int i = 0; i < 3; ++i) {
    const std::string who = std::string(" of ") + "abd"[i];
    const Rows& v = rows[i];
    const auto dense = [&](int axis) { return declared[i].extent[axis] == 1 || declared[i].stride[axis] == 1; };
    int inner = i == kD && exchanged ? 1 : i == kD || dense(2) || !dense(1) ? 2 : 1;
    const bool nothing = declared[i].extent[1] == 0 || declared[i].extent[2] == 0;  // then the plan takes either axis for inner
    const auto runs_along = [&](int axis) {
      return (v.extent[axis] <= 1 || blocks[i]->inner_stride == v.stride[axis]) &&
             (v.extent[3 - axis] <= 1 || blocks[i]->outer_stride == v.stride[3 - axis]);
    };
    if (i != kD && nothing) inner = runs_along(2) ? 2 : 1;
    const int outer = 3 - inner;
    const bool steps = v.extent[0] > 1 && v.stride[0] != 0;
    if (i != kD && k == 0) continue;  // nothing is read
    const verglas::sm90::ViewBlock& view = *blocks[i];
    if (view.address != v.address) return "address" + who;
    if (v.extent[outer] > 1 && view.outer_stride != v.stride[outer]) return "outer stride" + who;
    if (v.extent[inner] > 1 && view.inner_stride != v.stride[inner]) return "inner stride" + who;
    if (v.extent[0] > 1 && view.batch_stride != v.stride[0]) return "batch stride" + who;
    if (v.extent[0] <= 1 && view.batch_stride != 0) return "batch stride of one matrix" + who;
    if (i != kD && (i == (exchanged ? kB : kA) ? block.a_batch_step[0] : block.b_batch_step[0]) != (steps && l > 1 ? 1 : 0))
      return "batch step" + who;
    std::vector<const cuda::CUtensorMap*> own = {&block.a[0]};
    if (i == (exchanged ? kA : kB)) own = {&block.b[0]};
    if (i == kD) own = {&block.d, &block.d_half, &block.d_quarter};
    for (const cuda::CUtensorMap* map : own) {
      const TensorMapRecord record = record_of(*map);
      if (record.magic == 0) continue;
      ++maps;
      const std::int64_t piece = 16 / bytes[i];
      const auto runs_as = [&](int line, int pitch) {
        const std::int64_t run = i == kD ? std::max<std::int64_t>(1, v.extent[line] / piece * piece) : v.extent[line];
        return record.extent(0) == run && record.extent(1) == v.extent[pitch] &&
               (v.extent[pitch] <= 1 || record.strides[0] == static_cast<std::uint64_t>(v.stride[pitch] * bytes[i]));
      };
      if (record.address != v.address) return "address in a map" + who;
      const bool fits = i != kD ? runs_as(inner, outer) : (dense(2) && runs_as(2, 1)) || (dense(1) && runs_as(1, 2));
      if (!fits) return "extents or row stride of a map" + who;
      if (record.extent(2) != (steps ? v.extent[0] : 1)) return "batches of a map" + who;
      if (steps && record.strides[1] != static_cast<std::uint64_t>(v.stride[0] * bytes[i])) return "batch stride of a map" + who;
    }
  }
  return {};
}

struct Counts {
  std::int64_t legal = 0, illegal = 0, launches = 0, by_maps = 0, by_pieces = 0;
  std::map<std::string, std::int64_t> rules;
};

class GpuCalls : public testing::TestWithParam<int> {
 protected:
  void SetUp() override {
    ::setenv("VERGLAS_CACHE", "off", 1);
    nvrtc.set_parameter_bytes(static_cast<int>(sizeof(ParameterBlock)));
  }

  /// Empty when library and judge agree, and what was enqueued is right.
  std::string check(const Case& c, const Attempt& t, Counts& counts) {
    std::vector<oracle::Binding> bindings;
    for (std::size_t i = 0; i < t.views.size(); ++i) bindings.push_back({t.uids[i], seen_by_judge(t.views[i])});
    const bool exchanged = c.plan.knobs().at("EXCHANGED") != 0;
    const oracle::Verdict verdict = oracle::judge(c.reference, bindings,
                                                  {.device = oracle::DeviceKind::cuda,
                                                   .current_device_id = t.current,
                                                   .moves_pieces = true,
                                                   .tile_m = c.plan.knobs().at(exchanged ? "TILE_N" : "TILE_M"),
                                                   .tile_n = c.plan.knobs().at(exchanged ? "TILE_M" : "TILE_N")});
    std::optional<cuda::CurrentContext> current;
    if (t.current >= 0) current.emplace(driver.table(), driver.primary_context(t.current));
    driver.clear();
    const verglas::Status status = c.plan.execute(t.views);
    const bool enqueued = !driver.untouched();
    if (status.ok() != verdict.legal())
      return "library: " + (status.ok() ? std::string("served") : c.plan.explain(status, t.views).what()) +
             "\n  judge: " + verdict.text();
    if (!status.ok()) {
      ++counts.illegal;
      const verglas::Error error = c.plan.explain(status, t.views);
      if (enqueued || !driver.untouched()) return std::string("refused and enqueued something: ") + error.what();
      ++counts.rules[std::string(error.rule())];
      return disputed(error, verdict);
    }
    ++counts.legal;
    const auto launches = driver.launches();
    const bool empty = !t.views[kD].is_bare() ? bytes_of(t.views[kD]) == 0 && has_no_element(t.views[kD])
                                              : c.declared.m * c.declared.n * c.declared.l == 0;
    if (launches.size() != (empty ? 0U : 1U)) return std::to_string(launches.size()) + " launches";
    if (!driver.memsets().empty() || !driver.copies().empty()) return "a memset or a copy";
    if (empty) return {};
    ++counts.launches;
    const auto block = launches[0].as<ParameterBlock>();
    ++(record_of(block.a[0]).magic != 0 || record_of(block.b[0]).magic != 0 ? counts.by_maps : counts.by_pieces);
    const std::string fault = fault_of(c, t.views, launches[0]);
    return fault.empty() ? "" : "launched with another " + fault;
  }

  static bool has_no_element(const TensorView& v) {
    return std::any_of(v.extent.begin(), v.extent.begin() + v.rank, [](std::int64_t x) { return x == 0; });
  }

  RecordingDriver driver{{FakeDevice{}, FakeDevice{}}};
  FakeNvrtc nvrtc;
};

TEST_P(GpuCalls, AreRefusedExactlyWhenTheJudgeSaysSo) {
  const verglas::cuda::PrimaryContext other(driver.table(), 1);
  const char* only = std::getenv("VERGLAS_CASE");
  if (only != nullptr && GetParam() != 0) return;
  const std::int64_t plans = only != nullptr ? 1 : calls_in_all() / kCallsOfAPlan / kShards;
  Counts counts;
  int wrong = 0;
  for (std::int64_t i = 0; i < plans && wrong < 4; ++i) {
    const std::uint64_t seed =
        only != nullptr ? std::strtoull(only, nullptr, 10) : static_cast<std::uint64_t>(20000000 + i * kShards + GetParam());
    const Case c = draw_plan(seed);
    Random r(seed ^ 0xCA11);
    for (int k = 0; k < kCallsOfAPlan; ++k) {
      Attempt t = draw_call(c, r);
      const std::int64_t changes = r.chance(30) ? 0 : r.chance(75) ? 1 : 2;
      for (std::int64_t n = 0; n < changes; ++n) t.changes += change(t, c, r) + "; ";
      const std::string text = check(c, t, counts);
      if (text.empty()) continue;
      ++wrong;
      std::string views;
      for (const TensorView& v : t.views)
        if (v.rank >= 0)
          views += text_of({v.extent.begin(), v.extent.begin() + v.rank}) +
                   text_of({v.stride.begin(), v.stride.begin() + v.rank}) + " ";
      ADD_FAILURE() << "VERGLAS_CASE=" << seed << " " << c.text << "\n  changed: " << t.changes << views << "\n  " << text;
      break;
    }
  }
  if (only != nullptr || wrong > 0) return;
  RecordProperty("legal_calls", std::to_string(counts.legal));
  RecordProperty("illegal_calls", std::to_string(counts.illegal));
  for (const auto& [rule, n] : counts.rules) RecordProperty(rule, std::to_string(n));
  const std::int64_t all = plans * kCallsOfAPlan;
  EXPECT_GT(counts.legal, all / 5);  // the generator draws both, and both ways of moving operands
  EXPECT_GT(counts.illegal, all / 5);
  EXPECT_GT(counts.by_maps, all / 20);
  EXPECT_GT(counts.by_pieces, all / 40);
  EXPECT_EQ(counts.rules.size(), 20U) << "a rule of calls refused nothing";
}

INSTANTIATE_TEST_SUITE_P(Property, GpuCalls, testing::Range(0, kShards));

}  // namespace
