// What quantised outputs and SwiGLU cost beside the plain product of the same operands, through the public API, on one GPU.
//   verglas_bench_gpu_quantise FILE [COMMIT [PARTS OF CASES, ^BEGINNINGS, BY COMMAS [PLANS [compile]]]]
// Random data, operands rotated beyond L2. The plain product stores bf16; the first PLANS plans (default 3) of each, without
// programmatic launch, are measured and the fastest counts. Contenders take turns, order reversed each round. Steady: 0.1 s of
// the contender itself, then a window of 30 ms. With `compile` nothing is measured: the cache is filled. Util is the share of the
// SMs' tensor cycles that did useful work, by the rate of what is multiplied.
#include <fstream>
#include <future>
#include <nlohmann/json.hpp>

#include "device/gpu.hpp"
#include "numeric/convert.hpp"
#include "verglas/verglas.hpp"

namespace {

using namespace bench;

constexpr Device kGpu{DeviceType::cuda, 0};

/// How a result is stored, beside or instead of bf16.
struct Output {
  std::string name;
  DataType data = DataType::not_set, scale = DataType::not_set;
  std::int64_t block = 0;
  bool along_n = false, along_m = false, dense = false, amax = false;
  bool swiglu = false;  ///< of runs of columns; the product is stored too
};
const std::vector<Output> kOutputs = {
    {"plain"},
    {"mxfp8 rows", DataType::fp8_e4m3, DataType::fp8_e8m0, 32, true},
    {"nvfp4 rows", DataType::fp4_e2m1, DataType::fp8_e4m3, 16, true},
    {"mxfp8 columns", DataType::fp8_e4m3, DataType::fp8_e8m0, 32, false, true},
    {"nvfp4 columns", DataType::fp4_e2m1, DataType::fp8_e4m3, 16, false, true},
    {"mxfp8 both", DataType::fp8_e4m3, DataType::fp8_e8m0, 32, true, true},
    {"mxfp8 rows, dense and amax", DataType::fp8_e4m3, DataType::fp8_e8m0, 32, true, false, true, true},
    {"swiglu", DataType::bf16, DataType::not_set, 0, true, false, false, false, true},
    {"swiglu and amax", DataType::bf16, DataType::not_set, 0, true, false, false, true, true},
    {"swiglu to mxfp8", DataType::fp8_e4m3, DataType::fp8_e8m0, 32, true, false, false, false, true},
};
struct Operand {
  std::string name;
  DataType type, scale = DataType::not_set;
  std::int64_t block = 0;  ///< elements that share a scale
};
const std::vector<Operand> kOperands = {{"bf16", DataType::bf16},
                                        {"fp8", DataType::fp8_e4m3},
                                        {"mxfp8", DataType::fp8_e4m3, DataType::fp8_e8m0, 32},
                                        {"nvfp4", DataType::fp4_e2m1, DataType::fp8_e4m3, 16}};
constexpr std::int64_t kExtents[] = {4096, 8192};

std::string case_of(const Operand& of, std::int64_t n, const Output& o) { return fmt::format("{} {} {}", of.name, n, o.name); }
bool is_wanted(const Operand& of, std::int64_t n, const Output& o, const std::string& parts) {
  return o.data != DataType::not_set && bench::is_wanted(case_of(of, n, o), parts);
}

Graph graph_of(const Output& o, const Operand& of, std::int64_t n) {
  Graph g;
  const auto matrix = [&](bool is_a) {
    const std::vector<std::int64_t> stride = is_a ? std::vector{n, std::int64_t{1}} : std::vector{std::int64_t{1}, n};
    const Tensor x = g.tensor({.name = is_a ? "a" : "b", .dim = {n, n}, .stride = stride, .data_type = of.type});
    if (of.block == 0) return x;
    const std::int64_t blocks = n / of.block;
    const Tensor s = g.tensor({.name = is_a ? "sa" : "sb",
                               .dim = {is_a ? n : blocks, is_a ? blocks : n},
                               .stride = {is_a ? blocks : 1, is_a ? 1 : blocks},
                               .data_type = of.scale,
                               .reordering = TensorReordering::f8_128x4});
    return g.block_scale_dequantize(x, s, is_a ? std::vector<std::int64_t>{1, of.block} : std::vector<std::int64_t>{of.block, 1});
  };
  Tensor x = g.matmul(matrix(true), matrix(false)).set_data_type(DataType::fp32);
  if (o.data == DataType::not_set) {
    x.set_output(true).set_data_type(DataType::bf16);
    return g;
  }
  if (o.swiglu) {
    g.pointwise(PointwiseMode::identity, {x}).set_output(true).set_data_type(DataType::bf16);
    x = g.mul(g.take_runs(x, 32, false), g.swish(g.take_runs(x, 32, true)));
    if (o.block == 0) g.pointwise(PointwiseMode::identity, {x}).set_output(true).set_data_type(o.data);
  }
  if (o.dense) g.pointwise(PointwiseMode::identity, {x}).set_output(true).set_data_type(DataType::bf16);
  if (o.amax) g.reduction(x, ReductionMode::amax).set_dim({1, 1}).set_output(true).set_data_type(DataType::fp32);
  for (const bool along_m : {false, true}) {
    if (o.block == 0 || !(along_m ? o.along_m : o.along_n)) continue;
    auto [y, s] = g.block_scale_quantize(x, o.block, {}, {}, along_m);
    y.set_data_type(o.data).set_output(true);
    s.set_data_type(o.scale).set_output(true).set_reordering_type(TensorReordering::f8_128x4);
  }
  return g;
}

struct Contender {
  const Output* output;
  CompiledPlan plan;
  std::vector<std::vector<void*>> calls{};
  std::size_t next = 0;
  std::vector<double> us{}, util{}, mhz{};
  bool counts = true;  ///< else it is the first plain plan once more, and says how far two instances of a kernel are apart
};

class Suite {
 public:
  Suite(const Gpu& gpu, const ClockProbe& probe, const Operand& of, std::int64_t n) : gpu_(gpu), probe_(probe), of_(of), n_(n) {
    const DataType type = of.type;
    std::mt19937_64 random(7);
    std::normal_distribution<float> normal;
    std::vector<char> values(1'048'573 * static_cast<std::size_t>(bytes_of(type)));  // of a prime count: no row repeats another
    for (std::size_t i = 0; i < values.size(); i += static_cast<std::size_t>(bytes_of(type))) {
      if (type == DataType::fp4_e2m1)
        values[i] = static_cast<char>(random());
      else
        numeric::from_float(normal(random), &values[i], type);
    }
    const auto bytes = static_cast<std::size_t>(n * n * bits_of(type) / 8);
    sets_ = std::max<std::size_t>(2, static_cast<std::size_t>(gpu.l2_bytes) / bytes + 1);
    for (std::size_t i = 0; i < 2 * sets_; ++i) {
      DeviceMemory& m = operands_.emplace_back(gpu, bytes);
      for (std::size_t at = 0, from = i * 4096; at < bytes; from = 0) {
        const std::size_t count = std::min(bytes - at, values.size() - from);
        m.upload(&values[from], count, at);
        at += count;
      }
    }
    if (of.block == 0) return;
    const std::vector<char> ones(static_cast<std::size_t>(n * n / of.block), static_cast<char>(of.block == 16 ? 0x38 : 127));
    for (int i = 0; i < 2; ++i) scales_.emplace_back(gpu, ones.size()).upload(ones.data(), ones.size());
  }

