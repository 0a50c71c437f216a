// What a checked call costs on a GPU host beside a bare launch of the same kernel with the same parameters, for a plain product
// and some fused ones, and beside cublasLtMatmul: nanoseconds of host time a call, from bursts of 64 into a drained queue, pinned
// to one core. Then what comes before the first call: compiling, loading from the cache, the first execute. A table, and the same
// as one line of JSON.
#include <fmt/format.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
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
constexpr int kRepetitions = 51, kBurst = 64, kPacks = 4;
constexpr Device kGpu{DeviceType::cuda, 0};

double since(Clock::time_point start, double unit) { return std::chrono::duration<double>(Clock::now() - start).count() / unit; }

/// The last launch that went through the driver's table, whole.
struct Recorded {
  cuda::CUlaunchConfig config{};
  std::vector<cuda::CUlaunchAttribute> attributes;
  cuda::CUfunction function = nullptr;
  alignas(64) std::byte block[4096] = {};  ///< as much as a launch takes; the epilogue's arguments lie behind the ParameterBlock
};
constexpr std::size_t kParameterBytes = sizeof(sm90::ParameterBlock) + 1024;  // more than any flavor here has, less than is kept
Recorded recorded;
int readdressed = 0;
const cuda::DriverTable* real = nullptr;

cuda::CUresult record(const cuda::CUlaunchConfig* config, cuda::CUfunction function, void** parameters, void** extra) {
  recorded.config = *config;
  recorded.attributes.assign(config->attrs, config->attrs + config->numAttrs);
  recorded.config.attrs = recorded.attributes.data();
  recorded.function = function;
  std::memcpy(recorded.block, parameters[0], kParameterBytes);
  return real->cuLaunchKernelEx(config, function, parameters, extra);
}

struct Flavor {
  const char* name;
  void (*describe)(Graph&, Tensor product, Tensor a);
  enum class Groups { none, in_tensor, by_address } groups = Groups::none;  ///< and where their weights are
  bool scaled = false;                                                      ///< MXFP8: fp8 with scales of blocks of 32
};
constexpr std::int64_t kGroups = 4;
void store(Graph&, Tensor product, Tensor) { product.set_output(true).set_name("d"); }
constexpr Flavor kFlavors[] = {
    {"plain", store},
    {"bias+relu",
     [](Graph& g, Tensor product, Tensor) {
       g.relu(g.add(product, g.tensor({.name = "bias", .dim = {1, 1, kN}, .stride = {kN, kN, 1}}))).set_output(true);
     }},
    {"residual, second output, row-sum",
     [](Graph& g, Tensor product, Tensor) {
       const Tensor residual = g.tensor({.name = "residual", .dim = {1, kM, kN}, .stride = {kM * kN, kN, 1}});
       Tensor sum = g.add(product, residual).set_output(true);
       g.relu(sum).set_output(true);
       g.reduction(sum, ReductionMode::add).set_dim({1, kM, 1}).set_output(true).set_data_type(DataType::fp32);
     }},
    {"swiglu",
     [](Graph& g, Tensor product, Tensor a) {
       const Tensor up = g.tensor({.name = "up", .dim = {1, kK, kN}, .stride = {kK * kN, 1, kK}});
       g.mul(g.swish(product), g.matmul(a, up)).set_output(true);
     }},
    {"grouped", store, Flavor::Groups::in_tensor},
    {"grouped, weights by address", store, Flavor::Groups::by_address},
    {"mxfp8, global scale, bias",
     [](Graph& g, Tensor product, Tensor) {
       const Tensor scale = g.tensor({.name = "scale", .dim = {1, 1, 1}, .stride = {1, 1, 1}, .data_type = DataType::fp32});
       g.add(g.mul(product, scale), g.tensor({.name = "bias", .dim = {1, 1, kN}, .stride = {kN, kN, 1}})).set_output(true);
     },
     Flavor::Groups::none, true},
};

