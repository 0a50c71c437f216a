#include "verglas/dtype.hpp"

#include <array>

namespace verglas {
namespace {
struct Names {
  DataType type;
  std::string_view name, cudnn;
};
constexpr std::array<Names, kDataTypeCount> kNames = {{
    {DataType::not_set, "not_set", "NOT_SET"},
    {DataType::fp32, "fp32", "FLOAT"},
    {DataType::tf32, "tf32", "TF32"},
    {DataType::fp16, "fp16", "HALF"},
    {DataType::bf16, "bf16", "BFLOAT16"},
    {DataType::fp8_e4m3, "fp8_e4m3", "FP8_E4M3"},
    {DataType::fp8_e5m2, "fp8_e5m2", "FP8_E5M2"},
    {DataType::fp8_e8m0, "fp8_e8m0", "FP8_E8M0"},
    {DataType::fp4_e2m1, "fp4_e2m1", "FP4_E2M1"},
    {DataType::int8, "int8", "INT8"},
    {DataType::uint8, "uint8", "UINT8"},
    {DataType::int32, "int32", "INT32"},
    {DataType::int64, "int64", "INT64"},
    {DataType::boolean, "boolean", "BOOLEAN"},
}};
}  // namespace

std::string_view name_of(DataType t) noexcept {
  const auto i = static_cast<std::size_t>(t);
  return i < kNames.size() ? kNames[i].name : "not_set";
}

DataType dtype_from_name(std::string_view name) noexcept {
  for (const Names& n : kNames)
    if (name == n.name || name == n.cudnn) return n.type;
  return DataType::not_set;
}

}  // namespace verglas
