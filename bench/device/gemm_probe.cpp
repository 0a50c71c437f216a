// The sm90 kernel's flavors beside cuBLASLt on one GPU, below the executor: which tile, schedule and raster are worth what.
//   verglas_bench_gpu_gemm_probe [OUT.json] [COMMIT] [part of a case's name]
// Method: random normal data, operand sets rotated beyond L2; every contender in turn, order reversed each round. Steady state:
// 0.1 s of the contender itself, then a window of 30 ms between two readings of every SM's clock. Short run: four launches after
// 20 ms of rest. Util is the share of tensor cycles that did useful work; it does not depend on the clock.
#include <chrono>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <thread>

#include "cublaslt_product.hpp"
#include "engine/sm90/engine.hpp"
#include "engine/sm90/tensor_maps.hpp"

namespace {

using namespace bench;
using namespace verglas::sm90;

struct Shape {
  std::int64_t m, n, k;
  std::string name() const { return fmt::format("{}x{}x{}", m, n, k); }
  double flop() const { return 2.0 * static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k); }
};

struct Flavor {
  std::string note;
  KernelConfig config;
  int group = 0;  ///< raster group; 0: the default
};

KernelConfig make(int m, int n, Schedule schedule, int consumers, int stages, int buffers, bool programmatic = false) {
  KernelConfig c;
  c.block_m = m;
  c.block_n = n;
  c.schedule = schedule;
  c.consumers = consumers;
  c.stages = stages;
  c.store_buffers = buffers;
  c.programmatic = programmatic;
  if (stages == 0) c.stages = stages_that_fit(c, 12);
  return c;
}

std::vector<Flavor> flavors_for(const Shape& s) {
  using enum Schedule;
  if (s.m <= 128) {
    return {{"64x64", make(64, 64, cooperative, 1, 0, 1)},
            {"64x64 programmatic", make(64, 64, cooperative, 1, 0, 1, true)},
            {"64x32 programmatic", make(64, 32, cooperative, 1, 0, 1, true)},
            {"64x128 programmatic", make(64, 128, cooperative, 1, 0, 2, true)}};
  }
  return {{"128x256 whole tile", make(128, 256, cooperative, 2, 3, 4)},
          {"128x256 programmatic", make(128, 256, cooperative, 2, 3, 4, true)},
          {"128x256 2 chunks", make(128, 256, cooperative, 2, 4, 2)},
          {"128x256 2 stages", make(128, 256, cooperative, 2, 2, 4)},
          {"128x256 group 1", make(128, 256, cooperative, 2, 3, 4), 1},
          {"256x128", make(256, 128, cooperative, 2, 4, 2)},
          {"128x176 ping-pong", make(128, 176, pingpong, 2, 5, 2)},
          {"128x176 ping-pong programmatic", make(128, 176, pingpong, 2, 5, 2, true)},
          {"128x192 ping-pong", make(128, 192, pingpong, 2, 4, 2)},
          {"128x128 ping-pong", make(128, 128, pingpong, 2, 6, 2)}};
}

