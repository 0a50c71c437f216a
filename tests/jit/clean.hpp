#pragma once
#include <functional>

#include "chain/chain.hpp"
#include "engine/sm90/code_size.hpp"
#include "verglas/plan.hpp"

namespace jit_test {

/// Compiles the kernel of each plan that is `wanted`, of those without programmatic launch, and prints what it takes: none
/// spills, has a stack frame or a remark of ptxas, or more instructions than given, or than kMostAtAll where it is counted among
/// those that take long to compile. Answers how many.
int compile_clean(
    const verglas::chain::FusionChain& chain,
    const std::function<bool(const verglas::Knobs&)>& wanted = [](const verglas::Knobs&) { return true; },
    int most_instructions = verglas::sm90::kMostInstructions);

}  // namespace jit_test
