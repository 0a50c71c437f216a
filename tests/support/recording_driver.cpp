#include "support/recording_driver.hpp"

#include <algorithm>
#include <atomic>

#include "support/recording_state.hpp"

namespace support {
namespace {

std::atomic<RecordingDriver::State*> g_state{nullptr};
std::atomic<std::uint64_t> g_generation{0};

struct ThreadContexts {
  std::uint64_t generation = 0;
  std::vector<CUcontext> stack;
  CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
};
thread_local ThreadContexts t_contexts;

}  // namespace

RecordingDriver::State* current_state() { return g_state.load(std::memory_order_acquire); }

CUresult RecordingDriver::State::enter(std::string_view call) {
  if (call == "cuGetErrorName" || call == "cuGetErrorString") return CUDA_SUCCESS;
  calls.emplace_back(call);
  if (indexed_failure && indexed_failure->first-- == 0) {
    const CUresult code = indexed_failure->second;
    indexed_failure.reset();
    return code;
  }
  for (auto it = failures.begin(); it != failures.end(); ++it) {
    if (it->call != call || it->after-- > 0) continue;
    const CUresult code = it->code;
    failures.erase(it);
    return code;
  }
  if (!initialised && call != "cuInit" && call != "cuDriverGetVersion") return CUDA_ERROR_NOT_INITIALIZED;
  return CUDA_SUCCESS;
}

std::vector<CUcontext>& RecordingDriver::State::contexts() {
  if (t_contexts.generation != generation) t_contexts = {generation, {}, CU_STREAM_CAPTURE_MODE_GLOBAL};
  return t_contexts.stack;
}
CUstreamCaptureMode& RecordingDriver::State::capture_mode() {
  contexts();  // a thread's state of an earlier driver is not ours
  return t_contexts.mode;
}

int RecordingDriver::State::device_of(CUcontext context) const {
  for (int d = 0; d < static_cast<int>(devices.size()); ++d)
    if (primary(d) == context) return devices[static_cast<std::size_t>(d)].retained > 0 ? d : -1;
  return -1;
}
int RecordingDriver::State::current_device() {
  const auto& stack = contexts();
  return stack.empty() || !stack.back() ? -1 : device_of(stack.back());
}

RecordingDriver::State::Allocation* RecordingDriver::State::holding(CUdeviceptr at, std::size_t bytes) {
  auto it = allocations.upper_bound(at);
  if (it == allocations.begin()) return nullptr;
  --it;
  return at - it->first <= it->second.bytes && it->second.bytes - (at - it->first) >= bytes ? &it->second : nullptr;
}

RecordingDriver::RecordingDriver(std::vector<FakeDevice> devices, int version)
    : state_(std::make_unique<State>()), override_([&] {
        State& s = *state_;
#define VERGLAS_DRIVER_CALL(name, symbol, parameters) s.table.name = Calls::name;
#include "cuda/driver_calls.def"
#undef VERGLAS_DRIVER_CALL
        s.table.version = s.version = version;
        s.generation = ++g_generation;
        s.initialised = true;  // cuda::driver() answers initialised drivers only
        for (FakeDevice& facts : devices) s.devices.push_back({std::move(facts), 0, 0});
        if (g_state.exchange(&s, std::memory_order_acq_rel)) std::abort();  // two at a time cannot work
        return &s.table;
      }()) {
}

RecordingDriver::~RecordingDriver() { g_state.store(nullptr, std::memory_order_release); }

const DriverTable& RecordingDriver::table() const { return state_->table; }

#define VERGLAS_LOCK const std::lock_guard lock(state_->mutex)
std::vector<Launch> RecordingDriver::launches() const {
  VERGLAS_LOCK;
  return state_->launches;
}
std::vector<Memset> RecordingDriver::memsets() const {
  VERGLAS_LOCK;
  return state_->memsets;
}
std::vector<Copy> RecordingDriver::copies() const {
  VERGLAS_LOCK;
  return state_->copies;
}
std::vector<std::string> RecordingDriver::calls() const {
  VERGLAS_LOCK;
  return state_->calls;
}
int RecordingDriver::count(std::string_view call) const {
  VERGLAS_LOCK;
  return static_cast<int>(std::count(state_->calls.begin(), state_->calls.end(), call));
}
bool RecordingDriver::untouched() const {
  VERGLAS_LOCK;
  return state_->launches.empty() && state_->memsets.empty() && state_->copies.empty();
}
void RecordingDriver::clear() {
  VERGLAS_LOCK;
  state_->launches.clear();
  state_->memsets.clear();
  state_->copies.clear();
  state_->calls.clear();
}
LiveObjects RecordingDriver::live() const {
  VERGLAS_LOCK;
  LiveObjects n;
  n.libraries = static_cast<int>(state_->libraries.size());
  for (const auto& d : state_->devices) n.retained_contexts += d.retained;
  n.allocations = static_cast<int>(state_->allocations.size());
  n.streams = static_cast<int>(state_->streams.size());
  n.events = static_cast<int>(state_->events.size());
  n.graphs = static_cast<int>(state_->graphs.size());
  n.graph_executables = static_cast<int>(state_->executables.size());
  return n;
}
int RecordingDriver::context_depth() const {
  VERGLAS_LOCK;
  return static_cast<int>(state_->contexts().size());
}
CUcontext RecordingDriver::primary_context(int device) const { return state_->primary(device); }
void RecordingDriver::fail_next(std::string_view call, CUresult code, int after) {
  VERGLAS_LOCK;
  state_->failures.push_back({std::string(call), code, after});
}
void RecordingDriver::fail_call(int index, CUresult code) {
  VERGLAS_LOCK;
  state_->indexed_failure.emplace(index, code);
}
bool RecordingDriver::failure_pending() const {
  VERGLAS_LOCK;
  return state_->indexed_failure || !state_->failures.empty();
}
void RecordingDriver::clear_failures() {
  VERGLAS_LOCK;
  state_->indexed_failure.reset();
  state_->failures.clear();
}
void RecordingDriver::declare_kernel(std::string name, std::vector<int> bytes) {
  VERGLAS_LOCK;
  state_->declared[std::move(name)] = std::move(bytes);
}
void RecordingDriver::on_launch(std::function<void(const Launch&)> run) {
  VERGLAS_LOCK;
  state_->run = std::move(run);
}

TensorMapRecord record_of(const CUtensorMap& map) {
  TensorMapRecord r;
  std::memcpy(&r, &map, sizeof r);
  if (r.magic != TensorMapRecord::kMagic) r.magic = 0;
  return r;
}

std::string fake_cubin(std::string_view kernel, int parameter_bytes, std::string_view salt) {
  return "VGFAKE\n" + std::string(kernel) + "\n" + std::to_string(parameter_bytes) + "\n" + std::string(salt) + '\0';
}

}  // namespace support
