#include "tool/plan_file.hpp"

#include <fmt/format.h>

#include <array>
#include <filesystem>
#include <fstream>
#include <system_error>

#include "base/file.hpp"

namespace verglas::tool {
namespace {

int spilled(const jit::CompiledKernel& k) { return k.report.spill_store_bytes + k.report.spill_load_bytes; }

}  // namespace

std::optional<jit::PlanFile> plan_file_at(const std::string& path) {
  std::error_code ignored;
  if (!std::filesystem::is_regular_file(path, ignored)) return std::nullopt;
  std::array<char, 16> head{};
  std::ifstream(path, std::ios::binary).read(head.data(), head.size());
  if (!jit::begins_as_plan_file({head.data(), head.size()})) return std::nullopt;
  return jit::read_plan_file(read_file(path, jit::kMaxPlanFileBytes), "", "plan '" + path + "'");
}

std::string text_of(const jit::PlanFile& file) {
  std::string s =
      fmt::format("plan file of engine {} for {}, NVRTC {}, knobs {}\n", file.engine, file.arch, file.nvrtc, file.configuration);
  for (const jit::CompiledKernel& k : file.kernels)
    s += fmt::format("  kernel {}: {} registers, {} bytes of static shared memory, {} bytes spilled, {} bytes of code\n",
                     k.kernel, k.report.registers, k.report.smem_bytes, spilled(k), k.cubin.size());
  return s;
}

Json json_of(const jit::PlanFile& file) {
  Json j{{"engine", file.engine}, {"arch", file.arch}, {"nvrtc", file.nvrtc}, {"verglas", file.verglas_version}};
  j["knobs"] = Json::parse(file.configuration, nullptr, false);
  for (const jit::CompiledKernel& k : file.kernels)
    j["kernels"].push_back({{"name", k.kernel},
                            {"registers", k.report.registers},
                            {"smem_bytes", k.report.smem_bytes},
                            {"spill_bytes", spilled(k)},
                            {"cubin_bytes", k.cubin.size()}});
  return j;
}

}  // namespace verglas::tool
