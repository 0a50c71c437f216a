#pragma once
/// Everything a user of the C++ API needs.
#include "verglas/dtype.hpp"
#include "verglas/error.hpp"
#include "verglas/explain.hpp"
#include "verglas/graph.hpp"
#include "verglas/moe.hpp"
#include "verglas/ops/gemm.hpp"
#include "verglas/plan.hpp"
#include "verglas/pointwise.hpp"
#include "verglas/tensor.hpp"
#include "verglas/version.hpp"
