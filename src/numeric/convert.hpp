#pragma once
#include <cstdint>

#include "verglas/dtype.hpp"

namespace verglas::numeric {

float to_float(const void* slot, DataType t) noexcept;
void from_float(float v, void* slot, DataType t) noexcept;
float round_to(float v, DataType t) noexcept;
void load_f32(const void* src, DataType t, std::int64_t stride, std::int64_t n, float* dst) noexcept;
void store_f32(const float* src, DataType t, void* dst, std::int64_t stride, std::int64_t n) noexcept;
void load_i32(const void* src, DataType t, std::int64_t stride, std::int64_t n, std::int32_t* dst) noexcept;
void store_i32(const std::int32_t* src, DataType t, void* dst, std::int64_t stride, std::int64_t n) noexcept;
void round_f32(float* x, DataType t, std::int64_t n) noexcept;

}  // namespace verglas::numeric
