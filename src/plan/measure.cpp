#include "plan/measure.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>

#include "cuda/context.hpp"
#include "cuda/device.hpp"
#include "plan/operand_sets.hpp"

namespace verglas::plan {
namespace {

constexpr std::size_t kMostSets = 16;
constexpr std::size_t kRandomBytes = 1 << 20;  ///< random numbers of an operand; beyond it they repeat

/// The error of a refused call in words, or empty.
std::string refusal(const CompiledPlan& plan, Status s, const std::vector<void*>& at) {
  if (s.ok()) return {};
  std::vector<TensorView> views;
  for (void* p : at) views.push_back(TensorView::address(p));
  return plan.explain(s, views).what();
}

/// Copies of all operands that together are `reach` bytes and more.
std::size_t copies(const std::vector<std::size_t>& bytes, std::size_t reach, std::size_t room) {
  std::size_t all = 1;
  for (const std::size_t b : bytes) all += b;
  return std::max<std::size_t>(1, std::min({kMostSets, reach / all + 1, room / all}));
}

/// Forth in even rounds, back in odd ones: what the one before leaves behind is not always the same.
template <class Time>
void in_turns(std::size_t plans, const Windows& w, std::vector<Sample>& samples, Time&& time) {
  for (int round = 0; round < w.rounds; ++round)
    for (std::size_t k = 0; k < plans; ++k) {
      const std::size_t i = round % 2 == 0 ? k : plans - 1 - k;
      if (samples[i].failure.empty()) samples[i].windows.push_back(time(i));
    }
}

class HostMeter final : public Meter {
 public:
  explicit HostMeter(const chain::FusionChain& chain) {
    const std::vector<std::size_t> bytes = operand_bytes(chain);
    const std::size_t sets = copies(bytes, std::size_t{64} << 20, std::size_t{1} << 30);
    for (std::size_t s = 0; s < sets; ++s) {
      at_.emplace_back();
      for (std::size_t i = 0; i < bytes.size(); ++i) {
        memory_.emplace_back(bytes[i] + 64);
        std::byte* const aligned =
            memory_.back().data() + (64 - reinterpret_cast<std::uintptr_t>(memory_.back().data()) % 64) % 64;
        if (!chain.operands[i].is_output) {
          const auto run = random_elements(chain, i, kRandomBytes);
          for (std::size_t from = 0; from < bytes[i]; from += run.size())
            std::memcpy(aligned + from, run.data(), std::min(run.size(), bytes[i] - from));
        }
        at_.back().push_back(aligned);
      }
    }
  }

  std::vector<Sample> measure(std::span<const CompiledPlan> plans, const Windows& w) override {
    std::vector<Sample> samples(plans.size());
    std::vector<int> calls(plans.size(), 1);
    for (std::size_t i = 0; i < plans.size(); ++i) {
      samples[i].failure = refusal(plans[i], plans[i].execute(at_[0]), at_[0]);
      if (samples[i].failure.empty())
        calls[i] = static_cast<int>(std::clamp(w.window_seconds / std::max(timed(plans[i], 1), 1e-7), 1.0, 1e5));
    }
    in_turns(plans.size(), w, samples, [&](std::size_t i) { return timed(plans[i], calls[i]); });
    return samples;
  }

 private:
  double timed(const CompiledPlan& plan, int calls) {
    const auto start = std::chrono::steady_clock::now();
    for (int i = 0; i < calls; ++i) static_cast<void>(plan.execute(at_[static_cast<std::size_t>(i) % at_.size()]));
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count() / calls;
  }
  std::vector<std::vector<std::byte>> memory_;
  std::vector<std::vector<void*>> at_;  ///< a set of addresses for each copy
};

/// Calls are captured into graphs, a graph for each plan, so that the host's share of a launch is not what is measured.
class DeviceMeter final : public Meter {
 public:
  DeviceMeter(const cuda::DriverTable& driver, const chain::FusionChain& chain, int ordinal)
      : driver_(driver), context_(driver, ordinal), current_(driver, context_.handle()) {
    const std::vector<std::size_t> bytes = operand_bytes(chain);
    std::size_t free = 0, total = 0;
    check(driver_.cuMemGetInfo(&free, &total), "cuMemGetInfo");
    const auto l2 = static_cast<std::size_t>(cuda::device_facts(driver, ordinal).l2_bytes);
    const std::size_t sets = copies(bytes, 2 * l2, free / 3);
    try {
      check(driver_.cuStreamCreate(&stream_, cuda::kStreamNonBlocking), "cuStreamCreate");
      for (cuda::CUevent& e : events_) check(driver_.cuEventCreate(&e, cuda::kEventDefault), "cuEventCreate");
      for (std::size_t s = 0; s < sets; ++s) {
        at_.emplace_back();
        for (std::size_t i = 0; i < bytes.size(); ++i) at_.back().push_back(place(chain, i, bytes[i], s));
      }
      synchronize();
    } catch (...) {
      release();
      throw;
    }
  }
  ~DeviceMeter() override { release(); }

