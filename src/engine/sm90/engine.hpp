#pragma once
#include "engine/engine.hpp"
#include "engine/sm90/configuration.hpp"
#include "engine/sm90/generate.hpp"
#include "engine/sm90/source.hpp"
#include "jit/nvrtc.hpp"

namespace verglas::sm90 {

/// Hopper: kernels generated from the chain, compiled with NVRTC, TMA and wgmma.
const engine::Engine& engine() noexcept;

/// What the kernels serve, whatever machine this is: the part of the claim that needs no device.
Result<engine::Claim> claim_chain(const chain::FusionChain& chain);

/// True for knobs that exchange rows and columns; then the kernel, its epilogue and its launcher see `exchanged(chain)`.
bool exchanges(const Knobs& knobs);
chain::FusionChain seen_chain(const chain::FusionChain& chain, const Knobs& knobs);
/// The epilogue of the chain as these knobs have it; of a claimed chain.
EpiloguePlan epilogue_of(const chain::FusionChain& chain, const Knobs& knobs);
/// The flavor that these knobs and the declared layouts ask for.
KernelConfig configuration_of(const chain::FusionChain& chain, const Knobs& knobs);
/// The knobs without those that ptxas does not care about.
Knobs code_of(Knobs knobs);
/// Complete sets of knobs for the chain, best first by prediction for that many multiprocessors.
std::vector<Knobs> configurations_of(const chain::FusionChain& chain, int sm_count);

/// What NVRTC is asked for: also without a GPU, for compiling ahead of time.
jit::CompileRequest compile_request(const KernelConfig& config, const EpilogueText& epilogue = {});

}  // namespace verglas::sm90