CompiledPlan make_plan(const Flavor& f = kFlavors[0]) {
  Graph g({.name = f.name});
  const bool is_grouped = f.groups != Flavor::Groups::none;
  const DataType type = f.scaled ? DataType::fp8_e4m3 : DataType::bf16;
  Tensor a = g.tensor({.name = "a", .dim = {1, kM, kK}, .stride = {kM * kK, kK, 1}, .data_type = type});
  Tensor b = g.tensor({.name = "b", .dim = {is_grouped ? kGroups : 1, kK, kN}, .stride = {kK * kN, 1, kK}, .data_type = type});
  b.set_by_pointers(f.groups == Flavor::Groups::by_address);
  const auto scales = [&](const char* name, std::vector<std::int64_t> dim, std::vector<std::int64_t> stride) {
    return g.tensor({.name = name,
                     .dim = std::move(dim),
                     .stride = std::move(stride),
                     .data_type = DataType::fp8_e8m0,
                     .reordering = TensorReordering::f8_128x4});
  };
  if (f.scaled) {
    constexpr std::int64_t kBlocks = kK / 32;
    a = g.block_scale_dequantize(a, scales("scales of a", {1, kM, kBlocks}, {kM * kBlocks, kBlocks, 1}), {1, 1, 32});
    b = g.block_scale_dequantize(b, scales("scales of b", {1, kBlocks, kN}, {kBlocks * kN, 1, kBlocks}), {1, 32, 1});
  }
  if (is_grouped)
    f.describe(
        g, g.moe_grouped_matmul(a, b, g.tensor({.dim = {kGroups, 1, 1}, .stride = {1, 1, 1}, .data_type = DataType::int32})), a);
  else
    f.describe(g, g.matmul(a, b), a);
  return g.plans({.device = kGpu, .deselect_engines = {"cpu", "cublaslt"}}).compile();
}

/// Device memory for every operand, zeros; never freed, since the process ends with it. Zeros are offsets by which the last group
/// has all rows; addresses are those of a matrix.
std::vector<TensorView> make_pack(const cuda::DriverTable& driver, const CompiledPlan& plan) {
  std::vector<TensorView> pack;
  for (const OperandInfo& o : plan.operands()) {
    std::int64_t bytes = bytes_of(o.dtype);
    for (const std::int64_t extent : o.dim) bytes *= extent;
    cuda::CUdeviceptr p = 0;
    cuda::check(driver, driver.cuMemAlloc(&p, static_cast<std::size_t>(bytes)), "cuMemAlloc", "making a matrix");
    cuda::check(driver, driver.cuMemsetD8Async(p, 0, static_cast<std::size_t>(bytes), nullptr), "cuMemsetD8Async",
                "clearing a matrix");
    if (o.dtype == DataType::int64) {
      cuda::CUdeviceptr matrix = 0;
      cuda::check(driver, driver.cuMemAlloc(&matrix, kK * kN * 2), "cuMemAlloc", "making a matrix");
      const std::vector<cuda::CUdeviceptr> table(kGroups, matrix);
      cuda::check(driver, driver.cuMemcpyHtoD(p, table.data(), 8 * kGroups), "cuMemcpyHtoD", "a table of addresses");
      pack.push_back(TensorView::strided(reinterpret_cast<void*>(p), o.dtype, {kGroups}, {1}, kGpu));
      continue;
    }
    pack.push_back(TensorView::strided(reinterpret_cast<void*>(p), o.dtype, {o.dim[0], o.dim[1], o.dim[2]},
                                       {o.stride[0], o.stride[1], o.stride[2]}, kGpu));
  }
  return pack;
}

struct Timed {
  std::string name;
  std::function<bool(int)> call;  ///< the i-th of a burst; false: it failed
  std::vector<double> ns = {};

