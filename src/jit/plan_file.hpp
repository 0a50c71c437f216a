#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "jit/nvrtc.hpp"

namespace verglas::jit {

inline constexpr std::int64_t kMaxPlanFileBytes = std::int64_t{256} << 20;

/// A plan that was compiled ahead of time: what `verglas compile` writes, and what loading one needs.
struct PlanFile {
  std::string verglas_version;  ///< that wrote it; filled in by write_plan_file
  std::string arch;             ///< "sm_90a": the device that it is for
  std::string graph;            ///< graph file (JSON) that it was made from; not read here
  std::string configuration;    ///< the complete knobs (JSON); not read here
  std::string engine;           ///< "sm90"
  std::string nvrtc;            ///< "13.0", and the build in brackets
  std::string key;              ///< digest of the sources that were compiled, jit::source_key
  std::vector<CompiledKernel> kernels;
};

/// True where the bytes begin as those of a plan file do, which no graph file can.
bool begins_as_plan_file(std::string_view bytes) noexcept;

/// The bytes of a .vgp file.
std::string write_plan_file(const PlanFile& plan);

/// Reads and checks the bytes: file.plan_format where they are no plan file or of another format, file.plan_damaged where they
/// were altered or cut, file.plan_version where another version of Verglas wrote them, file.plan_arch where `arch` (that of the
/// device to run on, "sm_90"; empty: not checked) cannot run it. Each names `path` as the operand.
PlanFile read_plan_file(std::string_view bytes, std::string_view arch, const std::string& path);
/// The last of these alone.
void require_arch(const PlanFile& plan, std::string_view arch, const std::string& path);

}  // namespace verglas::jit
