#include "engine/sm90/engine.hpp"

#include <algorithm>

#include "cuda/device.hpp"
#include "cuda/driver_table.hpp"
#include "cuda/nvrtc_table.hpp"
#include "engine/flawed_plans.hpp"
#include "engine/sm90/launcher.hpp"
#include "engine/sm90/predict.hpp"
#include "jit/entry.hpp"
#include "jit/plan_file.hpp"
#include "jit/store.hpp"

namespace verglas::sm90 {
namespace {

class Sm90Engine final : public engine::Engine {
 public:
  std::string_view name() const noexcept override { return "sm90"; }
  int id() const noexcept override { return 2; }

  Result<engine::Claim> claim(const chain::FusionChain& chain, Device device) const override {
    if (device.type != DeviceType::cuda) return decline(Rule::engine_device, "runs on Hopper GPUs; the plan is for the host");
    auto claimed = claim_chain(chain);
    if (!claimed) return claimed;
    const auto driver = cuda::driver();
    if (!driver) return tl::unexpected<Decline>(driver.error());
    if (device.id < 0 || device.id >= cuda::device_count(**driver))
      return decline(Rule::engine_device, "there is no device cuda:" + std::to_string(device.id) + " (" +
                                              std::to_string(cuda::device_count(**driver)) + " found)");
    const cuda::DeviceFacts facts = cuda::device_facts(**driver, device.id);
    if (facts.major != 9 || facts.minor != 0)
      return decline(Rule::sm90_device,
                     facts.name + " has compute capability " + std::to_string(facts.major) + "." + std::to_string(facts.minor));
    if (const auto nvrtc = cuda::nvrtc(); !nvrtc) return tl::unexpected<Decline>(nvrtc.error());
    return claimed;
  }

  std::vector<Knobs> configurations(const chain::FusionChain& chain, Device device) const override {
    return configurations_of(chain, multiprocessors(device));
  }

  double predict(const chain::FusionChain& chain, const Knobs& knobs, Device device) const override {
    const KernelConfig k = configuration_of(chain, knobs);
    const int sm_count = multiprocessors(device);
    return predict_seconds(k, extents_of(seen_chain(chain, knobs)), sm_count, drain_of(chain), chain.grouping.groups) +
           combining_seconds(chain, k, sm_count);
  }

  engine::Demand demand(const chain::FusionChain& chain, const Knobs& knobs) const override {
    const KernelConfig config = configuration_of(chain, knobs);
    return {code_of(knobs), results_of(config), threads_of(config)};
  }

  std::string build() const override {
    const auto nvrtc = cuda::nvrtc();
    return nvrtc ? "NVRTC " + std::to_string((*nvrtc)->major) + "." + std::to_string((*nvrtc)->minor) : "";
  }

  engine::Compiled compile(const chain::FusionChain& chain, const Knobs& knobs, Device device) const override {
    const auto driver = cuda::driver();
    const auto nvrtc = cuda::nvrtc();
    if (!driver) throw broken(driver.error().rule, driver.error().text);
    if (!nvrtc) throw broken(nvrtc.error().rule, nvrtc.error().text);
    Part part = part_of(chain, knobs);
    Kernel kernel = jit::process_store().load(**driver, **nvrtc, part.request, {.dynamic_smem_bytes = smem_bytes(part.config)});
    return assemble(chain, std::move(part), std::move(kernel), device, multiprocessors(device));
  }