  std::vector<Sample> measure(std::span<const CompiledPlan> plans, const Windows& w) override {
    std::vector<Sample> samples(plans.size());
    std::vector<Graph> graphs(plans.size());
    struct Release {
      DeviceMeter& meter;
      std::vector<Graph>& graphs;
      ~Release() {
        for (Graph& g : graphs) meter.destroy(g);
      }
    } const guard{*this, graphs};
    for (std::size_t i = 0; i < plans.size(); ++i) {
      samples[i].failure = prepare(plans[i], w, graphs[i]);
      synchronize();  // a kernel that fails ends here, for all
    }
    for (std::size_t i = 0; i < plans.size(); ++i)
      if (samples[i].failure.empty()) {
        replay(graphs[i], w.settle_seconds);
        break;
      }
    in_turns(plans.size(), w, samples, [&](std::size_t i) {
      replay(graphs[i], w.window_seconds / 3);  // clocks of the one before are not this one's
      return replay(graphs[i], w.window_seconds);
    });
    return samples;
  }

 private:
  struct Graph {
    cuda::CUgraph graph = nullptr;
    cuda::CUgraphExec executable = nullptr;
    int calls = 1;          ///< in the graph
    double seconds = 1e-6;  ///< of a call, about
  };

  void check(cuda::CUresult code, const char* call) const { cuda::check(driver_, code, call, "measuring plans"); }
  void synchronize() const { check(driver_.cuStreamSynchronize(stream_), "cuStreamSynchronize"); }

  void* place(const chain::FusionChain& chain, std::size_t operand, std::size_t bytes, std::size_t set) {
    const chain::Operand& o = chain.operands[operand];
    if (o.is_host_scalar) {
      scalars_.push_back(random_elements(chain, operand, 8));
      return scalars_.back().data();
    }
    if (bytes == 0) return nullptr;
    cuda::CUdeviceptr at = 0;
    check(driver_.cuMemAlloc(&at, bytes), "cuMemAlloc");
    owned_.push_back(at);
    if (o.is_output) return reinterpret_cast<void*>(at);
    if (set > 0) {  // what the first copy holds
      check(driver_.cuMemcpyDtoDAsync(at, reinterpret_cast<cuda::CUdeviceptr>(at_[0][operand]), bytes, stream_),
            "cuMemcpyDtoDAsync");
      return reinterpret_cast<void*>(at);
    }
    const auto run = random_elements(chain, operand, std::min(kRandomBytes, (bytes + 7) / 8 * 8));
    std::size_t filled = std::min(run.size(), bytes);
    check(driver_.cuMemcpyHtoDAsync(at, run.data(), filled, stream_), "cuMemcpyHtoDAsync");  // has left `run` when it answers
    for (; filled < bytes; filled += std::min(filled, bytes - filled))
      check(driver_.cuMemcpyDtoDAsync(at + filled, at, std::min(filled, bytes - filled), stream_), "cuMemcpyDtoDAsync");
    return reinterpret_cast<void*>(at);
  }

  /// Enqueues calls on one copy of the operands after the other; why one was refused, or empty.
  std::string call(const CompiledPlan& plan, int calls) const {
    for (int i = 0; i < calls; ++i) {
      const std::vector<void*>& at = at_[static_cast<std::size_t>(i) % at_.size()];
      if (const Status s = plan.execute(at, {stream_}); !s.ok()) return refusal(plan, s, at);
    }
    return {};
  }

