// What a checked call costs on a GPU host beside a bare launch of the same kernel with the same parameters, and beside
// cublasLtMatmul: nanoseconds of host time a call, from bursts of 64 into a drained queue, pinned to one core. Then what comes
// before the first call: compiling, loading from the cache, the first execute. A table, and the same as one line of JSON.
#include <fmt/format.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>

#include "cuda/context.hpp"
#include "cuda/driver_table.hpp"
#include "cuda/nvrtc_table.hpp"
#include "engine/sm90/parameter_block.hpp"
#include "jit/cache.hpp"
#include "lt_matmul.hpp"
#include "verglas/verglas.hpp"

namespace {

using namespace verglas;
using Clock = std::chrono::steady_clock;

constexpr std::int64_t kM = 256, kN = 256, kK = 128;
constexpr int kRepetitions = 25, kBurst = 64, kPacks = 4;
constexpr Device kGpu{DeviceType::cuda, 0};

double since(Clock::time_point start, double unit) { return std::chrono::duration<double>(Clock::now() - start).count() / unit; }

/// The last launch that went through the driver's table, whole.
struct Recorded {
  cuda::CUlaunchConfig config{};
  std::vector<cuda::CUlaunchAttribute> attributes;
  cuda::CUfunction function = nullptr;
  sm90::ParameterBlock block;
};
Recorded recorded;
const cuda::DriverTable* real = nullptr;

cuda::CUresult record(const cuda::CUlaunchConfig* config, cuda::CUfunction function, void** parameters, void** extra) {
  recorded.config = *config;
  recorded.attributes.assign(config->attrs, config->attrs + config->numAttrs);
  recorded.config.attrs = recorded.attributes.data();
  recorded.function = function;
  std::memcpy(&recorded.block, parameters[0], sizeof recorded.block);
  return real->cuLaunchKernelEx(config, function, parameters, extra);
}

CompiledPlan make_plan() {
  Graph g({.name = "plain"});
  const Tensor a = g.tensor({.name = "a", .dim = {1, kM, kK}, .stride = {kM * kK, kK, 1}});
  const Tensor b = g.tensor({.name = "b", .dim = {1, kK, kN}, .stride = {kK * kN, 1, kK}});
  g.matmul(a, b).set_output(true).set_name("d");
  return g.plans({.device = kGpu, .deselect_engines = {"cpu", "cublaslt"}}).compile();
}

/// Three matrices of device memory, zeros; never freed, since the process ends with them.
std::vector<TensorView> make_pack(const cuda::DriverTable& driver) {
  const auto memory = [&](std::int64_t elements) {
    cuda::CUdeviceptr p = 0;
    cuda::check(driver, driver.cuMemAlloc(&p, static_cast<std::size_t>(2 * elements)), "cuMemAlloc", "making a matrix");
    cuda::check(driver, driver.cuMemsetD8Async(p, 0, static_cast<std::size_t>(2 * elements), nullptr), "cuMemsetD8Async",
                "clearing a matrix");
    return reinterpret_cast<void*>(p);
  };
  return {TensorView::dense(memory(kM * kK), DataType::bf16, {1, kM, kK}, kGpu),
          TensorView::strided(memory(kN * kK), DataType::bf16, {1, kK, kN}, {kK * kN, 1, kK}, kGpu),
          TensorView::dense(memory(kM * kN), DataType::bf16, {1, kM, kN}, kGpu)};
}

struct Timed {
  std::string name;
  std::function<bool(int)> call;  ///< the i-th of a burst; false: it failed
  std::vector<double> ns = {};

