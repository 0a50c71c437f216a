// What bench/gpu/measure.py measures, behind a C interface that any Python can load: plans of Verglas from graph files,
// cuBLASLt's products, CUDA graphs of whatever is launched on one stream, and a probe of the SM clock.
//   Errors   a function answers −1 or a null pointer, and verglas_bench_error() says why
//   Threads  verglas_bench_plan may be called from several at a time, everything else from the one that opened the device
#include <deque>
#include <functional>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>

#include "device/cublaslt_product.hpp"
#include "verglas/verglas.hpp"

namespace {

using namespace bench;

struct Contender {
  CompiledPlan plan;
  std::string text;  ///< JSON about it
  std::unique_ptr<CublasLtProduct> product;
};

struct State {
  Gpu gpu;
  ClockProbe probe{gpu};
  std::string about;
  std::deque<Contender> contenders;
  std::vector<cuda::CUgraphExec> graphs;
  std::mutex mutex;
};

State* state = nullptr;  // never given back: the driver may be gone before statics are
thread_local std::string failure;

template <class T>
T guarded(T otherwise, const std::function<T()>& body) {
  try {
    return body();
  } catch (const std::exception& e) {
    failure = e.what();
    return otherwise;
  }
}

Contender& contender(int id) {
  const std::lock_guard lock(state->mutex);
  return state->contenders.at(static_cast<std::size_t>(id));
}

int keep(Contender c) {
  const std::lock_guard lock(state->mutex);
  state->contenders.push_back(std::move(c));
  return static_cast<int>(state->contenders.size()) - 1;
}

nlohmann::json about_plan(const PlanList& plans, std::size_t index, const CompiledPlan& plan) {
  nlohmann::json operands = nlohmann::json::array();
  for (const OperandInfo& o : plan.operands())
    operands.push_back(
        {{"name", o.name}, {"type", name_of(o.dtype)}, {"dim", o.dim}, {"stride", o.stride}, {"output", o.is_output}});
  return {{"plan", plan.name()},
          {"plans", plans.size()},
          {"predicted_us", plans.predicted_seconds(index) * 1e6},
          {"operands", operands}};
}

}  // namespace