  std::string prepare(const CompiledPlan& plan, const Windows& w, Graph& g) {
    const int sets = static_cast<int>(at_.size());
    if (std::string fault = call(plan, sets); !fault.empty()) return fault;  // code is loaded, workspaces are there
    synchronize();
    check(driver_.cuEventRecord(events_[0], stream_), "cuEventRecord");
    if (std::string fault = call(plan, sets); !fault.empty()) return fault;
    g.seconds = std::max(elapsed() / sets, 1e-6);
    const double wanted = std::clamp(w.window_seconds / 4 / g.seconds, 1.0, 200.0);
    g.calls = (static_cast<int>(wanted) + sets - 1) / sets * sets;
    check(driver_.cuStreamBeginCapture(stream_, cuda::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL), "cuStreamBeginCapture");
    std::string fault = call(plan, g.calls);
    const cuda::CUresult ended = driver_.cuStreamEndCapture(stream_, &g.graph);
    if (!fault.empty()) return fault;
    if (ended != cuda::CUDA_SUCCESS) return "it cannot be captured: " + cuda::name_of(driver_, ended);
    check(driver_.cuGraphInstantiateWithFlags(&g.executable, g.graph, 0), "cuGraphInstantiateWithFlags");
    return {};
  }

  /// Seconds a call, of about that many seconds of calls.
  double replay(const Graph& g, double seconds) const {
    const int turns = static_cast<int>(std::clamp(seconds / (g.seconds * g.calls), 1.0, 1000.0));
    check(driver_.cuEventRecord(events_[0], stream_), "cuEventRecord");
    for (int i = 0; i < turns; ++i) check(driver_.cuGraphLaunch(g.executable, stream_), "cuGraphLaunch");
    return elapsed() / turns / g.calls;
  }

  /// Seconds from the first event to here, when all that was enqueued is done.
  double elapsed() const {
    float milliseconds = 0;
    check(driver_.cuEventRecord(events_[1], stream_), "cuEventRecord");
    check(driver_.cuEventSynchronize(events_[1]), "cuEventSynchronize");
    check(driver_.cuEventElapsedTime(&milliseconds, events_[0], events_[1]), "cuEventElapsedTime");
    return milliseconds * 1e-3;
  }

  void destroy(Graph& g) const {
    if (g.executable) driver_.cuGraphExecDestroy(g.executable);
    if (g.graph) driver_.cuGraphDestroy(g.graph);
    g = {};
  }
  void release() {
    const cuda::RelaxedCapture relaxed(driver_);
    if (stream_ && cuda::is_capturing(driver_, stream_)) {
      cuda::CUgraph unfinished = nullptr;
      if (driver_.cuStreamEndCapture(stream_, &unfinished) == cuda::CUDA_SUCCESS) driver_.cuGraphDestroy(unfinished);
    }
    for (const cuda::CUdeviceptr p : owned_) driver_.cuMemFree(p);
    for (const cuda::CUevent e : events_)
      if (e) driver_.cuEventDestroy(e);
    if (stream_) driver_.cuStreamDestroy(stream_);
    owned_.clear();
    stream_ = nullptr;
    events_[0] = events_[1] = nullptr;
  }

  const cuda::DriverTable& driver_;
  cuda::PrimaryContext context_;
  cuda::CurrentContext current_;
  cuda::CUstream stream_ = nullptr;
  cuda::CUevent events_[2] = {};
  std::vector<cuda::CUdeviceptr> owned_;
  std::vector<std::vector<std::byte>> scalars_;
  std::vector<std::vector<void*>> at_;  ///< a set of addresses for each copy
};

}  // namespace

double Sample::median() const {
  if (windows.empty()) return std::numeric_limits<double>::infinity();
  std::vector<double> sorted = windows;
  std::sort(sorted.begin(), sorted.end());
  const std::size_t middle = sorted.size() / 2;
  return sorted.size() % 2 == 1 ? sorted[middle] : (sorted[middle - 1] + sorted[middle]) / 2;
}

std::unique_ptr<Meter> make_meter(const chain::FusionChain& chain, Device device) {
  const auto is_table = [](const chain::Role& r) { return r.kind == chain::RoleKind::b_table; };
  if (std::ranges::any_of(chain.roles, is_table))
    throw broken(Rule::plan_none, "weights that are passed by address cannot be measured; in one tensor they can");
  if (device.type == DeviceType::cpu) return std::make_unique<HostMeter>(chain);
  const auto driver = cuda::driver();
  if (!driver) throw broken(driver.error().rule, driver.error().text);
  return std::make_unique<DeviceMeter>(**driver, chain, device.id);
}

}  // namespace verglas::plan
