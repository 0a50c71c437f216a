#pragma once
#include <memory>
#include <string>
#include <vector>

#include "verglas/ops/operation.hpp"
#include "verglas/plan.hpp"
#include "verglas/tensor.hpp"

namespace verglas::bench {

/// One kind of checked call. Calls take the packs in turn: one pack where nothing changes, several where pointers or shapes do.
struct Case {
  std::string name;
  int budget = 0;  ///< instructions of a call
  CompiledPlan plan;
  std::vector<std::vector<TensorView>> packs;
  std::vector<std::vector<void*>> addresses = {};            ///< instead of packs
  std::shared_ptr<const ops::Prepared> operation = nullptr;  ///< instead of the plan: packs are its tensors
};

/// A driver that does nothing has to be in place, and to be silent only after this: plans are compiled here.
std::vector<Case> make_cases();

}  // namespace verglas::bench
