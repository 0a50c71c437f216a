#pragma once
#include <string>
#include <string_view>
#include <vector>

namespace verglas::jit {

/// What ptxas says about one kernel.
struct ResourceReport {
  int registers = 0;  ///< per thread at entry
  int stack_bytes = 0;
  int spill_store_bytes = 0;
  int spill_load_bytes = 0;
  int smem_bytes = 0;  ///< static shared memory
  int barriers = 0;
  std::vector<std::string> advice;    ///< lines with a C75xx code, whole: ptxas inserted, ignored or serialised something
  std::vector<std::string> warnings;  ///< other warnings, of either compiler

  /// C7504, C7507, C7508, C7512: the kernel runs with the registers it was entered with.
  bool setmaxnreg_ignored() const noexcept;
  /// C7509 to C7515: the tensor cores wait between instructions.
  bool wgmma_serialised() const noexcept;
  bool spills() const noexcept { return spill_store_bytes != 0 || spill_load_bytes != 0; }
  /// Why the kernel is slower than it was meant to be, a clause; empty: for nothing that ptxas says.
  std::string flaw() const;
  /// No spill, no stack, no advice, no warning: what the test of every flavor demands.
  bool clean() const noexcept { return !spills() && stack_bytes == 0 && advice.empty() && warnings.empty(); }
};

/// Reads the log of NVRTC with `--ptxas-options=-v`. Lines it does not know are passed over.
ResourceReport parse_report(std::string_view log);

}  // namespace verglas::jit