extern "C" {

const char* verglas_bench_error() { return failure.c_str(); }

/// Takes device 0; answers JSON about it, the stream of all launches among it.
const char* verglas_bench_open() {
  return guarded<const char*>(nullptr, [] {
    if (!state) state = new State;
    const Gpu& gpu = state->gpu;
    const auto lt = cuda::cublaslt();
    state->about = nlohmann::json{{"device", gpu.name},
                                  {"driver_api", gpu.driver.version},
                                  {"nvrtc", fmt::format("{}.{}", gpu.nvrtc.major, gpu.nvrtc.minor)},
                                  {"cublaslt", lt ? static_cast<long>((*lt)->version) : 0L},
                                  {"sm_count", gpu.sm_count},
                                  {"l2_bytes", gpu.l2_bytes},
                                  {"stream", reinterpret_cast<std::uintptr_t>(gpu.stream)}}
                       .dump();
    return state->about.c_str();
  });
}

/// The plan of the Hopper engine that is ranked `index`-th for a graph file's text.
int verglas_bench_plan(const char* graph, int index) {
  return guarded<int>(-1, [&] {
    const PlanList plans =
        Graph::from_json(graph).plans({.device = {DeviceType::cuda, 0}, .deselect_engines = {"cpu", "cublaslt"}});
    const auto at = static_cast<std::size_t>(index);
    std::vector<std::size_t> ours;
    for (std::size_t i = 0; i < plans.size(); ++i)
      if (!plans.barred(i)) ours.push_back(i);
    if (at >= ours.size()) throw std::runtime_error(plans.size() == 0 ? plans.unsupported_text() : "no further plan");
    Contender c;
    c.plan = plans.compile(ours[at]);
    c.text = about_plan(plans, ours[at], c.plan).dump();
    return keep(std::move(c));
  });
}

/// What is known of a plan, as JSON.
const char* verglas_bench_about(int id) {
  return guarded<const char*>(nullptr, [&] { return contender(id).text.c_str(); });
}

/// cuBLASLt's product of a type: bf16, fp16, tf32 or int8.
int verglas_bench_product(const char* type, std::int64_t l, std::int64_t m, std::int64_t n, std::int64_t k) {
  return guarded<int>(-1, [&] {
    const auto lt = cuda::cublaslt();
    if (!lt) throw std::runtime_error(lt.error().text);
    Contender c;
    c.product = std::make_unique<CublasLtProduct>(state->gpu, **lt, m, n, k, LtTypes::of(type), l);
    return keep(std::move(c));
  });
}

int verglas_bench_algorithms(int id) {
  return guarded<int>(-1, [&] { return static_cast<int>(contender(id).product->algorithms()); });
}

int verglas_bench_choose(int id, int algorithm) {
  return guarded<int>(-1, [&] {
    contender(id).product->choose(static_cast<std::size_t>(algorithm));
    return 0;
  });
}

/// Enqueues one call. addresses  of a plan in the order of its operands; of a product a, b, d
int verglas_bench_launch(int id, void* const* addresses) {
  return guarded<int>(-1, [&] {
    Contender& c = contender(id);
    if (c.product) {
      const auto address = [&](int i) { return reinterpret_cast<std::uint64_t>(addresses[i]); };
      c.product->launch(address(0), address(1), address(2));
      return 0;
    }
    const std::span<void* const> all(addresses, c.plan.operands().size());
    const Status s = c.plan.execute(all, {state->gpu.stream});
    if (s.ok()) return 0;
    std::vector<TensorView> views;
    for (void* a : all) views.push_back(TensorView::address(a));
    throw std::runtime_error(c.plan.explain(s, views, {state->gpu.stream}).what());
  });
}

/// What is enqueued between these two, by whom ever, becomes a graph; its number is answered.
int verglas_bench_capture() {
  return guarded<int>(-1, [] {
    state->gpu.ok(state->gpu.driver.cuStreamBeginCapture(state->gpu.stream, cuda::CU_STREAM_CAPTURE_MODE_RELAXED));
    return 0;
  });
}
int verglas_bench_captured() {
  return guarded<int>(-1, [] {
    const Gpu& gpu = state->gpu;
    cuda::CUgraph graph = nullptr;
    cuda::CUgraphExec executable = nullptr;
    gpu.ok(gpu.driver.cuStreamEndCapture(gpu.stream, &graph));
    gpu.ok(gpu.driver.cuGraphInstantiateWithFlags(&executable, graph, 0));
    gpu.driver.cuGraphDestroy(graph);
    state->graphs.push_back(executable);
    return static_cast<int>(state->graphs.size()) - 1;
  });
}

/// Microseconds of `count` replays behind `warm` that do not count; −1 on failure.
/// cycles, ns  where not null: mean over SMs of the clock cycles and nanoseconds of the same replays
double verglas_bench_replay(int graph, int warm, int count, double* cycles, double* ns) {
  return guarded<double>(-1.0, [&] {
    const Gpu& gpu = state->gpu;
    cuda::CUgraphExec const executable = state->graphs.at(static_cast<std::size_t>(graph));
    const auto replay = [&](int times) {
      for (int i = 0; i < times; ++i) gpu.ok(gpu.driver.cuGraphLaunch(executable, gpu.stream));
    };
    replay(warm);
    if (cycles) state->probe.read(0);
    const double us = gpu.time_us([&] { replay(count); });
    if (cycles) {
      state->probe.read(1);
      const ClockProbe::Span span = state->probe.span();
      *cycles = span.cycles;
      *ns = span.ns;
    }
    return us;
  });
}

/// Frees all plans, products and graphs; the device stays open.
int verglas_bench_clear() {
  return guarded<int>(-1, [] {
    state->gpu.synchronize();
    for (cuda::CUgraphExec graph : state->graphs) state->gpu.driver.cuGraphExecDestroy(graph);
    state->graphs.clear();
    state->contenders.clear();
    return 0;
  });
}

}  // extern "C"