  std::optional<Decline> compile_ahead(const chain::FusionChain& chain, const engine::AheadTarget& target, Knobs& knobs,
                                       jit::PlanFile& file) const override {
    if (target.arch != jit::CompileRequest{}.arch)
      return Decline{Rule::engine_arch, "compiles for sm_90a, not for " + target.arch};
    if (const auto claimed = claim_chain(chain); !claimed) return claimed.error();
    const auto offered = configurations_of(chain, target.sm_count);
    const auto is_wanted = [&](const Knobs& offer) {
      return std::includes(offer.begin(), offer.end(), knobs.begin(), knobs.end());
    };
    auto best = std::find_if(offered.begin(), offered.end(), is_wanted);
    if (best == offered.end())
      throw broken(Rule::plan_replay, "knobs", engine::plan_name(*this, knobs),
                   "part of one of its " + std::to_string(offered.size()) + " configurations, the first being " +
                       engine::plan_name(*this, offered.front()));
    const auto nvrtc = cuda::nvrtc();
    if (!nvrtc) throw broken(nvrtc.error().rule, nvrtc.error().text);
    const auto compiled = [&](const Knobs& k) { return jit::process_store().compile(**nvrtc, part_of(chain, k).request); };
    jit::CompiledKernel kernel = compiled(*best);
    // As PlanList::compile: the first without a flaw, or the first.
    engine::FlawedPlans flawed;
    flawed.add(*this, demand(chain, *best));
    for (auto next = best + 1; !kernel.report.flaw().empty() && next != offered.end(); ++next) {
      if (!is_wanted(*next) || flawed.has_alike(*this, demand(chain, *next))) continue;
      jit::CompiledKernel other = compiled(*next);
      flawed.add(*this, demand(chain, *next));
      if (!other.report.flaw().empty()) continue;
      kernel = std::move(other);
      best = next;
    }
    knobs = *best;
    const Part part = part_of(chain, knobs);
    file.engine = name();
    file.arch = part.request.arch;
    file.nvrtc = std::to_string((*nvrtc)->major) + "." + std::to_string((*nvrtc)->minor) + " (" + (*nvrtc)->build + ")";
    file.key = jit::source_key(part.request);
    file.kernels.push_back(std::move(kernel));
    return std::nullopt;
  }

  engine::Compiled load(const chain::FusionChain& chain, const Knobs& knobs, Device device, const jit::PlanFile& file,
                        const std::string& path) const override {
    const auto driver = cuda::driver();
    if (!driver) throw broken(driver.error().rule, driver.error().text);
    const int sm_count = multiprocessors(device);
    if (const auto claimed = claim_chain(chain); !claimed)
      throw broken(Rule::plan_file_version, path, "a graph that this build does not take: " + claimed.error().text,
                   "one that it takes");
    const auto offered = configurations_of(chain, sm_count);
    if (std::find(offered.begin(), offered.end(), knobs) == offered.end() || file.kernels.size() != 1)
      throw broken(Rule::plan_file_version, path, engine::plan_name(*this, knobs) + ", which this build does not offer",
                   "a plan of this build");
    Part part = part_of(chain, knobs);
    const std::string key = jit::source_key(part.request);
    // The block of parameters is private to a build: code of other sources must not meet it.
    if (file.key != key || file.kernels[0].kernel != part.request.kernel)
      throw broken(Rule::plan_file_version, path, "a plan of other kernel sources, " + file.key.substr(0, 16),
                   "one of this build, " + key.substr(0, 16));
    Kernel kernel = jit::LoadedKernel::load(**driver, file.kernels[0], {.dynamic_smem_bytes = smem_bytes(part.config)});
    return assemble(chain, std::move(part), std::move(kernel), device, sm_count);
  }

 private:
  using Kernel = std::shared_ptr<const jit::LoadedKernel>;

  /// The kernel of a plan, and what its launcher needs.
  struct Part {
    KernelConfig config;
    chain::FusionChain seen;
    EpiloguePlan epilogue;
    jit::CompileRequest request;
    bool is_exchanged;
  };

  static Part part_of(const chain::FusionChain& chain, const Knobs& knobs) {
    const KernelConfig config = configuration_of(chain, knobs);
    EpiloguePlan epilogue = epilogue_of(chain, knobs);
    jit::CompileRequest request = compile_request(config, epilogue.text);
    return {config, seen_chain(chain, knobs), std::move(epilogue), std::move(request), exchanges(knobs)};
  }

  static engine::Compiled assemble(const chain::FusionChain& chain, Part part, Kernel kernel, Device device, int sm_count) {
    recipe::Recipe recipe =
        recipe::build(chain, requirements_of(part.seen, part.is_exchanged, part.config, part.epilogue.maps, device));
    std::string flaw = kernel->report().flaw();
    return {std::move(recipe),
            make_launcher(std::move(part.seen), part.is_exchanged, part.config, std::move(part.epilogue), std::move(kernel),
                          device, sm_count),
            std::move(flaw)};
  }

  /// One cheap call: asked for every configuration, where all facts would take milliseconds.
  static int multiprocessors(Device device) {
    const auto driver = cuda::driver();
    cuda::CUdevice handle = 0;
    int count = 0;
    const bool known =
        driver && (*driver)->cuDeviceGet(&handle, device.id) == cuda::CUDA_SUCCESS &&
        (*driver)->cuDeviceGetAttribute(&count, cuda::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, handle) == cuda::CUDA_SUCCESS;
    return known ? count : 132;
  }
};

}  // namespace

const engine::Engine& engine() noexcept {
  static const Sm90Engine e;
  return e;
}

}  // namespace verglas::sm90
