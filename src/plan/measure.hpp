#pragma once
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "verglas/plan.hpp"

namespace verglas::plan {

/// How long plans are measured.
struct Windows {
  int rounds = 6;                ///< every plan once a round; the order turns round each time
  double window_seconds = 0.02;  ///< of calls that are timed together
  double settle_seconds = 0.1;   ///< of calls before the first, so that clocks and caches are those of steady work
};

/// One plan's windows, in seconds a call; or why it could not be timed.
struct Sample {
  std::vector<double> windows;
  std::string failure;
  double median() const;  ///< infinite without a window
};

/// Times calls of plans of one chain beside each other, on the same operands: random numbers, in as many copies as leave the
/// device's caches between two calls on the same one.
class Meter {
 public:
  virtual ~Meter() = default;
  /// One answer a plan. Throws where the device fails, and nothing can be told any more.
  virtual std::vector<Sample> measure(std::span<const CompiledPlan> plans, const Windows& windows) = 0;
};

/// Throws driver.missing, driver.call, out_of_memory.
std::unique_ptr<Meter> make_meter(const chain::FusionChain& chain, Device device);

}  // namespace verglas::plan
