// What quantised outputs cost beside the plain product of the same operands, through the public API, on one GPU.
//   verglas_bench_gpu_quantise FILE [COMMIT [PART OF A CASE [PLANS]]]
// Random data, operands rotated beyond L2. The plain product stores bf16; the first PLANS plans (default 3) of each, without
// programmatic launch, are measured and the fastest counts. Contenders take turns, order reversed each round. Steady: 0.1 s of
// the contender itself, then a window of 30 ms.
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
};
const std::vector<Output> kOutputs = {
    {"plain"},
    {"mxfp8 rows", DataType::fp8_e4m3, DataType::fp8_e8m0, 32, true},
    {"nvfp4 rows", DataType::fp4_e2m1, DataType::fp8_e4m3, 16, true},
    {"mxfp8 columns", DataType::fp8_e4m3, DataType::fp8_e8m0, 32, false, true},
    {"nvfp4 columns", DataType::fp4_e2m1, DataType::fp8_e4m3, 16, false, true},
    {"mxfp8 both", DataType::fp8_e4m3, DataType::fp8_e8m0, 32, true, true},
    {"mxfp8 rows, dense and amax", DataType::fp8_e4m3, DataType::fp8_e8m0, 32, true, false, true, true},
};
constexpr DataType kOperands[] = {DataType::bf16, DataType::fp8_e4m3};
constexpr std::int64_t kExtents[] = {4096, 8192};

Graph graph_of(const Output& o, DataType type, std::int64_t n) {
  Graph g;
  const Tensor a = g.tensor({.name = "a", .dim = {n, n}, .stride = {n, 1}, .data_type = type});
  const Tensor b = g.tensor({.name = "b", .dim = {n, n}, .stride = {1, n}, .data_type = type});
  Tensor x = g.matmul(a, b).set_data_type(DataType::fp32);
  if (o.block == 0) {
    x.set_output(true).set_data_type(DataType::bf16);
    return g;
  }
  if (o.dense) g.pointwise(PointwiseMode::identity, {x}).set_output(true).set_data_type(DataType::bf16);
  if (o.amax) g.reduction(x, ReductionMode::amax).set_dim({1, 1}).set_output(true).set_data_type(DataType::fp32);
  for (const bool along_m : {false, true}) {
    if (!(along_m ? o.along_m : o.along_n)) continue;
    auto [y, s] = g.block_scale_quantize(x, o.block, {}, {}, along_m);
    y.set_data_type(o.data).set_output(true);
    s.set_data_type(o.scale).set_output(true).set_reordering_type(TensorReordering::f8_128x4);
  }
  return g;
}

struct Contender {
  std::string output;
  CompiledPlan plan;
  std::vector<std::vector<void*>> calls{};
  std::size_t next = 0;
  std::vector<double> us{};
};

class Suite {
 public:
  Suite(const Gpu& gpu, DataType type, std::int64_t n) : gpu_(gpu), type_(type), n_(n) {
    std::mt19937_64 random(7);
    std::normal_distribution<float> normal;
    std::vector<char> values(1'048'573 * static_cast<std::size_t>(bytes_of(type)));  // of a prime count: no row repeats another
    for (std::size_t i = 0; i < values.size(); i += static_cast<std::size_t>(bytes_of(type)))
      numeric::from_float(normal(random), &values[i], type);
    const auto bytes = static_cast<std::size_t>(n * n * bytes_of(type));
    sets_ = std::max<std::size_t>(2, static_cast<std::size_t>(gpu.l2_bytes) / bytes + 1);
    for (std::size_t i = 0; i < 2 * sets_; ++i) {
      DeviceMemory& m = operands_.emplace_back(gpu, bytes);
      for (std::size_t at = 0, from = i * 4096; at < bytes; from = 0) {
        const std::size_t count = std::min(bytes - at, values.size() - from);
        m.upload(&values[from], count, at);
        at += count;
      }
    }
  }

