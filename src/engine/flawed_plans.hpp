#pragma once
#include <algorithm>
#include <utility>
#include <vector>

#include "engine/engine.hpp"

namespace verglas::engine {

/// Plans of one list whose kernels turned out to have a flaw (Compiled::flaw), and which others have it too, most likely: whoever
/// looks for a plan without compiles no more of these.
class FlawedPlans {
 public:
  void add(const Engine& e, Demand demand) { flawed_.push_back({&e, std::move(demand)}); }
  bool has_alike(const Engine& e, const Demand& demand) const {
    return std::any_of(flawed_.begin(), flawed_.end(), [&](const auto& f) {
      return f.first == &e && (f.second.code == demand.code || (flawed_.size() >= kSurely && is_as_large(demand, f.second)));
    });
  }

 private:
  static constexpr std::size_t kSurely = 3;  ///< flaws behind which no plan has a chance that asks for as much as one of these
  static bool is_as_large(const Demand& a, const Demand& b) { return a.results >= b.results && a.threads >= b.threads; }

  std::vector<std::pair<const Engine*, Demand>> flawed_;
};

}  // namespace verglas::engine
