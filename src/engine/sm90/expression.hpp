#pragma once
#include <string>
#include <string_view>

#include "verglas/dtype.hpp"
#include "verglas/pointwise.hpp"

// What types and pointwise modes are in the generated CUDA C++. A value is held in fp32, but for int32, which is an int.
namespace verglas::sm90 {

/// A number as an fp32, to the bit.
std::string literal(double v);
/// The struct of pointwise.cuh that loads and stores a type; empty where there is none.
std::string_view slot_name(DataType t);
/// A mode on its operands x, y, z, computed in fp32 and in int32.
std::string float_expression(PointwiseMode mode, const PointwiseParameters& p);
std::string int_expression(PointwiseMode mode, const PointwiseParameters& p);
/// An expression, which is an int or a float, rounded to a type.
std::string rounded(DataType t, bool is_int, const std::string& e);

}  // namespace verglas::sm90
