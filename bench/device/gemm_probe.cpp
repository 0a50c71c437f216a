// The plans of the sm90 engine for plain products beside cuBLASLt on one GPU, below the executor: what each is worth, and whether
// the engine puts the best one first.
//   verglas_bench_gpu_gemm_probe [OUT.json] [COMMIT] [part of a shape's name] [REACH] [ROUNDS]
// Method: random normal data, operand sets rotated beyond L2; every contender in turn, order reversed each round. Steady state:
// 0.1 s of the contender itself, then a window of 30 ms between two readings of every SM's clock. Short run: four launches after
// 20 ms of rest. Util is the share of tensor cycles that did useful work; it does not depend on the clock.
#include <chrono>
#include <fstream>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <thread>

#include "chain/analyse.hpp"
#include "cublaslt_product.hpp"
#include "engine/sm90/engine.hpp"
#include "engine/sm90/predict.hpp"
#include "engine/sm90/tensor_maps.hpp"
#include "verglas/verglas.hpp"

namespace {

using namespace bench;
using namespace verglas::sm90;

struct Shape {
  std::int64_t m, n, k, batches = 1;
  std::string name() const {
    return batches == 1 ? fmt::format("{}x{}x{}", m, n, k) : fmt::format("{}x{}x{}x{}", batches, m, n, k);
  }
  double flop() const { return 2.0 * static_cast<double>(m * n) * static_cast<double>(k * batches); }
};

struct Flavor {
  std::string note;
  KernelConfig config;
  double predicted = 0;  ///< microseconds
  bool exchanged = false;
};

chain::FusionChain chain_of(const Shape& s) {
  Graph g({.io_data_type = DataType::bf16});
  const Tensor a = g.tensor({.name = "a", .dim = {s.batches, s.m, s.k}, .stride = {s.m * s.k, s.k, 1}});
  const Tensor b = g.tensor({.name = "b", .dim = {s.batches, s.k, s.n}, .stride = {s.n * s.k, 1, s.k}});
  g.matmul(a, b).set_output(true);
  g.validate();
  auto chain = chain::analyse(g.data());
  if (!chain) throw std::runtime_error(chain.error().text);
  return *std::move(chain);
}

Problem problem_of(const Shape& s, bool exchanged, std::uint64_t a, std::uint64_t b, std::uint64_t d) {
  const Matrix ma{a, s.k, 1, s.m * s.k}, mb{b, s.k, 1, s.n * s.k};
  if (exchanged) return {s.n, s.m, s.k, s.batches, {{mb}}, {{ma}}, {d, 1, s.n, s.m * s.n}};
  return {s.m, s.n, s.k, s.batches, {{ma}}, {{mb}}, {d, s.n, 1, s.m * s.n}};
}

/// The plans that the engine offers, in its order, but for those that it puts far behind its first.
std::vector<Flavor> flavors_for(const Shape& s, int sm_count, double reach) {
  std::vector<Flavor> all;
  const chain::FusionChain chain = chain_of(s);
  for (const Knobs& knobs : configurations_of(chain, sm_count)) {
    const KernelConfig c = configuration_of(chain, knobs);
    const double us = 1e6 * predict_seconds(c, seen_chain(chain, knobs).declared, sm_count);
    if (!all.empty() && us > reach * all.front().predicted) continue;
    all.push_back({name_of(c) + (exchanges(knobs) ? " exchanged" : ""), c, us, exchanges(knobs)});
  }
  return all;
}

/// Operands of one shape in several sets, and one output for all contenders.
struct Operands {
  std::vector<DeviceMemory> a, b, d;
  Operands(const Gpu& gpu, const NormalPool& pool, const Shape& s) {
    const auto bytes = [&](std::int64_t x, std::int64_t y) { return static_cast<std::size_t>(s.batches * x * y) * 2; };
    const std::size_t set = bytes(s.m, s.k) + bytes(s.n, s.k);
    const std::size_t sets = std::max<std::size_t>(3, 2 * static_cast<std::size_t>(gpu.l2_bytes) / set + 1);
    for (std::size_t i = 0; i < sets; ++i) {
      pool.fill(a.emplace_back(gpu, bytes(s.m, s.k)), 1'000'003 * (2 * i + 1));
      pool.fill(b.emplace_back(gpu, bytes(s.n, s.k)), 1'000'003 * (2 * i + 2));
      d.emplace_back(gpu, bytes(s.m, s.n));
    }
  }
  std::size_t sets() const { return a.size(); }
};

class Ours {
 public:
  Ours(const Gpu& gpu, const Flavor& f, const Shape& s, const Operands& o, const jit::CompiledKernel& kernel)
      : gpu_(gpu), config_(f.config), kernel_(gpu.load(kernel, smem_bytes(f.config))) {
    for (std::size_t i = 0; i < o.sets(); ++i) {
      const Problem p = problem_of(s, f.exchanged, o.a[i].address(), o.b[i].address(), o.d[i].address());
      ParameterBlock block = make_block(config_, p, raster_group(config_, gpu.sm_count));
      if (config_.a_path == Path::tma) encode(block.a[0], map_of_a(config_, p));
      if (config_.b_path == Path::tma) encode(block.b[0], map_of_b(config_, p));
      if (stores_width(config_, 128)) encode(block.d, map_of_d(config_, p, 128));
      if (stores_width(config_, 64)) encode(block.d_half, map_of_d(config_, p, 64));
      if (stores_width(config_, 32)) encode(block.d_quarter, map_of_d(config_, p, 32));
      blocks_.push_back(block);
    }
    attribute_.id = cuda::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION;
    attribute_.value.programmaticStreamSerializationAllowed = 1;
    launch_.gridDimX = grid_of(config_, blocks_[0], gpu.sm_count);
    launch_.gridDimY = launch_.gridDimZ = launch_.blockDimY = launch_.blockDimZ = 1;
    launch_.blockDimX = static_cast<unsigned>(threads_of(config_));
    launch_.sharedMemBytes = static_cast<unsigned>(smem_bytes(config_));
    launch_.hStream = gpu.stream;
    launch_.numAttrs = config_.programmatic ? 1U : 0U;
  }
  void launch(std::size_t set) {
    void* parameters[] = {&blocks_[set]};
    launch_.attrs = &attribute_;
    gpu_.ok(gpu_.driver.cuLaunchKernelEx(&launch_, kernel_->function(0), parameters, nullptr));
  }