  nlohmann::json measure(const std::string& part, std::size_t plans, bool compiles_only) {
    std::vector<Contender> all;
    std::vector<std::future<CompiledPlan>> compiling;  // beside each other
    std::vector<const Output*> outputs;
    for (const Output& o : kOutputs) {
      if (o.data != DataType::not_set && !is_wanted(of_, n_, o, part)) continue;
      Graph g = graph_of(o, of_, n_);
      const PlanList list = g.plans({.device = kGpu, .deselect_engines = {"cpu", "cublaslt"}});
      if (list.size() == 0) fmt::print("{}: {}\n", case_of(of_, n_, o), list.unsupported_text());
      std::size_t taken = 0;
      for (std::size_t i = 0; i < list.size() && taken < plans; ++i) {
        if (list.knobs(i).at("PROGRAMMATIC") != 0) continue;
        compiling.push_back(std::async(std::launch::async, [list, i] { return list.compile(i); }));
        outputs.push_back(&o);
        ++taken;
      }
    }
    for (std::size_t i = 0; i < compiling.size(); ++i) all.push_back(contender(outputs[i], compiling[i].get()));
    if (all.size() < 2 || compiles_only) return nlohmann::json::array();
    all.push_back(contender(all[0].output, all[0].plan));
    all.back().counts = false;
    const double flop = 2.0 * static_cast<double>(n_) * static_cast<double>(n_ * n_);
    for (int round = 0; round < 4; ++round)
      for (std::size_t i = 0; i < all.size(); ++i) {
        Contender& x = all[round % 2 ? all.size() - 1 - i : i];
        const double estimate = mean_us(x, 8);
        mean_us(x, std::max(4, static_cast<int>(1e5 / estimate)));
        const int count = std::max(8, static_cast<int>(3e4 / estimate));
        probe_.read(0);
        x.us.push_back(mean_us(x, count));
        probe_.read(1);
        const ClockProbe::Span span = probe_.span();
        x.util.push_back(100 * flop * count / ((of_.type == DataType::fp8_e4m3 ? 8192 : 4096) * gpu_.sm_count * span.cycles));
        x.mhz.push_back(1e3 * span.cycles / span.ns);
      }
    const auto best = [&](const Output& output) {
      const Contender* found = nullptr;
      for (const Contender& x : all)
        if (x.output == &output && x.counts && (found == nullptr || median_of(x.us) < median_of(found->us))) found = &x;
      return found;
    };
    nlohmann::json records = nlohmann::json::array();
    const Contender& product = *best(kOutputs[0]);
    const double plain = median_of(product.us);
    for (const Contender& x : all)
      fmt::print("{:<44} {:<64} {:8.1f} us {:7.1f} TFLOP/s util {:5.1f} {:5.0f} MHz of plain {:.3f}\n",
                 case_of(of_, n_, *x.output), x.plan.name(), median_of(x.us), flop / median_of(x.us) * 1e-6, median_of(x.util),
                 median_of(x.mhz), plain / median_of(x.us));
    std::fflush(stdout);
    for (const Output& o : kOutputs)
      if (const Contender* x = best(o); x != nullptr && o.data != DataType::not_set)
        records.push_back({{"suite", "gpu_quantise.steady"},
                           {"case", case_of(of_, n_, o)},
                           {"ours_us", median_of(x->us)},
                           {"rival", "the plain product"},
                           {"rival_us", plain},
                           {"ratio", plain / median_of(x->us)},
                           {"plan", x->plan.name()},
                           {"util_percent", median_of(x->util)},
                           {"sm_mhz", median_of(x->mhz)},
                           {"rival_util_percent", median_of(product.util)},
                           {"rival_sm_mhz", median_of(product.mhz)}});
    return records;
  }

