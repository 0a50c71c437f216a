#pragma once
#include <memory>
#include <span>

#include "chain/chain.hpp"
#include "engine/sm90/configuration.hpp"
#include "engine/sm90/generate.hpp"
#include "jit/kernel.hpp"
#include "recipe/recipe.hpp"

namespace verglas::sm90 {

/// A launch prepared for the declared extents: a call copies the block, replaces addresses, and launches; other extents or
/// strides rebuild the block. The kernel is ready on the device. `is_exchanged`: the chain is, and the bindings of calls are not.
/// Throws driver_failed.
std::unique_ptr<recipe::Launcher> make_launcher(chain::FusionChain chain, bool is_exchanged, const KernelConfig& config,
                                                EpiloguePlan epilogue, std::shared_ptr<const jit::LoadedKernel> kernel,
                                                Device device, int sm_count);

/// What the paths of this configuration ask of the operands of a call, in the words of the chain before it was exchanged. `maps`:
/// of its epilogue.
recipe::Requirements requirements_of(const chain::FusionChain& chain, bool is_exchanged, const KernelConfig& config,
                                     std::span<const StagedRole> maps, Device device);

}  // namespace verglas::sm90
