#pragma once
#include <memory>

#include "chain/chain.hpp"
#include "engine/cpu/product.hpp"
#include "engine/cpu/program.hpp"
#include "recipe/recipe.hpp"

namespace verglas::engine::cpu {

std::unique_ptr<recipe::Launcher> make_launcher(const chain::FusionChain& chain, Sgemm sgemm);

}  // namespace verglas::engine::cpu
