#pragma once
#include <nanobind/nanobind.h>

#include <string>

#include "verglas/dtype.hpp"

namespace verglas::python {

/// The type that a Python object names: verglas.data_type, a name ("bf16", "bfloat16", "BFLOAT16"), or whatever has such a name
/// as its own (NumPy's, ml_dtypes', JAX' and torch's types). Throws graph.dtype for a name that is none of ours.
struct DataTypeLike {
  DataType type = DataType::not_set;
  std::string unknown;  ///< what was named, when it is none of ours

  DataType get() const;
};

/// By the name that NumPy and its friends use: "float32", "bfloat16", "bool"; `not_set` where there is none of ours.
DataType dtype_from_numpy_name(std::string_view name) noexcept;

}  // namespace verglas::python

namespace nanobind::detail {

template <>
struct type_caster<verglas::python::DataTypeLike> {
  NB_TYPE_CASTER(verglas::python::DataTypeLike, const_name("data_type | str | typing.Any"))
  bool from_python(handle src, uint8_t flags, cleanup_list* cleanup) noexcept;
  static handle from_cpp(const verglas::python::DataTypeLike& src, rv_policy policy, cleanup_list* cleanup) noexcept {
    return make_caster<verglas::DataType>::from_cpp(src.type, policy, cleanup);
  }
};

}  // namespace nanobind::detail
