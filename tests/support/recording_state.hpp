#pragma once
// Inside of the recording driver; tests include recording_driver.hpp.
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <thread>
#include <unordered_map>

#include "support/recording_driver.hpp"

namespace support {

using namespace verglas::cuda;  // the list of calls names the driver's types without a namespace

struct RecordingDriver::State {
  struct Device {
    FakeDevice facts;
    int retained = 0;  // of the primary context
    std::size_t used_bytes = 0;
  };
  struct Kernel {
    std::string name;
    std::vector<int> parameter_bytes;
    std::map<int, int> max_dynamic_smem;  // by device
    std::map<int, int> non_portable_cluster;
  };
  struct Library {
    std::string image;
    std::map<std::string, std::uintptr_t> kernels;
  };
  struct Function {
    std::uintptr_t kernel = 0;
    int device = 0;
    bool loaded = false;
  };
  struct Allocation {
    std::size_t bytes = 0;
    int device = 0;
    std::unique_ptr<std::byte[]> memory;
  };
  struct Capture {
    CUstreamCaptureMode mode{};
    std::thread::id by;
    bool invalid = false;
    std::uintptr_t graph = 0;
  };
  struct Stream {
    int device = 0;
    std::optional<Capture> capture;
  };
  struct Graph {
    std::vector<Launch> launches;
    std::vector<Memset> memsets;
    std::vector<Copy> copies;
    std::size_t nodes() const { return launches.size() + memsets.size() + copies.size(); }
  };

  mutable std::mutex mutex;
  DriverTable table;
  std::uint64_t generation = 0;  // tells thread-local context stacks of an earlier driver from ours
  int version = 0;
  bool initialised = false;
  std::vector<Device> devices;
  std::uintptr_t next_handle = 0x10000;

  std::map<std::uintptr_t, Library> libraries;
  std::map<std::uintptr_t, Kernel> kernels;
  std::map<std::uintptr_t, Function> functions;
  std::map<CUdeviceptr, Allocation> allocations;
  std::map<std::uintptr_t, Stream> streams;
  std::map<std::uintptr_t, int> events;  // device
  std::map<std::uintptr_t, Graph> graphs;
  std::map<std::uintptr_t, Graph> executables;

  std::vector<Launch> launches;
  std::vector<Memset> memsets;
  std::vector<Copy> copies;
  std::vector<std::string> calls;
  std::map<std::string, std::vector<int>, std::less<>> declared;
  std::function<void(const Launch&)> run;

  struct Failure {
    std::string call;
    CUresult code;
    int after;
  };
  std::vector<Failure> failures;
  std::optional<std::pair<int, CUresult>> indexed_failure;

  /// Books a call; the code with which it must fail, or success.
  CUresult enter(std::string_view call);
  /// The mode of this thread for calls that a capture may forbid.
  CUstreamCaptureMode& capture_mode();
  /// The stack of contexts of this thread.
  std::vector<CUcontext>& contexts();
  /// Device of the current context; −1 without one.
  int current_device();
  /// Device of a context handle; −1 where it is none of ours.
  int device_of(CUcontext context) const;
  CUcontext primary(int device) const { return reinterpret_cast<CUcontext>(0x1000 + std::uintptr_t(device) * 16); }
  bool known(int device) const { return device >= 0 && device < static_cast<int>(devices.size()); }
  /// A call that a capture in progress forbids to this thread: invalidates such captures and answers 900, else success.
  CUresult unsafe_in_capture();
  /// The capture of that stream, or null.
  Capture* capture_of(CUstream stream);
  /// Stream usable in the current context? 201 without a context, 400 for a stream of another device.
  CUresult check_stream(CUstream stream);
  /// The allocation that holds [at, at + bytes), or null.
  Allocation* holding(CUdeviceptr at, std::size_t bytes);
  std::uintptr_t new_handle() { return next_handle += 16; }
};

/// The functions of the table.
struct Calls {
#define VERGLAS_DRIVER_CALL(name, symbol, parameters) static CUresult name parameters;
#include "cuda/driver_calls.def"
#undef VERGLAS_DRIVER_CALL
};

/// The driver that is alive, for functions that carry no argument of ours.
RecordingDriver::State* current_state();

using State = RecordingDriver::State;

}  // namespace support

// First line of every call: takes the lock, books the call, fails where a test asked for it. Leaves the state as `s`.
#define ENTER(call)                            \
  State* const state = current_state();        \
  if (!state) return CUDA_ERROR_DEINITIALIZED; \
  State& s = *state;                           \
  const std::lock_guard lock(s.mutex);         \
  if (const CUresult failure = s.enter(#call); failure != CUDA_SUCCESS) return failure
#define REQUIRE(condition, code) \
  if (!(condition)) return code