 private:
  Contender contender(const Output* output, CompiledPlan plan) {
    Contender x{output, std::move(plan)};
    std::vector<void*> stored;
    for (const OperandInfo& o : x.plan.operands()) {
      std::int64_t count = 1;
      for (const std::int64_t e : o.dim) count *= e;
      if (o.is_output)
        stored.push_back(reinterpret_cast<void*>(
            outputs_.emplace_back(std::make_unique<DeviceMemory>(gpu_, static_cast<std::size_t>(count * bits_of(o.dtype) / 8)))
                ->address()));
    }
    for (std::size_t i = 0; i < sets_; ++i) {
      std::vector<void*>& call = x.calls.emplace_back();
      std::size_t next = 0;
      for (const OperandInfo& o : x.plan.operands())
        call.push_back(o.is_output      ? stored[next++]
                       : o.name == "sa" ? reinterpret_cast<void*>(scales_[0].address())
                       : o.name == "sb" ? reinterpret_cast<void*>(scales_[1].address())
                                        : reinterpret_cast<void*>(operands_[2 * i + (o.name == "b" ? 1 : 0)].address()));
    }
    return x;
  }

  double mean_us(Contender& x, int count) const {
    return gpu_.time_us([&] {
      for (int i = 0; i < count; ++i)
        if (!x.plan.execute(x.calls[x.next++ % sets_], {gpu_.stream}).ok())
          throw std::runtime_error(x.plan.name() + " refused its call");
    }) / count;
  }

  const Gpu& gpu_;
  const ClockProbe& probe_;
  Operand of_;
  std::int64_t n_;
  std::size_t sets_ = 0;
  std::vector<DeviceMemory> operands_, scales_;
  std::vector<std::unique_ptr<DeviceMemory>> outputs_;
};

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) {
    fmt::print(stderr, "verglas_bench_gpu_quantise FILE [COMMIT [PARTS OF CASES [PLANS [compile]]]]\n");
    return 2;
  }
  try {
    const std::string part = argc > 3 ? argv[3] : "";
    const std::size_t plans = argc > 4 ? std::strtoul(argv[4], nullptr, 10) : 3;
    const bool compiles_only = argc > 5;
    const Gpu gpu;
    const ClockProbe probe(gpu);
    nlohmann::json file = {{"device", gpu.name},
                           {"driver", gpu.driver.version},
                           {"commit", argc > 2 ? argv[2] : ""},
                           {"command", "verglas_bench_gpu_quantise"},
                           {"records", nlohmann::json::array()}};
    for (const Operand& of : kOperands)
      for (const std::int64_t n : kExtents) {
        if (std::ranges::none_of(kOutputs, [&](const Output& o) { return is_wanted(of, n, o, part); })) continue;
        for (auto& r : Suite(gpu, probe, of, n).measure(part, plans, compiles_only)) file["records"].push_back(std::move(r));
        std::ofstream(argv[1]) << file.dump(1) << '\n';
      }
  } catch (const std::exception& e) {
    fmt::print(stderr, "{}\n", e.what());
    return 1;
  }
  return 0;
}
