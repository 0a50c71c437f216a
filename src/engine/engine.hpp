#pragma once
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "base/result.hpp"
#include "chain/chain.hpp"
#include "recipe/recipe.hpp"
#include "verglas/call.hpp"
#include "verglas/tensor.hpp"

namespace verglas::engine {

/// What an engine promises when it takes a chain: it compiles, and every call that the recipe lets through runs.
struct Claim {
  std::string note;  ///< for `explain`: how the chain will be served, in a few words
};

struct Compiled {
  recipe::Recipe recipe;
  std::unique_ptr<recipe::Launcher> launcher;
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
  /// The chain outlives what is compiled. Throws Error compile_failed, driver_failed.
  virtual Compiled compile(const chain::FusionChain& chain, const Knobs& knobs, Device device) const = 0;
};

/// All engines, best first. The one place that names them.
std::span<const Engine* const> engine_list() noexcept;

/// "cpu[PRODUCT=1]".
std::string plan_name(const Engine& engine, const Knobs& knobs);

}  // namespace verglas::engine