 private:
  void encode(cuda::CUtensorMap& map, const MapRequest& r) const {
    if (const auto fault = fault_of(r)) throw std::runtime_error(*fault);
    constexpr std::uint32_t kOnes[3] = {1, 1, 1};
    gpu_.ok(gpu_.driver.cuTensorMapEncodeTiled(&map, r.type, 3, reinterpret_cast<void*>(r.address), r.extents.data(),
                                               r.strides.data(), r.box.data(), kOnes, cuda::CU_TENSOR_MAP_INTERLEAVE_NONE,
                                               r.swizzle, cuda::CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                                               cuda::CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE));
  }
  const Gpu& gpu_;
  KernelConfig config_;
  std::shared_ptr<jit::LoadedKernel> kernel_;
  std::vector<ParameterBlock> blocks_;
  cuda::CUlaunchAttribute attribute_{};
  cuda::CUlaunchConfig launch_{};
};

struct Contender {
  std::string name;
  double predicted_us;
  std::function<void(std::size_t)> launch;  ///< with operand set i
  std::size_t next = 0;
  std::vector<double> steady_us{}, short_us{}, util{}, mhz{};
  std::size_t different = 0;  ///< elements of D that differ from cuBLASLt's
};

class Arena {
 public:
  Arena(const Gpu& gpu, const ClockProbe& probe, std::size_t sets, double flop)
      : gpu_(gpu), probe_(probe), sets_(sets), flop_(flop) {}

