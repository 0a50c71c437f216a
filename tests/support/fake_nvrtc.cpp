#include "support/fake_nvrtc.hpp"

#include <atomic>
#include <condition_variable>
#include <cstring>
#include <functional>
#include <map>
#include <mutex>

#include "support/recording_driver.hpp"

namespace support {

using namespace verglas::cuda;

struct FakeNvrtc::State {
  struct Program {
    std::string kernel, text, cubin, log;
  };
  std::mutex mutex;
  std::condition_variable changed;
  NvrtcTable table;
  std::map<nvrtcProgram, Program> programs;
  std::uintptr_t next = 16;
  int compiles = 0, waiting = 0, parameter_bytes = 64;
  bool held = false;
  std::string log;
  std::map<std::string, std::string> logs;  // of kernels, by part of a name
  std::vector<std::string> options;
  std::map<std::string, nvrtcResult, std::less<>> failures;

  nvrtcResult enter(std::string_view call) {
    const auto it = failures.find(call);
    if (it == failures.end()) return NVRTC_SUCCESS;
    const nvrtcResult code = it->second;
    failures.erase(it);
    return code;
  }
};

namespace {
std::atomic<FakeNvrtc::State*> g_nvrtc{nullptr};

#define ENTER(call)                      \
  FakeNvrtc::State& s = *g_nvrtc.load(); \
  std::unique_lock lock(s.mutex);        \
  if (const nvrtcResult failure = s.enter(#call); failure != NVRTC_SUCCESS) return failure

nvrtcResult nvrtcVersion(int* major, int* minor) {
  ENTER(nvrtcVersion);
  *major = s.table.major;
  *minor = s.table.minor;
  return NVRTC_SUCCESS;
}
nvrtcResult nvrtcGetNumSupportedArchs(int* count) {
  ENTER(nvrtcGetNumSupportedArchs);
  *count = 2;
  return NVRTC_SUCCESS;
}
nvrtcResult nvrtcGetSupportedArchs(int* archs) {
  ENTER(nvrtcGetSupportedArchs);
  archs[0] = 80;
  archs[1] = 90;
  return NVRTC_SUCCESS;
}
nvrtcResult nvrtcCreateProgram(nvrtcProgram* program, const char* source, const char* name, int header_count,
                               const char* const* texts, const char* const* names) {
  ENTER(nvrtcCreateProgram);
  FakeNvrtc::State::Program p;
  p.kernel = std::string(name, std::strlen(name) - 3);
  p.text = source;
  for (int i = 0; i < header_count; ++i) p.text += std::string(names[i]) + '\1' + texts[i] + '\2';
  *program = reinterpret_cast<nvrtcProgram>(s.next += 16);
  s.programs[*program] = std::move(p);
  return NVRTC_SUCCESS;
}
nvrtcResult nvrtcDestroyProgram(nvrtcProgram* program) {
  ENTER(nvrtcDestroyProgram);
  s.programs.erase(*program);
  *program = nullptr;
  return NVRTC_SUCCESS;
}
nvrtcResult nvrtcCompileProgram(nvrtcProgram program, int count, const char* const* options) {
  FakeNvrtc::State& s = *g_nvrtc.load();
  std::unique_lock lock(s.mutex);
  ++s.compiles;
  ++s.waiting;
  s.changed.notify_all();
  s.changed.wait(lock, [&] { return !s.held; });
  --s.waiting;
  FakeNvrtc::State::Program& p = s.programs.at(program);
  p.log = s.log;
  for (const auto& [part, log] : s.logs)
    if (p.kernel.find(part) != std::string::npos) p.log = log;
  if (const nvrtcResult failure = s.enter("nvrtcCompileProgram"); failure != NVRTC_SUCCESS) return failure;
  s.options.assign(options, options + count);
  for (const std::string& option : s.options) p.text += '\3' + option;
  p.cubin = fake_cubin(p.kernel, s.parameter_bytes, std::to_string(std::hash<std::string>{}(p.text)));
  return NVRTC_SUCCESS;
}
nvrtcResult nvrtcGetCUBINSize(nvrtcProgram program, std::size_t* bytes) {
  ENTER(nvrtcGetCUBINSize);
  *bytes = s.programs.at(program).cubin.size();
  return NVRTC_SUCCESS;
}
nvrtcResult nvrtcGetCUBIN(nvrtcProgram program, char* cubin) {
  ENTER(nvrtcGetCUBIN);
  const std::string& image = s.programs.at(program).cubin;
  std::memcpy(cubin, image.data(), image.size());
  return NVRTC_SUCCESS;
}
nvrtcResult nvrtcGetProgramLogSize(nvrtcProgram program, std::size_t* bytes) {
  ENTER(nvrtcGetProgramLogSize);
  *bytes = s.programs.at(program).log.size() + 1;
  return NVRTC_SUCCESS;
}
nvrtcResult nvrtcGetProgramLog(nvrtcProgram program, char* log) {
  ENTER(nvrtcGetProgramLog);
  const std::string& text = s.programs.at(program).log;
  std::memcpy(log, text.c_str(), text.size() + 1);
  return NVRTC_SUCCESS;
}
const char* nvrtcGetErrorString(nvrtcResult code) {
  return code == NVRTC_ERROR_COMPILATION ? "NVRTC_ERROR_COMPILATION" : "an NVRTC error of the fake";
}
}  // namespace

FakeNvrtc::FakeNvrtc(int major, int minor, std::string build)
    : state_(std::make_unique<State>()), override_([&] {
        NvrtcTable& t = state_->table;
#define VERGLAS_NVRTC_CALL(name, parameters) t.name = support::name;
#include "cuda/nvrtc_calls.def"
#undef VERGLAS_NVRTC_CALL
        t.nvrtcGetErrorString = nvrtcGetErrorString;
        t.major = major;
        t.minor = minor;
        t.build = std::move(build);
        if (g_nvrtc.exchange(state_.get())) std::abort();
        return &t;
      }()) {
}
FakeNvrtc::~FakeNvrtc() { g_nvrtc.store(nullptr); }

const NvrtcTable& FakeNvrtc::table() const { return state_->table; }
int FakeNvrtc::compiles() const {
  const std::lock_guard lock(state_->mutex);
  return state_->compiles;
}
int FakeNvrtc::live_programs() const {
  const std::lock_guard lock(state_->mutex);
  return static_cast<int>(state_->programs.size());
}
std::vector<std::string> FakeNvrtc::last_options() const {
  const std::lock_guard lock(state_->mutex);
  return state_->options;
}
void FakeNvrtc::set_parameter_bytes(int bytes) {
  const std::lock_guard lock(state_->mutex);
  state_->parameter_bytes = bytes;
}
void FakeNvrtc::set_log(std::string log) {
  const std::lock_guard lock(state_->mutex);
  state_->log = std::move(log);
}
void FakeNvrtc::set_log_of(std::string part, std::string log) {
  const std::lock_guard lock(state_->mutex);
  state_->logs[std::move(part)] = std::move(log);
}
void FakeNvrtc::fail_next(std::string_view call, nvrtcResult code) {
  const std::lock_guard lock(state_->mutex);
  state_->failures[std::string(call)] = code;
}
void FakeNvrtc::hold() {
  const std::lock_guard lock(state_->mutex);
  state_->held = true;
}
void FakeNvrtc::wait_for_compile() {
  std::unique_lock lock(state_->mutex);
  state_->changed.wait(lock, [&] { return state_->waiting > 0; });
}
void FakeNvrtc::release() {
  const std::lock_guard lock(state_->mutex);
  state_->held = false;
  state_->changed.notify_all();
}

}  // namespace support