/// Operands of one shape in several sets, and one output for all contenders.
struct Operands {
  std::vector<DeviceMemory> a, b, d;
  Operands(const Gpu& gpu, const NormalPool& pool, const Shape& s) {
    const auto bytes = [](std::int64_t x, std::int64_t y) { return static_cast<std::size_t>(x * y) * 2; };
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
      const Problem p{
          s.m, s.n, s.k, 1, {{{o.a[i].address(), s.k, 1, 0}}}, {{{o.b[i].address(), s.k, 1, 0}}}, {o.d[i].address(), s.n, 1, 0}};
      ParameterBlock block = make_block(config_, p, f.group ? f.group : raster_group(config_, gpu.sm_count));
      if (config_.a_path == Path::tma) encode(block.a[0], map_of_a(config_, p));
      if (config_.b_path == Path::tma) encode(block.b[0], map_of_b(config_, p));
      if (stores_width(config_, 128)) encode(block.d, map_of_d(config_, p, 128));
      if (stores_width(config_, 64)) encode(block.d_half, map_of_d(config_, p, 64));
      if (stores_width(config_, 32)) encode(block.d_quarter, map_of_d(config_, p, 32));
      blocks_.push_back(block);
    }
    attribute_.id = cuda::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION;
    attribute_.value.programmaticStreamSerializationAllowed = 1;
    launch_.gridDimX = grid_of(blocks_[0], gpu.sm_count);
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

nlohmann::json measure(const Gpu& gpu, const ClockProbe& probe, const NormalPool& pool, const cuda::CublasLtTable& lt,
                       const Shape& s) {
  std::vector<Flavor> flavors = flavors_for(s);
  for (Flavor& f : flavors) {
    const Problem p{s.m, s.n, s.k, 1, {{{1 << 20, s.k, 1, 0}}}, {{{1 << 20, s.k, 1, 0}}}, {1 << 20, s.n, 1, 0}};
    fit_operands(f.config, p);
  }
  std::erase_if(flavors, [](const Flavor& f) { return fault_of(f.config).has_value(); });
  std::vector<jit::CompiledKernel> kernels(flavors.size());
  {
    std::vector<std::jthread> threads;
    for (std::size_t i = 0; i < flavors.size(); ++i)
      threads.emplace_back([&, i] { kernels[i] = jit::compile(gpu.nvrtc, compile_request(flavors[i].config)); });
  }
  const Operands o(gpu, pool, s);
  std::vector<Ours> ours;
  ours.reserve(flavors.size());
  for (std::size_t i = 0; i < flavors.size(); ++i) ours.emplace_back(gpu, flavors[i], s, o, kernels[i]);
  CublasLtProduct rival(gpu, lt, s.m, s.n, s.k);

  const Arena arena(gpu, probe, o.sets(), s.flop());
  std::vector<Contender> all;
  all.push_back({"cublaslt", [&](std::size_t i) { rival.launch(o.a[i].address(), o.b[i].address(), o.d[i].address()); }});
  rival.pick([&] {
    const int count = std::max(8, static_cast<int>(3e4 / arena.mean_us(all[0], 4)));
    return arena.mean_us(all[0], count);
  });
  for (std::size_t i = 0; i < flavors.size(); ++i)
    all.push_back({flavors[i].note, [&ours, i](std::size_t set) { ours[i].launch(set); }});

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
  constexpr int kRounds = 6;
  for (int round = 0; round < kRounds; ++round) {
    for (std::size_t i = 0; i < all.size(); ++i) arena.window(all[round % 2 ? all.size() - 1 - i : i]);
  }
  for (int round = 0; round < kRounds; ++round) {
    for (std::size_t i = 0; i < all.size(); ++i) arena.short_run(all[round % 2 ? all.size() - 1 - i : i]);
  }

  nlohmann::json records = nlohmann::json::array();
  const double rival_steady = median_of(all[0].steady_us), rival_short = median_of(all[0].short_us);
  fmt::print("{}: cuBLASLt heuristic {}, {} sets\n", s.name(), rival.chosen(), o.sets());
  for (const Contender& c : all) {
    const double steady = median_of(c.steady_us), quick = median_of(c.short_us), util = median_of(c.util), mhz = median_of(c.mhz);
    fmt::print(
        "  {:<32} steady {:8.1f} us {:6.1f} TFLOP/s util {:5.1f} {:5.0f} MHz ratio {:.3f} | short {:8.1f} us ratio {:.3f} | {} "
        "differ\n",
        c.name, steady, s.flop() / steady * 1e-6, util, mhz, rival_steady / steady, quick, rival_short / quick, c.different);
    for (const bool is_steady : {true, false}) {
      nlohmann::json r = {{"suite", is_steady ? "gemm_probe.steady" : "gemm_probe.short"},
                          {"case", s.name() + " " + c.name},
                          {"ours_us", is_steady ? steady : quick},
                          {"rival", "cublaslt best of 8"},
                          {"rival_us", is_steady ? rival_steady : rival_short},
                          {"ratio", is_steady ? rival_steady / steady : rival_short / quick}};
      if (is_steady) r["util_percent"] = util, r["sm_mhz"] = mhz, r["different_elements"] = c.different;
      records.push_back(std::move(r));
    }
  }
  std::fflush(stdout);
  return records;
}

}  // namespace

int main(int argc, char** argv) {
  const std::string out = argc > 1 ? argv[1] : "gemm_probe.json", commit = argc > 2 ? argv[2] : "",
                    only = argc > 3 ? argv[3] : "";
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
    for (const Shape& s : {Shape{4096, 4096, 4096},
                           {8192, 8192, 8192},
                           {8192, 8192, 512},
                           {8192, 8192, 1024},
                           {2048, 4096, 4096},
                           {4096, 14336, 4096},
                           {4096, 4096, 4095},
                           {16, 4096, 4096},
                           {128, 4096, 4096}}) {
      if (s.name().find(only) == std::string::npos) continue;
      for (auto& r : measure(gpu, probe, pool, **lt, s)) file["records"].push_back(std::move(r));
      std::ofstream(out) << file.dump(1) << '\n';
    }
  } catch (const std::exception& e) {
    fmt::print(stderr, "{}\n", e.what());
    return 1;
  }
  return 0;
}