  void burst(Contender& c, int count) const {
    for (int i = 0; i < count; ++i) c.launch(c.next++ % sets_);
  }
  double mean_us(Contender& c, int count) const {
    return gpu_.time_us([&] { burst(c, count); }) / count;
  }
  void window(Contender& c) const {
    const double estimate = mean_us(c, 8);
    const int warm = std::max(4, static_cast<int>(1e5 / estimate)), count = std::max(8, static_cast<int>(3e4 / estimate));
    burst(c, warm);
    probe_.read(0);
    const double us = mean_us(c, count);
    probe_.read(1);
    const ClockProbe::Span span = probe_.span();
    c.steady_us.push_back(us);
    c.util.push_back(100 * flop_ * count / (4096.0 * gpu_.sm_count * span.cycles));
    c.mhz.push_back(1e3 * span.cycles / span.ns);
  }
  void short_run(Contender& c) const {
    gpu_.synchronize();
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    c.short_us.push_back(mean_us(c, 4));
  }

 private:
  const Gpu& gpu_;
  const ClockProbe& probe_;
  std::size_t sets_;
  double flop_;
};

struct Options {
  std::string only;    ///< part of a shape's name
  double reach = 1.5;  ///< times the best prediction
  int rounds = 6;
};

nlohmann::json measure(const Gpu& gpu, const ClockProbe& probe, const NormalPool& pool, const cuda::CublasLtTable& lt,
                       const Shape& s, const Options& options) {
  const std::vector<Flavor> flavors = flavors_for(s, gpu.sm_count, options.reach);
  static std::map<std::string, jit::CompiledKernel> made;
  std::vector<jit::CompiledKernel> kernels(flavors.size());
  {
    std::vector<std::jthread> threads;
    for (std::size_t i = 0; i < flavors.size(); ++i) {
      if (const auto it = made.find(name_of(flavors[i].config)); it != made.end())
        kernels[i] = it->second;
      else
        threads.emplace_back([&, i] { kernels[i] = jit::compile(gpu.nvrtc, compile_request(flavors[i].config)); });
    }
  }
  for (std::size_t i = 0; i < flavors.size(); ++i) made[name_of(flavors[i].config)] = kernels[i];
  const Operands o(gpu, pool, s);
  std::vector<Ours> ours;
  ours.reserve(flavors.size());
  for (std::size_t i = 0; i < flavors.size(); ++i) ours.emplace_back(gpu, flavors[i], s, o, kernels[i]);
  CublasLtProduct rival(gpu, lt, s.m, s.n, s.k, {}, s.batches);

  const Arena arena(gpu, probe, o.sets(), s.flop());
  std::vector<Contender> all;
  all.push_back({"cublaslt", 0, [&](std::size_t i) { rival.launch(o.a[i].address(), o.b[i].address(), o.d[i].address()); }});
  rival.pick([&] {
    const int count = std::max(8, static_cast<int>(3e4 / arena.mean_us(all[0], 4)));
    return arena.mean_us(all[0], count);
  });
  for (std::size_t i = 0; i < flavors.size(); ++i)
    all.push_back({flavors[i].note, flavors[i].predicted, [&ours, i](std::size_t set) { ours[i].launch(set); }});

  // Right before fast: the same bits as cuBLASLt on set 0, which sums in the same order unless it splits K.
  std::vector<std::uint16_t> want;
  for (Contender& c : all) {
    gpu.ok(gpu.driver.cuMemsetD8Async(o.d[0].address(), 0xFF, o.d[0].bytes(), gpu.stream));
    c.launch(0);
    gpu.synchronize();
    const auto got = o.d[0].download<std::uint16_t>();
    if (want.empty()) want = got;
    for (std::size_t i = 0; i < got.size(); ++i) c.different += got[i] != want[i];
  }
  for (int round = 0; round < options.rounds; ++round) {
    for (std::size_t i = 0; i < all.size(); ++i) arena.window(all[round % 2 ? all.size() - 1 - i : i]);
  }
  for (int round = 0; round < options.rounds; ++round) {
    for (std::size_t i = 0; i < all.size(); ++i) arena.short_run(all[round % 2 ? all.size() - 1 - i : i]);
  }

  nlohmann::json records = nlohmann::json::array();
  const double rival_steady = median_of(all[0].steady_us), rival_short = median_of(all[0].short_us);
  fmt::print("{}: cuBLASLt heuristic {}, {} sets\n", s.name(), rival.chosen(), o.sets());
  for (const Contender& c : all) {
    const double steady = median_of(c.steady_us), quick = median_of(c.short_us), util = median_of(c.util), mhz = median_of(c.mhz);
    fmt::print(
        "  {:<46} predicted {:7.1f} steady {:7.1f} us {:6.1f} TFLOP/s util {:5.1f} {:5.0f} MHz ratio {:.3f} | short {:8.1f} us "
        "ratio {:.3f} | {} "
        "differ\n",
        c.name, c.predicted_us, steady, s.flop() / steady * 1e-6, util, mhz, rival_steady / steady, quick, rival_short / quick,
        c.different);
    for (const bool is_steady : {true, false}) {
      nlohmann::json r = {{"suite", is_steady ? "gemm_probe.steady" : "gemm_probe.short"},
                          {"case", s.name() + " " + c.name},
                          {"ours_us", is_steady ? steady : quick},
                          {"rival", "cublaslt best of 8"},
                          {"rival_us", is_steady ? rival_steady : rival_short},
                          {"ratio", is_steady ? rival_steady / steady : rival_short / quick}};
      if (is_steady && c.predicted_us > 0) r["predicted_us"] = c.predicted_us;
      if (is_steady) r["util_percent"] = util, r["sm_mhz"] = mhz, r["different_elements"] = c.different;
      records.push_back(std::move(r));
    }
  }
  std::fflush(stdout);
  return records;
}

}  // namespace

