#pragma once
#include <nanobind/nanobind.h>

#include <string>
#include <string_view>

#include "buffers.hpp"

namespace verglas::python {

/// True for a NumPy array, subclasses included. NumPy is not imported: as long as nobody has, no object is one.
bool is_numpy_array(nb::handle object) noexcept;
/// Reads the array's own fields: no Python code runs, except for the first array of a type.
void read_numpy_array(nb::handle array, const OperandInfo& operand, TensorView& view);
/// Anything with __array_interface__, also arrays of NumPy should its fields ever move.
void read_array_interface(nb::handle object, const OperandInfo& operand, TensorView& view, Keepers& keep);

/// "<f4" and its like; `not_set` for what is none of ours.
DataType dtype_from_typestr(std::string_view typestr) noexcept;
/// What an object answers for one of the two array interfaces; throws pack.object, also where elements are masked.
nb::dict interface_of(nb::handle object, const char* name, const OperandInfo& operand);
std::string typestr_of(const nb::dict& fields, const OperandInfo& operand);
/// Address, extents and strides as both array interfaces have them; the type is set already.
void read_interface_layout(const nb::dict& fields, const OperandInfo& operand, TensorView& view);

/// Bytes to elements; throws pack.stride.
void set_byte_strides(TensorView& view, const Py_ssize_t* bytes, std::int64_t item, const OperandInfo& operand);
/// Throws call.dtype for a type that has no counterpart here.
[[noreturn]] void refuse_type(const OperandInfo& operand, std::string got);
void set_rank(TensorView& view, std::int64_t rank, const OperandInfo& operand);

}  // namespace verglas::python
