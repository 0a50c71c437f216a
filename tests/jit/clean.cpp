#include "clean.hpp"

#include <gtest/gtest.h>

#include <ctime>

#include "cuda/nvrtc_table.hpp"
#include "engine/sm90/engine.hpp"
#include "jit/cubin.hpp"

namespace jit_test {

using namespace verglas;

int compile_clean(const chain::FusionChain& chain, const std::function<bool(const Knobs&)>& wanted, int most_instructions) {
  int kernels = 0;
  for (const Knobs& knobs : sm90::configurations_of(chain, 132)) {
    if (knobs.at("PROGRAMMATIC") != 0 || !wanted(knobs)) continue;
    const sm90::KernelConfig config = sm90::configuration_of(chain, knobs);
    const std::clock_t start = std::clock();
    const jit::CompiledKernel k =
        jit::compile(**cuda::nvrtc(), sm90::compile_request(config, sm90::epilogue_of(chain, knobs).text));
    EXPECT_TRUE(k.report.clean()) << k.kernel << '\n' << k.log;
    const int instructions = jit::read_cubin(k.cubin, k.kernel)->instructions, counted = sm90::instructions_of(chain, config);
    EXPECT_LE(instructions, counted > sm90::kMostInstructions ? sm90::kMostAtAll : most_instructions) << k.kernel;
    std::printf("%-72s %4d registers %5d instructions (%5d counted) %5.0f ms of a processor\n", k.kernel.c_str(),
                k.report.registers, instructions, counted, 1e3 * static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC);
    ++kernels;
  }
  return kernels;
}

}  // namespace jit_test
