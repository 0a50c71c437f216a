#pragma once
#include <memory>

#include "chain/chain.hpp"
#include "engine/sm90/configuration.hpp"
#include "engine/sm90/generate.hpp"
#include "jit/kernel.hpp"
#include "recipe/recipe.hpp"

namespace verglas::sm90 {

/// A launch prepared for the declared extents: a call copies the block, replaces addresses, and launches; other extents or
/// strides rebuild the block. The kernel is ready on the device. Throws driver_failed.
std::unique_ptr<recipe::Launcher> make_launcher(const chain::FusionChain& chain, const KernelConfig& config,
                                                EpiloguePlan epilogue, std::shared_ptr<const jit::LoadedKernel> kernel,
                                                Device device, int sm_count);

/// What the paths of this configuration ask of the operands of a call.
recipe::Requirements requirements_of(const chain::FusionChain& chain, const KernelConfig& config, Device device);

}  // namespace verglas::sm90