  nlohmann::json measure(const std::string& part, std::size_t plans) {
    std::vector<Contender> all;
    std::vector<std::future<CompiledPlan>> compiling;  // beside each other
    std::vector<std::string> outputs;
    for (const Output& o : kOutputs) {
      const std::string name = name_of_case(o.name);
      if (o.block != 0 && name.find(part) == std::string::npos) continue;
      Graph g = graph_of(o, type_, n_);
      const PlanList list = g.plans({.device = kGpu, .deselect_engines = {"cpu", "cublaslt"}});
      if (list.size() == 0) fmt::print("{}: {}\n", name, list.unsupported_text());
      std::size_t taken = 0;
      for (std::size_t i = 0; i < list.size() && taken < plans; ++i) {
        if (list.knobs(i).at("PROGRAMMATIC") != 0) continue;
        compiling.push_back(std::async(std::launch::async, [list, i] { return list.compile(i); }));
        outputs.push_back(o.name);
        ++taken;
      }
    }
    for (std::size_t i = 0; i < compiling.size(); ++i) all.push_back(contender(outputs[i], compiling[i].get()));
    if (all.size() < 2) return nlohmann::json::array();
    for (int round = 0; round < 4; ++round)
      for (std::size_t i = 0; i < all.size(); ++i) {
        Contender& x = all[round % 2 ? all.size() - 1 - i : i];
        const double estimate = mean_us(x, 8);
        mean_us(x, std::max(4, static_cast<int>(1e5 / estimate)));
        x.us.push_back(mean_us(x, std::max(8, static_cast<int>(3e4 / estimate))));
      }
    const auto best = [&](const std::string& output) {
      const Contender* found = nullptr;
      for (const Contender& x : all)
        if (x.output == output && (found == nullptr || median_of(x.us) < median_of(found->us))) found = &x;
      return found;
    };
    nlohmann::json records = nlohmann::json::array();
    const double plain = median_of(best("plain")->us), flop = 2.0 * static_cast<double>(n_) * static_cast<double>(n_ * n_);
    for (const Contender& x : all)
      fmt::print("{:<44} {:<64} {:8.1f} us {:7.1f} TFLOP/s of plain {:.3f}\n", name_of_case(x.output), x.plan.name(),
                 median_of(x.us), flop / median_of(x.us) * 1e-6, plain / median_of(x.us));
    std::fflush(stdout);
    for (const Output& o : kOutputs)
      if (const Contender* x = best(o.name); x != nullptr && o.block != 0)
        records.push_back({{"suite", "gpu_quantise.steady"},
                           {"case", name_of_case(o.name)},
                           {"ours_us", median_of(x->us)},
                           {"rival", "the plain product"},
                           {"rival_us", plain},
                           {"ratio", plain / median_of(x->us)},
                           {"plan", x->plan.name()}});
    return records;
  }

 private:
  std::string name_of_case(const std::string& output) const { return fmt::format("{} {} {}", name_of(type_), n_, output); }

  Contender contender(const std::string& output, CompiledPlan plan) {
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
        call.push_back(o.is_output ? stored[next++]
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
  DataType type_;
  std::int64_t n_;
  std::size_t sets_ = 0;
  std::vector<DeviceMemory> operands_;
  std::vector<std::unique_ptr<DeviceMemory>> outputs_;
};

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) {
    fmt::print(stderr, "verglas_bench_gpu_quantise FILE [COMMIT [PART OF A CASE [PLANS]]]\n");
    return 2;
  }
  try {
    const std::string part = argc > 3 ? argv[3] : "";
    const std::size_t plans = argc > 4 ? std::strtoul(argv[4], nullptr, 10) : 3;
    const Gpu gpu;
    nlohmann::json file = {{"device", gpu.name},
                           {"driver", gpu.driver.version},
                           {"commit", argc > 2 ? argv[2] : ""},
                           {"command", "verglas_bench_gpu_quantise"},
                           {"records", nlohmann::json::array()}};
    for (const DataType type : kOperands)
      for (const std::int64_t n : kExtents) {
        for (auto& r : Suite(gpu, type, n).measure(part, plans)) file["records"].push_back(std::move(r));
        std::ofstream(argv[1]) << file.dump(1) << '\n';
      }
  } catch (const std::exception& e) {
    fmt::print(stderr, "{}\n", e.what());
    return 1;
  }
  return 0;
}
