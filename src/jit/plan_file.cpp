#include "jit/plan_file.hpp"

#include <fmt/format.h>

#include <array>
#include <charconv>

#include "base/rules.hpp"
#include "jit/container.hpp"
#include "jit/entry.hpp"
#include "verglas/version.hpp"

namespace verglas::jit {
namespace {

constexpr std::uint32_t kPlanSchema = 1;
constexpr std::size_t kMostKernels = 64;

/// The text fields, by name: one list for writing and reading.
template <class Plan>
auto text_fields(Plan& plan) {
  return std::array{std::pair{"verglas", &plan.verglas_version},
                    std::pair{"arch", &plan.arch},
                    std::pair{"graph", &plan.graph},
                    std::pair{"configuration", &plan.configuration},
                    std::pair{"engine", &plan.engine},
                    std::pair{"nvrtc", &plan.nvrtc},
                    std::pair{"key", &plan.key}};
}

/// "sm_90" of "sm_90a": code for an architecture with a suffix runs on exactly that one.
std::string_view device_arch(std::string_view arch) {
  while (!arch.empty() && (arch.back() < '0' || arch.back() > '9')) arch.remove_suffix(1);
  return arch;
}

}  // namespace

bool begins_as_plan_file(std::string_view bytes) noexcept { return bytes.starts_with(kContainerMagic); }

std::string write_plan_file(const PlanFile& plan) {
  PlanFile copy = plan;
  copy.verglas_version = VERGLAS_VERSION;
  Container file{kPlanFileKind, kPlanSchema, {}};
  for (const auto& [name, value] : text_fields(copy)) file.add(name, *value);
  file.add("kernels", std::to_string(plan.kernels.size()));
  for (std::size_t i = 0; i < plan.kernels.size(); ++i) {
    const CompiledKernel& kernel = plan.kernels[i];
    file.add(fmt::format("kernel{}.name", i), kernel.kernel);
    file.add(fmt::format("kernel{}.arch", i), kernel.arch);
    file.add(fmt::format("kernel{}.report", i), report_to_json(kernel.report));
    file.add(fmt::format("kernel{}.cubin", i), kernel.cubin);
  }
  return write_container(file);
}

void require_arch(const PlanFile& plan, std::string_view arch, const std::string& path) {
  if (device_arch(plan.arch) != device_arch(arch))
    throw broken(Rule::plan_file_arch, path, "a plan for " + plan.arch, fmt::format("one for {}, the device to run on", arch));
}

PlanFile read_plan_file(std::string_view bytes, std::string_view arch, const std::string& path) {
  const auto file = read_container(bytes, kPlanFileKind, kPlanSchema);
  if (!file) {
    const bool damaged = file.error().what == ContainerFault::What::damaged;
    throw broken(damaged ? Rule::plan_file_damaged : Rule::plan_file_format, path, "a file that " + file.error().text,
                 "a plan of `verglas compile`, whole");
  }
  PlanFile plan;
  const auto field = [&](const std::string& name) -> const std::string& {
    const std::string* value = file->find(name);
    if (!value)
      throw broken(Rule::plan_file_damaged, path, "a file without the field " + name, "a plan of `verglas compile`, whole");
    return *value;
  };
  for (const auto& [name, into] : text_fields(plan)) *into = field(name);
  if (plan.verglas_version != VERGLAS_VERSION)
    throw broken(Rule::plan_file_version, path, "a plan of Verglas " + plan.verglas_version,
                 "one of this version, " VERGLAS_VERSION);
  if (!arch.empty()) require_arch(plan, arch, path);
  const std::string& count = field("kernels");
  std::size_t kernels = 0;
  if (std::from_chars(count.data(), count.data() + count.size(), kernels).ptr != count.data() + count.size() ||
      kernels > kMostKernels)
    throw broken(Rule::plan_file_damaged, path, "a number of kernels that reads " + count,
                 fmt::format("at most {}", kMostKernels));
  for (std::size_t i = 0; i < kernels; ++i) {
    CompiledKernel kernel;
    kernel.kernel = field(fmt::format("kernel{}.name", i));
    kernel.arch = field(fmt::format("kernel{}.arch", i));
    kernel.cubin = field(fmt::format("kernel{}.cubin", i));
    if (!report_from_json(field(fmt::format("kernel{}.report", i)), kernel.report))
      throw broken(Rule::plan_file_damaged, path, fmt::format("a report of kernel {} that cannot be read", i),
                   "the report of ptxas");
    plan.kernels.push_back(std::move(kernel));
  }
  return plan;
}

}  // namespace verglas::jit
