// Fused graphs beside our own plain product of the same size, in one run: what an epilogue, a second output or a reduction costs.
//   verglas_bench_gpu_flavors FILE [COMMIT [PART OF A CASE]]
//   verglas_bench_gpu_flavors --plans [PART OF A CASE]     every flavor on every plan, as a table: what the ranking is fitted to
// Every flavor runs through the public API with the plan that is ranked first. Random data, operands rotated beyond L2,
// contenders in turn and in reverse order. Steady: 0.1 s of the flavor itself, then a window of 20 ms. ratio = time of the plain
// product ÷ the flavor's; a SwiGLU has twice the arithmetic, so its plain product is the one of twice the columns.
#include <atomic>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <thread>

#include "device/gpu.hpp"
#include "verglas/verglas.hpp"

namespace {

using namespace bench;

constexpr Device kGpu{DeviceType::cuda, 0};
constexpr int kSets = 3;

struct Flavor {
  std::string name;
  int products;
  std::function<void(Graph&, Tensor a, Tensor b)> describe;
};

Tensor dense(Graph& g, const char* name, std::int64_t rows, std::int64_t cols) {
  return g.tensor({.name = name, .dim = {rows, cols}, .stride = {cols, 1}});
}
void reduce(Graph& g, Tensor c, ReductionMode mode, std::vector<std::int64_t> dim) {
  g.reduction(c, mode).set_dim(std::move(dim)).set_output(true).set_data_type(DataType::fp32);
}

std::vector<Flavor> flavors(std::int64_t m, std::int64_t n, std::int64_t k) {
  return {
      {"plain", 1, [](Graph& g, Tensor a, Tensor b) { g.matmul(a, b).set_output(true); }},
      {"bias+relu", 1,
       [=](Graph& g, Tensor a, Tensor b) { g.relu(g.add(g.matmul(a, b), dense(g, "bias", 1, n))).set_output(true); }},
      {"bias+gelu(tanh)", 1,
       [=](Graph& g, Tensor a, Tensor b) {
         g.pointwise(PointwiseMode::gelu_approx_tanh, {g.add(g.matmul(a, b), dense(g, "bias", 1, n))}, {}).set_output(true);
       }},
      {"residual+second output", 1,
       [=](Graph& g, Tensor a, Tensor b) {
         Tensor h = g.add(g.matmul(a, b), dense(g, "residual", m, n)).set_output(true);
         g.relu(h).set_output(true);
       }},
      {"row-amax", 1,
       [=](Graph& g, Tensor a, Tensor b) { reduce(g, g.matmul(a, b).set_output(true), ReductionMode::amax, {m, 1}); }},
      {"column-sum", 1,
       [=](Graph& g, Tensor a, Tensor b) { reduce(g, g.matmul(a, b).set_output(true), ReductionMode::add, {1, n}); }},
      {"norm2", 1,
       [=](Graph& g, Tensor a, Tensor b) { reduce(g, g.matmul(a, b).set_output(true), ReductionMode::norm2, {1, 1}); }},
      {"swiglu", 2,
       [=](Graph& g, Tensor a, Tensor b) {
         const Tensor up = g.tensor({.name = "up", .dim = {k, n}, .stride = {1, k}});
         g.mul(g.swish(g.matmul(a, b)), g.matmul(a, up)).set_output(true);
       }},
  };
}

PlanList plans_of(const Flavor& f, std::int64_t m, std::int64_t n, std::int64_t k) {
  Graph g;
  const Tensor a = dense(g, "a", m, k), b = g.tensor({.name = "b", .dim = {k, n}, .stride = {1, k}});
  f.describe(g, a, b);
  return g.plans({.device = kGpu, .deselect_engines = {"cpu", "cublaslt"}});
}

/// A plan and its operands, in several sets.
class Contender {
 public:
  Contender(const Gpu& gpu, const std::string& name, CompiledPlan plan, const std::vector<std::uint16_t>& noise)
      : gpu_(gpu), name_(name), plan_(std::move(plan)) {
    for (int set = 0; set < kSets; ++set) {
      std::vector<TensorView>& call = calls_.emplace_back();
      for (const OperandInfo& o : plan_.operands()) {
        std::int64_t count = 1;
        for (const std::int64_t d : o.dim) count *= d;
        const auto bytes = static_cast<std::size_t>(count * bytes_of(o.dtype));
        cuda::CUdeviceptr memory = 0;
        gpu.ok(gpu.driver.cuMemAlloc(&memory, bytes));
        memory_.push_back(memory);
        for (std::size_t at = 0; at < bytes && !o.is_output; at += 2 * noise.size())
          gpu.ok(gpu.driver.cuMemcpyHtoD(memory + at, noise.data(), std::min(bytes - at, 2 * noise.size())));
        TensorView v;
        v.data = reinterpret_cast<void*>(memory);
        v.dtype = o.dtype;
        v.device = kGpu;
        v.rank = static_cast<std::int8_t>(o.dim.size());
        std::copy(o.dim.begin(), o.dim.end(), v.extent.begin());
        std::copy(o.stride.begin(), o.stride.end(), v.stride.begin());
        call.push_back(v);
      }
    }
  }
  ~Contender() {
    for (const cuda::CUdeviceptr m : memory_) gpu_.driver.cuMemFree(m);
  }
  Contender(const Contender&) = delete;
  Contender& operator=(const Contender&) = delete;

  void window() {
    const double estimate = mean_us(8);
    burst(std::max(8, static_cast<int>(1e5 / estimate)));
    us.push_back(mean_us(std::max(8, static_cast<int>(2e4 / estimate))));
  }
  const std::string& name() const { return name_; }
  std::string plan() const { return plan_.name(); }
  std::vector<double> us{};

