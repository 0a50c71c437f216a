#pragma once
// An NVRTC in memory, for tests of the cache and of loading: it compiles nothing, counts, and fails on demand.
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "cuda/nvrtc_table.hpp"

namespace support {

/// While it lives, `cuda::nvrtc()` answers its table. One at a time. All members may be called from any thread.
///
/// A program named "k.cu" becomes `fake_cubin("k", parameter_bytes, digest of source, headers and options)`.
class FakeNvrtc {
 public:
  explicit FakeNvrtc(int major = 13, int minor = 0, std::string build = "109338064 bytes, build id 65be");
  ~FakeNvrtc();
  FakeNvrtc(const FakeNvrtc&) = delete;
  FakeNvrtc& operator=(const FakeNvrtc&) = delete;

  const verglas::cuda::NvrtcTable& table() const;
  int compiles() const;       ///< programs that were compiled, failures included
  int live_programs() const;  ///< created and not destroyed
  std::vector<std::string> last_options() const;

  void set_parameter_bytes(int bytes);
  void set_log(std::string log);
  /// Of kernels whose name has `part` in it, instead.
  void set_log_of(std::string part, std::string log);
  /// The next call of that name answers `code`.
  void fail_next(std::string_view call, verglas::cuda::nvrtcResult code);
  /// Compiles wait until `release`; `wait_for_compile` returns once one is waiting.
  void hold();
  void wait_for_compile();
  void release();

  struct State;

 private:
  std::unique_ptr<State> state_;
  verglas::cuda::NvrtcOverride override_;
};

}  // namespace support
