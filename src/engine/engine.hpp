#pragma once
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.hpp"
#include "chain/chain.hpp"
#include "recipe/recipe.hpp"
#include "verglas/call.hpp"
#include "verglas/tensor.hpp"

namespace verglas::jit {
struct PlanFile;
}

namespace verglas::engine {

/// What an engine promises when it takes a chain: it compiles, and every call that the recipe lets through runs.
struct Claim {
  std::string note;  ///< for `explain`: how the chain will be served, in a few words
};

struct Compiled {
  recipe::Recipe recipe;
  std::unique_ptr<recipe::Launcher> launcher;
  std::string flaw = {};  ///< why another plan of the list is better than was predicted, a clause about this one; empty: nothing
};

/// What flaws of a plan's kernel hang on.
struct Demand {
  Knobs code;       ///< plans with the same have the same flaws
  int results = 0;  ///< registers that a thread keeps sums in
  int threads = 0;  ///< that share a multiprocessor's registers
};

/// What code is compiled for where there is no device to ask.
struct AheadTarget {
  std::string arch = "sm_90a";
  int sm_count = 132;  ///< multiprocessors, for the choice of knobs
};

/// Reader of chains for one kind of hardware. Stateless; one instance for the life of the process.
class Engine {
 public:
  virtual ~Engine() = default;
  virtual std::string_view name() const noexcept = 0;
  virtual int id() const noexcept = 0;  ///< for records; append-only
  /// Takes the chain on this device or says which rule forbids it.
  virtual Result<Claim> claim(const chain::FusionChain& chain, Device device) const = 0;
  /// Complete sets of knobs, best first; never empty for a claimed chain.
  virtual std::vector<Knobs> configurations(const chain::FusionChain& chain, Device device) const = 0;
  /// Seconds of one call at the declared extents, from bytes and operations.
  virtual double predict(const chain::FusionChain& chain, const Knobs& knobs, Device device) const = 0;
  virtual Demand demand(const chain::FusionChain&, const Knobs& knobs) const { return {knobs}; }
  /// What measurements of its plans depend on beside device and knobs: versions of what compiles or serves them.
  virtual std::string build() const { return {}; }
  /// The chain outlives what is compiled. Throws Error compile_failed, driver_failed.
  virtual Compiled compile(const chain::FusionChain& chain, const Knobs& knobs, Device device) const = 0;

  /// Compiles without a device, for a plan file: fills in engine, arch, nvrtc, key and kernels of `file`.
  /// knobs  those that must be so, others are chosen; complete afterwards. Throws plan.replay where none are like that.
  virtual std::optional<Decline> compile_ahead(const chain::FusionChain& chain, const AheadTarget& target, Knobs& knobs,
                                               jit::PlanFile& file) const;
  /// What `compile` answers, with the code of a file that `compile_ahead` filled: no compiler is needed. Throws file.plan_*.
  virtual Compiled load(const chain::FusionChain& chain, const Knobs& knobs, Device device, const jit::PlanFile& file,
                        const std::string& path) const;
};

/// All engines, best first. The one place that names them.
std::span<const Engine* const> engine_list() noexcept;

/// "cpu[PRODUCT=1]".
std::string plan_name(const Engine& engine, const Knobs& knobs);

}  // namespace verglas::engine