 private:
  void burst(int count) {
    for (int i = 0; i < count; ++i) plan_.run(calls_[next_++ % kSets], {gpu_.stream});
  }
  double mean_us(int count) {
    return gpu_.time_us([&] { burst(count); }) / count;
  }

  const Gpu& gpu_;
  std::string name_;
  CompiledPlan plan_;
  std::vector<cuda::CUdeviceptr> memory_{};
  std::vector<std::vector<TensorView>> calls_{};
  std::size_t next_ = 0;
};

std::vector<std::uint16_t> noise_values() {
  std::vector<std::uint16_t> noise(1 << 20);
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  for (std::uint16_t& bits : noise) bits = static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(normal(random)) >> 16);
  return noise;
}

constexpr std::array<std::array<std::int64_t, 3>, 3> kShapes{{{4096, 4096, 4096}, {2048, 4096, 4096}, {8192, 8192, 1024}}};

/// Every flavor on every plan without programmatic launch: predicted and measured time.
int scan(const std::string& part) {
  const Gpu gpu;
  const std::vector<std::uint16_t> noise = noise_values();
  for (const auto& [m, n, k] : kShapes) {
    struct Entry {
      std::string flavor;
      double predicted;
      CompiledPlan plan;
      std::unique_ptr<Contender> contender;
    };
    std::vector<Entry> all;
    std::vector<std::pair<PlanList, std::size_t>> from;
    for (const Flavor& f : flavors(m, n, k)) {
      const std::string name = fmt::format("{}x{}x{} {}", m, n, k, f.name);
      if (name.find(part) == std::string::npos) continue;
      const PlanList plans = plans_of(f, m, n, k);
      for (std::size_t i = 0; i < plans.size(); ++i)
        if (plans.knobs(i).at("PROGRAMMATIC") == 0) {
          all.push_back({name, plans.predicted_seconds(i) * 1e6, {}, {}});
          from.emplace_back(plans, i);
        }
    }
    std::atomic<std::size_t> next{0};
    {
      std::vector<std::jthread> workers;  // compiling is what takes the time
      for (unsigned t = 0; t < std::thread::hardware_concurrency(); ++t)
        workers.emplace_back([&] {
          for (std::size_t i = next++; i < all.size(); i = next++) all[i].plan = from[i].first.compile(from[i].second);
        });
    }
    for (Entry& e : all) e.contender = std::make_unique<Contender>(gpu, e.flavor, e.plan, noise);
    for (int round = 0; round < 3; ++round) {
      for (Entry& e : all) e.contender->window();
      std::reverse(all.begin(), all.end());
    }
    for (const Entry& e : all)
      fmt::print("{:<40} {:8.1f} us, predicted {:8.1f} us   {}\n", e.flavor, median_of(e.contender->us), e.predicted,
                 e.plan.name());
    std::fflush(stdout);
  }
  return 0;
}

int measure(const std::string& file, const std::string& commit, const std::string& part, const std::string& command) {
  const Gpu gpu;
  const std::vector<std::uint16_t> noise = noise_values();
  nlohmann::json records = nlohmann::json::array();
  for (const auto& [m, n, k] : kShapes) {
    const std::string shape = fmt::format("{}x{}x{}", m, n, k);
    if (shape.find(part) == std::string::npos) continue;
    std::vector<std::unique_ptr<Contender>> all;
    for (const Flavor& f : flavors(m, n, k))
      all.push_back(std::make_unique<Contender>(gpu, f.name, plans_of(f, m, n, k).compile(), noise));
    all.push_back(std::make_unique<Contender>(gpu, "plain, twice the columns",
                                              plans_of(flavors(m, 2 * n, k)[0], m, 2 * n, k).compile(), noise));
    for (int round = 0; round < 4; ++round) {
      for (auto& c : all) c->window();
      std::reverse(all.begin(), all.end());
    }
    const auto time_of = [&](const std::string& name) {
      for (const auto& c : all)
        if (c->name() == name) return median_of(c->us);
      return 0.0;
    };
    for (const Flavor& f : flavors(m, n, k)) {
      if (f.name == "plain") continue;
      const std::string rival = f.products == 2 ? "plain, twice the columns" : "plain";
      const double ours = time_of(f.name), theirs = time_of(rival);
      std::string plan;
      for (const auto& c : all)
        if (c->name() == f.name) plan = c->plan();
      records.push_back({{"suite", "gpu_flavors.steady"},
                         {"case", shape + " " + f.name},
                         {"ours_us", ours},
                         {"rival", rival},
                         {"rival_us", theirs},
                         {"ratio", theirs / ours},
                         {"plan", plan}});
      fmt::print("{:<16} {:<24} {:8.1f} us, {} {:8.1f} us, ratio {:.3f}   {}\n", shape, f.name, ours, rival, theirs,
                 theirs / ours, plan);
      std::fflush(stdout);
    }
  }
  const nlohmann::json result = {
      {"device", gpu.name}, {"driver", gpu.driver.version}, {"commit", commit}, {"command", command}, {"records", records}};
  std::ofstream(file) << result.dump(1) << '\n';
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) {
    fmt::print(stderr, "verglas_bench_gpu_flavors FILE [COMMIT [PART OF A CASE]], or --plans [PART OF A CASE]\n");
    return 2;
  }
  try {
    if (argv[1] == std::string("--plans")) return scan(argc > 2 ? argv[2] : "");
    std::string command = "verglas_bench_gpu_flavors";
    return measure(argv[1], argc > 2 ? argv[2] : "unknown", argc > 3 ? argv[3] : "", command);
  } catch (const std::exception& e) {
    fmt::print(stderr, "{}\n", e.what());
    return 1;
  }
}
