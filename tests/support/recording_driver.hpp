#pragma once
// A CUDA driver in memory: everything but the arithmetic of a kernel can be tested with it on a machine without a GPU.
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "cuda/cublaslt_table.hpp"
#include "cuda/driver_table.hpp"

namespace support {

namespace cuda = verglas::cuda;

struct FakeDevice {
  std::string name = "NVIDIA H200";
  int major = 9, minor = 0;
  int multiprocessors = 132;
  int smem_optin_bytes = 232448;
  int l2_bytes = 60 << 20;
  std::size_t memory_bytes = std::size_t{1} << 30;
};

using Dim3 = std::array<unsigned, 3>;

/// One kernel that was enqueued, or that became a node of a graph.
struct Launch {
  std::string kernel;
  int device = 0;
  std::vector<std::byte> parameters;  ///< of all parameters, one after the other without gaps; one struct in our kernels
  Dim3 grid{}, block{}, cluster{1, 1, 1};
  unsigned smem_bytes = 0;  ///< dynamic
  bool programmatic = false;
  std::vector<cuda::CUlaunchAttribute> attributes;
  cuda::CUstream stream = nullptr;
  bool captured = false;

  /// The parameters as a struct of the same size.
  template <class Struct>
  Struct as() const {
    Struct out{};
    if (sizeof(Struct) == parameters.size()) std::memcpy(&out, parameters.data(), sizeof out);
    return out;
  }
};

struct Memset {
  cuda::CUdeviceptr to = 0;
  unsigned value = 0;
  int unit_bytes = 1;
  std::size_t bytes = 0;
  cuda::CUstream stream = nullptr;
  bool captured = false;
};

enum class CopyKind { host_to_device, device_to_host, device_to_device };
struct Copy {
  CopyKind kind{};
  std::uintptr_t to = 0, from = 0;
  std::size_t bytes = 0;
  cuda::CUstream stream = nullptr;
  bool captured = false;
};

/// What the fake driver writes into a tensor map: the arguments, readable. Extents are kept less one, since 2^32 is legal.
struct TensorMapRecord {
  std::uint32_t magic;
  std::uint8_t type, rank, interleave, swizzle;
  std::uint64_t address;
  std::uint64_t strides[4];  ///< bytes, of axes 1 to rank − 1
  std::uint32_t extents_less_one[5];
  std::uint16_t box[5];
  std::uint8_t element_strides[5];
  std::uint8_t promotion, fill;
  std::uint8_t padding[43];

  static constexpr std::uint32_t kMagic = 0x50414d56;  // "VMAP"
  std::int64_t extent(int axis) const { return std::int64_t{extents_less_one[axis]} + 1; }
};
static_assert(sizeof(TensorMapRecord) == sizeof(cuda::CUtensorMap));

/// The record in a map that was encoded by the fake driver; magic 0 where it was not.
TensorMapRecord record_of(const cuda::CUtensorMap& map);

/// Objects that were made and not yet destroyed.
struct LiveObjects {
  int libraries = 0, retained_contexts = 0, allocations = 0, streams = 0, events = 0, graphs = 0, graph_executables = 0;
  int total() const { return libraries + retained_contexts + allocations + streams + events + graphs + graph_executables; }
};

/// While it lives, `cuda::driver()` answers its table. One at a time. All members may be called from any thread.
///
/// Device memory is host memory: kernels do not run unless `on_launch` does their work. Each of the driver's checks that
/// Verglas can meet is made: current context, owner of stream and function, limits of tensor maps, shared memory, clusters,
/// calls that are not allowed during capture.
class RecordingDriver {
 public:
  explicit RecordingDriver(std::vector<FakeDevice> devices = {FakeDevice{}}, int version = 13000);
  ~RecordingDriver();
  RecordingDriver(const RecordingDriver&) = delete;
  RecordingDriver& operator=(const RecordingDriver&) = delete;

  const cuda::DriverTable& table() const;

  // What happened since the start or the last clear().
  std::vector<Launch> launches() const;
  std::vector<Memset> memsets() const;
  std::vector<Copy> copies() const;
  std::vector<std::string> calls() const;  ///< names in order, cuGetErrorName and cuGetErrorString left out
  int count(std::string_view call) const;  ///< how often it was called
  int map_encodes() const { return count("cuTensorMapEncodeTiled"); }
  /// True when nothing was enqueued: no kernel, memset or copy.
  bool untouched() const;
  /// Forgets launches, memsets, copies and calls; objects live on.
  void clear();

  LiveObjects live() const;
  /// Contexts on the calling thread's stack.
  int context_depth() const;
  cuda::CUcontext primary_context(int device) const;

  /// The call after the next `after` calls of that name answers `code` and does nothing.
  void fail_next(std::string_view call, cuda::CUresult code, int after = 0);
  /// The `index`-th call from now, whatever it is (0 is the next), answers `code` and does nothing.
  void fail_call(int index, cuda::CUresult code);
  /// True when a failure that was asked for has not happened yet.
  bool failure_pending() const;
  void clear_failures();

  /// Sizes of the parameters of kernels by that name, for images that do not say so; a real cubin does.
  void declare_kernel(std::string name, std::vector<int> parameter_bytes);
  /// Runs at each launch outside capture, without the recorder's lock.
  void on_launch(std::function<void(const Launch&)> run);

  struct State;

 private:
  std::unique_ptr<State> state_;
  cuda::DriverOverride override_;
  cuda::CublasLtOverride hide_{nullptr};  ///< the real library would call the real driver
};

/// An image that the fake driver loads: it has one kernel of that name, with one parameter of that size.
std::string fake_cubin(std::string_view kernel, int parameter_bytes, std::string_view salt = {});

}  // namespace support
