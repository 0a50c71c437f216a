#pragma once
#include "engine/cpu/product.hpp"

namespace verglas::engine::cpu {

/// Products by AVX-512, from packed panels: what oneDNN does, for machines where it is not installed. Null where the processor
/// has no AVX-512. Each element is one chain of fused multiply-adds along K, 1024 of K at a time.
Sgemm panels_sgemm() noexcept;

}  // namespace verglas::engine::cpu