  double least() const { return *std::min_element(ns.begin(), ns.end()); }
  double median() const { return median_of(ns); }
  /// The median of the quotients of one repetition each: what slows a moment slows both.
  double ratio_to(const Timed& bare) const {
    std::vector<double> quotients;
    for (std::size_t i = 0; i < ns.size(); ++i) quotients.push_back(ns[i] / bare.ns[i]);
    return median_of(quotients);
  }
  static double median_of(std::vector<double> sorted) {
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

double driver_ms = 0;  ///< in the driver while a plan was made

/// The driver's own call, timed.
template <auto Which>
constexpr auto kTimed = [](auto... arguments) {
  const auto start = Clock::now();
  const cuda::CUresult code = (real->*Which)(arguments...);
  driver_ms += since(start, 1e-3);
  return code;
};

/// Nanoseconds of calls of the driver that a checked call may make.
nlohmann::ordered_json driver_calls() {
  cuda::CUtensorMap map{};
  cuda::CUdeviceptr memory = 0;
  cuda::CUstream stream = nullptr;
  cuda::check(*real, real->cuMemAlloc(&memory, 1 << 20), "cuMemAlloc", "timing the driver");
  cuda::check(*real, real->cuStreamCreate(&stream, cuda::kStreamNonBlocking), "cuStreamCreate", "timing the driver");
  const std::uint64_t extents[3] = {64, 64, 1}, strides[2] = {128, 8192};
  const std::uint32_t box[3] = {64, 64, 1}, ones[3] = {1, 1, 1};
  auto* const address = reinterpret_cast<void*>(memory);
  nlohmann::ordered_json answer;
  const auto time = [&](const char* name, auto&& call) {
    double least = 1e9;
    for (int burst = 0; burst < 50; ++burst) {
      const auto start = Clock::now();
      for (int i = 0; i < 64; ++i) call();
      least = std::min(least, since(start, 1e-9) / 64);
    }
    answer[name] = std::round(10 * least) / 10;
  };
  time("cuTensorMapEncodeTiled", [&] {
    real->cuTensorMapEncodeTiled(&map, cuda::CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 3, address, extents, strides, box, ones,
                                 cuda::CU_TENSOR_MAP_INTERLEAVE_NONE, cuda::CU_TENSOR_MAP_SWIZZLE_128B,
                                 cuda::CU_TENSOR_MAP_L2_PROMOTION_L2_256B, cuda::CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  });
  time("cuTensorMapReplaceAddress", [&] { real->cuTensorMapReplaceAddress(&map, address); });
  time("cuCtxGetCurrent", [&] {
    cuda::CUcontext now = nullptr;
    real->cuCtxGetCurrent(&now);
  });
  for (const auto& [name, s] : {std::pair<const char*, cuda::CUstream>{"legacy", nullptr}, {"own stream", stream}}) {
    time(fmt::format("cuStreamGetCaptureInfo, {}", name).c_str(), [&, s = s] {
      cuda::CUstreamCaptureStatus status{};
      std::uint64_t id = 0;
      real->cuStreamGetCaptureInfo(s, &status, &id, nullptr, nullptr, nullptr, nullptr);
    });
    time(fmt::format("cuStreamGetId, {}", name).c_str(), [&, s = s] {
      unsigned long long id = 0;
      real->cuStreamGetId(s, &id);
    });
  }
  real->cuStreamDestroy(stream);
  real->cuMemFree(memory);
  return answer;
}

/// Milliseconds of making the plan from nothing, from the cache, and microseconds of its first call.
nlohmann::ordered_json startup() {
  nlohmann::ordered_json answer;
  std::vector<TensorView> pack;
  std::vector<double> cold, cached, in_driver, first;
  for (int i = 0; i < 3; ++i) {
    jit::cache_clear();
    const auto start = Clock::now();
    const CompiledPlan plan = make_plan();
    cold.push_back(since(start, 1e-3));
    if (pack.empty()) pack = make_pack(*real, plan);
    const auto call = Clock::now();
    if (!plan.execute(pack).ok()) throw Error(ErrorCode::internal, "bench", "the first call failed");
    first.push_back(since(call, 1e-6));
  }
  for (int i = 0; i < 9; ++i) {
    driver_ms = 0;
    const auto start = Clock::now();
    const CompiledPlan plan = make_plan();
    cached.push_back(since(start, 1e-3));
    in_driver.push_back(driver_ms);
  }
  answer["first_compile_of_process_ms"] = cold[0];
  answer["cold_compile_ms"] = std::min(cold[1], cold[2]);
  answer["cached_load_ms"] = *std::min_element(cached.begin(), cached.end());
  answer["cached_load_in_driver_ms"] =
      in_driver[static_cast<std::size_t>(std::min_element(cached.begin(), cached.end()) - cached.begin())];
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
  cuda::DriverTable table = *real;
  const cuda::DriverOverride use(&table);
  nlohmann::ordered_json result = {{"shape", {kM, kN, kK}}, {"type", "bf16"}};
  using Table = cuda::DriverTable;
  const cuda::DriverTable untimed = table;
  table.cuLibraryLoadData = kTimed<&Table::cuLibraryLoadData>;
  table.cuLibraryGetKernel = kTimed<&Table::cuLibraryGetKernel>;
  table.cuKernelSetAttribute = kTimed<&Table::cuKernelSetAttribute>;
  table.cuKernelGetFunction = kTimed<&Table::cuKernelGetFunction>;
  table.cuFuncLoad = kTimed<&Table::cuFuncLoad>;
  result["start"] = startup();
  table = untimed;
  result["driver_ns"] = driver_calls();
  const bench::LtMatmul lt(*real, kM, kN, kK);
  pin_to_this_core();
  for (const Flavor& f : kFlavors) {
    const CompiledPlan plan = make_plan(f);
    std::vector<std::vector<TensorView>> packs, shapes;
    for (int i = 0; i < kPacks; ++i) packs.push_back(make_pack(*real, plan));
    std::vector<void*> addresses;
    for (const TensorView& v : packs[0]) addresses.push_back(v.data);
    // Through an override, so that the plan's launch can be seen; it is gone from the table before anything is timed.
    table.cuLaunchKernelEx = record;
    if (const Status s = plan.execute(packs[0]); !s.ok()) throw plan.explain(s, packs[0]);
    table.cuLaunchKernelEx = real->cuLaunchKernelEx;
    const Recorded launch = recorded;
    // Whether maps get their new addresses from the driver or from the launcher itself.
    readdressed = 0;
    table.cuTensorMapReplaceAddress = [](cuda::CUtensorMap* map, void* address) {
      ++readdressed;
      return real->cuTensorMapReplaceAddress(map, address);
    };
    if (!plan.execute(packs[1]).ok()) throw Error(ErrorCode::internal, "bench", "a call with new addresses failed");
    table.cuTensorMapReplaceAddress = real->cuTensorMapReplaceAddress;
    fmt::print("new addresses by the driver: {}\n", readdressed);
    cuda::CUlaunchConfig config = launch.config;
    std::vector<cuda::CUlaunchAttribute> attributes = launch.attributes;
    config.attrs = attributes.data();
    void* parameters[] = {const_cast<std::byte*>(launch.block)};
    constexpr std::size_t kMask = kPacks - 1;
    std::vector<Timed> all;
    all.push_back({"bare cuLaunchKernelEx", [&](int) {
                     return real->cuLaunchKernelEx(&config, launch.function, parameters, nullptr) == cuda::CUDA_SUCCESS;
                   }});
    all.push_back({"checked, nothing new", [&](int) { return plan.execute(packs[0]).ok(); }});
    all.push_back(
        {"checked, pointers new", [&](int i) { return plan.execute(packs[static_cast<std::size_t>(i) & kMask]).ok(); }});
    const bool is_plain = &f == kFlavors;
    if (is_plain) {
      // More shapes than a plan keeps parameters of: each call makes its own.
      for (int i = 0; i < 2 * kPacks; ++i) {
        shapes.push_back(packs[0]);
        shapes.back()[0].extent[1] = shapes.back()[2].extent[1] = kM - 8 * i - 8;
      }
      all.push_back(
          {"checked, shapes new", [&](int i) { return plan.execute(shapes[static_cast<std::size_t>(i) % shapes.size()]).ok(); }});
      all.push_back({"checked, addresses", [&](int) { return plan.execute(std::span<void* const>(addresses)).ok(); }});
      if (lt.missing().empty())
        all.push_back(
            {"cublasLtMatmul", [&](int) { return lt(addresses[0], addresses[1], addresses[2]) == cuda::CUBLAS_STATUS_SUCCESS; }});
    }
    measure(*real, all);

    fmt::print("{}: {} of {} x {} x {}\n{:24} {:>9} {:>9} {:>9}\n", f.name, plan.name(), kM, kN, kK, "ns a call", "least",
               "median", "x bare");
    nlohmann::ordered_json calls;
    for (const Timed& t : all) {
      const double ratio = t.ratio_to(all[0]);
      fmt::print("{:24} {:9.0f} {:9.0f} {:9.3f}\n", t.name, t.least(), t.median(), ratio);
      calls[t.name] = {{"least_ns", t.least()}, {"median_ns", t.median()}, {"ratio", ratio}};
    }
    if (is_plain) {
      result["plan"] = plan.name();
      result["calls"] = calls;
    } else {
      result["fused"][f.name] = calls;
    }
  }
  if (!lt.missing().empty()) fmt::print("cublasLtMatmul was not measured: {}\n", lt.missing());
  for (const auto& [name, value] : result["driver_ns"].items()) fmt::print("{:36} {:7.1f} ns\n", name, value.get<double>());
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
