#include "dtypes.hpp"

#include <nanobind/stl/string.h>

#include <array>
#include <cctype>
#include <string_view>
#include <utility>

#include "base/rules.hpp"
#include "bindings.hpp"
#include "lifecycle.hpp"
#include "verglas/graph.hpp"
#include "verglas/moe.hpp"
#include "verglas/plan.hpp"
#include "verglas/pointwise.hpp"

namespace verglas::python {
namespace {

constexpr std::array<std::pair<std::string_view, DataType>, 13> kNumpyNames = {{
    {"float32", DataType::fp32},
    {"float16", DataType::fp16},
    {"bfloat16", DataType::bf16},
    {"float8_e4m3fn", DataType::fp8_e4m3},
    {"float8_e5m2", DataType::fp8_e5m2},
    {"float8_e8m0fnu", DataType::fp8_e8m0},
    {"int8", DataType::int8},
    {"uint8", DataType::uint8},
    {"int32", DataType::int32},
    {"int64", DataType::int64},
    {"bool", DataType::boolean},
    {"bool_", DataType::boolean},
    {"half", DataType::fp16},
}};

/// The name by which an object calls the type that it stands for; empty when it has none.
std::string name_in(nb::handle src) {
  for (const char* attribute : {"name", "__name__"})
    if (const nb::object name = nb::getattr(src, attribute, nb::none()); nb::isinstance<nb::str>(name))
      return nb::cast<std::string>(name);
  if (const nb::object inner = nb::getattr(src, "dtype", nb::none()); !inner.is_none() && !inner.is(src)) return name_in(inner);
  const std::string text = nb::cast<std::string>(nb::str(src));  // torch.bfloat16
  const std::size_t dot = text.rfind('.');
  return dot == std::string::npos ? std::string() : text.substr(dot + 1);
}

template <class Enum>
void add_values(nb::enum_<Enum>& e, int count) {
  for (int i = 0; i < count; ++i) {
    std::string name(name_of(static_cast<Enum>(i)));
    for (char& c : name) c = static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
    e.value(name.c_str(), static_cast<Enum>(i));
  }
}

}  // namespace

DataType dtype_from_numpy_name(std::string_view name) noexcept {
  for (const auto& [known, type] : kNumpyNames)
    if (name == known) return type;
  return DataType::not_set;
}

DataType DataTypeLike::get() const {
  if (!unknown.empty()) throw broken(Rule::graph_dtype, "data type", unknown, "one of verglas.data_type, or its name");
  return type;
}

void bind_enums(nb::module_& m) {
  nb::enum_<DataType>(m, "data_type",
                      "Type of the elements of a tensor, or of the arithmetic of a node; TF32 is the latter only.")
      .value("NOT_SET", DataType::not_set)
      .value("FLOAT", DataType::fp32)
      .value("TF32", DataType::tf32)
      .value("HALF", DataType::fp16)
      .value("BFLOAT16", DataType::bf16)
      .value("FP8_E4M3", DataType::fp8_e4m3)
      .value("FP8_E5M2", DataType::fp8_e5m2)
      .value("FP8_E8M0", DataType::fp8_e8m0)
      .value("FP4_E2M1", DataType::fp4_e2m1)
      .value("INT8", DataType::int8)
      .value("UINT8", DataType::uint8)
      .value("INT32", DataType::int32)
      .value("INT64", DataType::int64)
      .value("BOOLEAN", DataType::boolean);
  nb::enum_<TensorReordering>(m, "tensor_reordering", "How scales of blocks lie: in plain order, or in atoms of 128 rows by 4.")
      .value("NONE", TensorReordering::none)
      .value("F8_128x4", TensorReordering::f8_128x4);
  nb::enum_<PointwiseMode> pointwise(m, "pointwise_mode", "Elementwise functions, for Graph.pointwise.");
  add_values(pointwise, kPointwiseModeCount);
  nb::enum_<ReductionMode> reduction(m, "reduction_mode", "How a reduction combines elements; NaN wins in MAX, MIN and AMAX.");
  add_values(reduction, kReductionModeCount);
  nb::enum_<MoeMode> moe(m, "moe_grouped_matmul_mode",
                         "Which row of a grouped product reads which token, and where it goes; Graph.moe_grouped_matmul.");
  add_values(moe, 4);
  nb::enum_<MoeOffsets> offsets(m, "moe_offsets", "What offsets of groups are: their first rows, or the rows behind them.");
  add_values(offsets, 2);
  nb::enum_<HeurMode>(m, "heur_mode", "Which ranking of plans to use. There is one, so that all of them mean the same.")
      .value("A", HeurMode::a)
      .value("B", HeurMode::b)
      .value("FALLBACK", HeurMode::fallback)
      .value("OPENSOURCE", HeurMode::opensource);
  nb::enum_<BuildPlanPolicy>(m, "build_plan_policy", "Which plans to compile: the first that compiles, or all of them.")
      .value("HEURISTICS_CHOICE", BuildPlanPolicy::heuristics_choice)
      .value("ALL", BuildPlanPolicy::all);
}

}  // namespace verglas::python

namespace nanobind::detail {

bool type_caster<verglas::python::DataTypeLike>::from_python(handle src, uint8_t, cleanup_list*) noexcept {
  using verglas::DataType;
  try {
    if (isinstance<int_>(src) || isinstance<float_>(src)) return false;  // an enum's caster would take numbers
    if (try_cast(src, value.type)) return true;
    if (src.is_none()) return true;  // not set
    const bool is_text = isinstance<str>(src);
    const std::string name = is_text ? cast<std::string>(src) : verglas::python::name_in(src);
    if (name.empty() && !is_text) return false;
    value.type = verglas::dtype_from_name(name);
    if (value.type == DataType::not_set) value.type = verglas::python::dtype_from_numpy_name(name);
    // A type of arrays only where its elements are packed two a byte: torch's is, ml_dtypes' is not.
    if (name == "float4_e2m1fn" || name == "float4_e2m1fn_x2") value.type = DataType::fp4_e2m1;
    if (value.type == DataType::not_set && name != "not_set" && name != "NOT_SET") value.unknown = name.empty() ? "''" : name;
    return true;
  } catch (...) {
    PyErr_Clear();
    return false;
  }
}

}  // namespace nanobind::detail