  double least() const { return *std::min_element(ns.begin(), ns.end()); }
  double median() const {
    std::vector<double> sorted = ns;
    std::sort(sorted.begin(), sorted.end());
    return sorted[sorted.size() / 2];
  }
};

/// All of them in turn, so that a slow moment meets each.
void measure(const cuda::DriverTable& driver, std::vector<Timed>& all) {
  for (int repetition = -2; repetition < kRepetitions; ++repetition)  // two to warm up
    for (Timed& t : all) {
      cuda::check(driver, driver.cuCtxSynchronize(), "cuCtxSynchronize", "draining the queue");
      bool ok = true;
      const auto start = Clock::now();
      for (int i = 0; i < kBurst; ++i) ok &= t.call(i);
      const double ns = since(start, 1e-9) / kBurst;
      if (!ok) throw Error(ErrorCode::internal, "bench", t.name + " failed");
      if (repetition >= 0) t.ns.push_back(ns);
    }
  cuda::check(driver, driver.cuCtxSynchronize(), "cuCtxSynchronize", "draining the queue");
}

void pin_to_this_core() {
  cpu_set_t one;
  CPU_ZERO(&one);
  CPU_SET(static_cast<std::size_t>(::sched_getcpu()), &one);
  ::sched_setaffinity(0, sizeof one, &one);
}

/// Milliseconds of making the plan from nothing, from the cache, and microseconds of its first call.
nlohmann::ordered_json startup(const std::vector<TensorView>& pack) {
  nlohmann::ordered_json answer;
  std::vector<double> cold, cached, first;
  for (int i = 0; i < 3; ++i) {
    jit::cache_clear();
    const auto start = Clock::now();
    const CompiledPlan plan = make_plan();
    cold.push_back(since(start, 1e-3));
    const auto call = Clock::now();
    if (!plan.execute(pack).ok()) throw Error(ErrorCode::internal, "bench", "the first call failed");
    first.push_back(since(call, 1e-6));
  }
  for (int i = 0; i < 9; ++i) {
    const auto start = Clock::now();
    const CompiledPlan plan = make_plan();
    cached.push_back(since(start, 1e-3));
  }
  answer["first_compile_of_process_ms"] = cold[0];
  answer["cold_compile_ms"] = std::min(cold[1], cold[2]);
  answer["cached_load_ms"] = *std::min_element(cached.begin(), cached.end());
  answer["first_execute_of_process_us"] = first[0];
  answer["first_execute_us"] = std::min(first[1], first[2]);
  return answer;
}

int run() {
  const auto driver = cuda::driver();
  if (!driver) {
    fmt::print("no GPU to measure on: {}\n", driver.error().text);
    return 1;
  }
  real = *driver;
  const cuda::PrimaryContext primary(*real, 0);
  const cuda::CurrentContext current(*real, primary.handle());
  (void)cuda::nvrtc();  // opening the library is no part of compiling
  std::vector<std::vector<TensorView>> packs, shapes;
  for (int i = 0; i < kPacks; ++i) {
    packs.push_back(make_pack(*real));
    shapes.push_back(packs[0]);
    shapes.back()[0].extent[1] = shapes.back()[2].extent[1] = kM - 8 * i - 8;
  }
  std::vector<void*> addresses;
  for (const TensorView& v : packs[0]) addresses.push_back(v.data);

  // Through an override, so that the plan's launch can be seen; it is gone from the table before anything is timed.
  cuda::DriverTable table = *real;
  const cuda::DriverOverride use(&table);
  nlohmann::ordered_json result = {{"shape", {kM, kN, kK}}, {"type", "bf16"}};
  result["start"] = startup(packs[0]);
  const CompiledPlan plan = make_plan();
  result["plan"] = plan.name();
  table.cuLaunchKernelEx = record;
  if (const Status s = plan.execute(packs[0]); !s.ok()) throw plan.explain(s, packs[0]);
  table.cuLaunchKernelEx = real->cuLaunchKernelEx;

  const bench::LtMatmul lt(*real, kM, kN, kK);
  void* parameters[] = {&recorded.block};
  constexpr std::size_t kMask = kPacks - 1;
  std::vector<Timed> all;
  all.push_back({"bare cuLaunchKernelEx", [&](int) {
                   return real->cuLaunchKernelEx(&recorded.config, recorded.function, parameters, nullptr) == cuda::CUDA_SUCCESS;
                 }});
  all.push_back({"checked, nothing new", [&](int) { return plan.execute(packs[0]).ok(); }});
  all.push_back({"checked, pointers new", [&](int i) { return plan.execute(packs[static_cast<std::size_t>(i) & kMask]).ok(); }});
  all.push_back({"checked, shapes new", [&](int i) { return plan.execute(shapes[static_cast<std::size_t>(i) & kMask]).ok(); }});
  all.push_back({"checked, addresses", [&](int) { return plan.execute(std::span<void* const>(addresses)).ok(); }});
  if (lt.missing().empty())
    all.push_back(
        {"cublasLtMatmul", [&](int) { return lt(addresses[0], addresses[1], addresses[2]) == cuda::CUBLAS_STATUS_SUCCESS; }});
  pin_to_this_core();
  measure(*real, all);

  fmt::print("{} of {} x {} x {}, bf16\n{:24} {:>9} {:>9} {:>9}\n", plan.name(), kM, kN, kK, "ns a call", "least", "median",
             "x bare");
  for (const Timed& t : all) {
    const double ratio = t.median() / all[0].median();
    fmt::print("{:24} {:9.0f} {:9.0f} {:9.3f}\n", t.name, t.least(), t.median(), ratio);
    result["calls"][t.name] = {{"least_ns", t.least()}, {"median_ns", t.median()}, {"ratio", ratio}};
  }
  if (!lt.missing().empty()) fmt::print("cublasLtMatmul was not measured: {}\n", lt.missing());
  for (const auto& [name, value] : result["start"].items()) fmt::print("{:28} {:9.2f}\n", name, value.get<double>());
  fmt::print("{}\n", result.dump());
  return 0;
}

}  // namespace

int main() {
  // A cache of our own: it is emptied.
  std::string folder = (std::filesystem::temp_directory_path() / "verglas-bench-XXXXXX").string();
  if (!::mkdtemp(folder.data())) return 1;
  ::setenv("VERGLAS_CACHE", folder.c_str(), 1);
  int status = 1;
  try {
    status = run();
  } catch (const std::exception& e) {
    fmt::print("{}\n", e.what());
  }
  std::filesystem::remove_all(folder);
  return status;
}