int main(int argc, char** argv) {
  const std::string out = argc > 1 ? argv[1] : "gemm_probe.json", commit = argc > 2 ? argv[2] : "";
  Options options;
  if (argc > 3) options.only = argv[3];
  if (argc > 4) options.reach = std::stod(argv[4]);
  if (argc > 5) options.rounds = std::stoi(argv[5]);
  try {
    const Gpu gpu;
    const ClockProbe probe(gpu);
    const auto lt = cuda::cublaslt();
    if (!lt) throw std::runtime_error(lt.error().text);
    const NormalPool pool;
    nlohmann::json file = {{"device", gpu.name},
                           {"driver", gpu.driver.version},
                           {"cublaslt", (*lt)->version},
                           {"commit", commit},
                           {"nvrtc", fmt::format("{}.{}", gpu.nvrtc.major, gpu.nvrtc.minor)},
                           {"command", "verglas_bench_gpu_gemm_probe"},
                           {"records", nlohmann::json::array()}};
    for (const Shape& s : {Shape{1, 4096, 4096}, Shape{8, 4096, 4096}, Shape{16, 4096, 4096}, Shape{32, 4096, 4096},
                           Shape{16, 14336, 4096}, Shape{16, 4096, 14336}, Shape{16, 8192, 8192}, Shape{64, 14336, 4096},
                           Shape{64, 4096, 4096}, Shape{128, 4096, 4096}, Shape{256, 4096, 4096}, Shape{1024, 4096, 4096},
                           Shape{4096, 4096, 4096}, Shape{4096, 14336, 4096}, Shape{4096, 4096, 14336}, Shape{8192, 8192, 8192},
                           Shape{8192, 8192, 1024}, Shape{2048, 2048, 256}, Shape{512, 512, 512, 64}}) {
      if (options.only == "few" ? s.m > 256 || s.batches > 1 : s.name().find(options.only) == std::string::npos) continue;
      for (auto& r : measure(gpu, probe, pool, **lt, s, options)) file["records"].push_back(std::move(r));
      std::ofstream(out) << file.dump(1) << '\n';
    }
  } catch (const std::exception& e) {
    fmt::print(stderr, "{}\n", e.what());
    return 1;
  }
  return 0;
}
