#include "numeric/convert.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>

#include "numeric/formats.hpp"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace verglas::numeric {
namespace {

template <class T>
T get(const void* p) noexcept {
  T v;
  std::memcpy(&v, p, sizeof v);
  return v;
}
template <class T>
void put(void* p, T v) noexcept {
  std::memcpy(p, &v, sizeof v);
}

/// One storage type: its bits, and how they become a float lane and come from one.
template <class Bits, float (*Load)(Bits), Bits (*Save)(float)>
struct Codec {
  using Slot = Bits;
  [[gnu::always_inline]] static float load(Bits b) noexcept { return Load(b); }
  [[gnu::always_inline]] static Bits save(float f) noexcept { return Save(f); }
  [[gnu::always_inline]] static std::int32_t load_i32(Bits b) noexcept { return float_to_int<std::int32_t>(Load(b)); }
  [[gnu::always_inline]] static Bits save_i32(std::int32_t v) noexcept { return Save(static_cast<float>(v)); }
};
template <class I>
float int_to_float(I v) {
  return static_cast<float>(v);
}
template <class I>
I int_of(float f) {
  return float_to_int<I>(f);
}
/// Integer slots and integer lanes meet without a float between them: no bit is lost.
template <class I>
struct IntCodec : Codec<I, int_to_float<I>, int_of<I>> {
  [[gnu::always_inline]] static std::int32_t load_i32(I v) noexcept {
    if constexpr (sizeof(I) == 8) return static_cast<std::int32_t>(std::clamp<I>(v, INT32_MIN, INT32_MAX));
    return static_cast<std::int32_t>(v);
  }
  [[gnu::always_inline]] static I save_i32(std::int32_t v) noexcept {
    using L = std::numeric_limits<I>;
    if constexpr (sizeof(I) == 1) return static_cast<I>(std::clamp<std::int32_t>(v, L::min(), L::max()));
    return static_cast<I>(v);
  }
};
float same(float f) { return f; }
float bool_to_float(std::uint8_t b) { return b != 0 ? 1.0F : 0.0F; }

/// Calls f with the codec of t; false for types that are never stored.
template <class F>
bool with_codec(DataType t, F&& f) {
  switch (t) {
    case DataType::fp32: f(Codec<float, same, same>{}); return true;
    case DataType::fp16: f(Codec<std::uint16_t, fp16_to_float, float_to_fp16>{}); return true;
    case DataType::bf16: f(Codec<std::uint16_t, bf16_to_float, float_to_bf16>{}); return true;
    case DataType::fp8_e4m3: f(Codec<std::uint8_t, e4m3_to_float, float_to_e4m3>{}); return true;
    case DataType::fp8_e5m2: f(Codec<std::uint8_t, e5m2_to_float, float_to_e5m2>{}); return true;
    case DataType::fp8_e8m0: f(Codec<std::uint8_t, e8m0_to_float, float_to_e8m0>{}); return true;
    case DataType::fp4_e2m1: f(Codec<std::uint8_t, e2m1_to_float, float_to_e2m1>{}); return true;
    case DataType::int8: f(IntCodec<std::int8_t>{}); return true;
    case DataType::uint8: f(IntCodec<std::uint8_t>{}); return true;
    case DataType::int32: f(IntCodec<std::int32_t>{}); return true;
    case DataType::int64: f(IntCodec<std::int64_t>{}); return true;
    case DataType::boolean: f(Codec<std::uint8_t, bool_to_float, float_to_boolean>{}); return true;
    case DataType::not_set:
    case DataType::tf32: return false;
  }
  return false;
}

/// Runs of unit stride, which the compiler vectorises; `always_inline`, so that a caller's instruction set is theirs.
template <class C>
[[gnu::always_inline]] inline void load_run(const typename C::Slot* src, std::int64_t n, float* dst) noexcept {
  for (std::int64_t i = 0; i < n; ++i) dst[i] = C::load(src[i]);
}
template <class C>
[[gnu::always_inline]] inline void store_run(const float* src, std::int64_t n, typename C::Slot* dst) noexcept {
  for (std::int64_t i = 0; i < n; ++i) dst[i] = C::save(src[i]);
}
template <class C>
[[gnu::always_inline]] inline void round_run(float* x, std::int64_t n) noexcept {
  for (std::int64_t i = 0; i < n; ++i) x[i] = C::load(C::save(x[i]));
}
template <class C>
[[gnu::always_inline]] inline void load_i32_run(const typename C::Slot* src, std::int64_t n, std::int32_t* dst) noexcept {
  for (std::int64_t i = 0; i < n; ++i) dst[i] = C::load_i32(src[i]);
}
template <class C>
[[gnu::always_inline]] inline void store_i32_run(const std::int32_t* src, std::int64_t n, typename C::Slot* dst) noexcept {
  for (std::int64_t i = 0; i < n; ++i) dst[i] = C::save_i32(src[i]);
}

#if defined(__x86_64__)
// Chosen by hand and not by target_clones, whose resolvers run before a sanitizer's runtime is up.
const bool kHasF16c = __builtin_cpu_supports("f16c") != 0;
const bool kHasAvx2 = __builtin_cpu_supports("avx2") != 0;

template <class C>
[[gnu::target("avx2")]] void load_run_avx2(const typename C::Slot* src, std::int64_t n, float* dst) noexcept {
  load_run<C>(src, n, dst);
}
template <class C>
[[gnu::target("avx2")]] void store_run_avx2(const float* src, std::int64_t n, typename C::Slot* dst) noexcept {
  store_run<C>(src, n, dst);
}
template <class C>
[[gnu::target("avx2")]] void round_run_avx2(float* x, std::int64_t n) noexcept {
  round_run<C>(x, n);
}
template <class C>
[[gnu::target("avx2")]] void load_i32_run_avx2(const typename C::Slot* src, std::int64_t n, std::int32_t* dst) noexcept {
  load_i32_run<C>(src, n, dst);
}
template <class C>
[[gnu::target("avx2")]] void store_i32_run_avx2(const std::int32_t* src, std::int64_t n, typename C::Slot* dst) noexcept {
  store_i32_run<C>(src, n, dst);
}

/// fp16 runs of eight by the processor's own conversion: to nearest even like ours, and NaN as ours (upper bits kept, quiet).
__attribute__((target("avx,f16c"))) std::int64_t load_fp16_run(const std::uint16_t* src, std::int64_t n, float* dst) noexcept {
  std::int64_t i = 0;
  for (; i + 8 <= n; i += 8)
    _mm256_storeu_ps(dst + i, _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(src + i))));
  return i;
}
__attribute__((target("avx,f16c"))) std::int64_t store_fp16_run(const float* src, std::int64_t n, std::uint16_t* dst) noexcept {
  std::int64_t i = 0;
  for (; i + 8 <= n; i += 8)
    _mm_storeu_si128(reinterpret_cast<__m128i*>(dst + i), _mm256_cvtps_ph(_mm256_loadu_ps(src + i), _MM_FROUND_TO_NEAREST_INT));
  return i;
}
__attribute__((target("avx,f16c"))) std::int64_t round_fp16_run(float* x, std::int64_t n) noexcept {
  std::int64_t i = 0;
  for (; i + 8 <= n; i += 8)
    _mm256_storeu_ps(x + i, _mm256_cvtph_ps(_mm256_cvtps_ph(_mm256_loadu_ps(x + i), _MM_FROUND_TO_NEAREST_INT)));
  return i;
}
#else
constexpr bool kHasF16c = false;
constexpr bool kHasAvx2 = false;
template <class C>
void load_run_avx2(const typename C::Slot*, std::int64_t, float*) noexcept {}
template <class C>
void store_run_avx2(const float*, std::int64_t, typename C::Slot*) noexcept {}
template <class C>
void round_run_avx2(float*, std::int64_t) noexcept {}
template <class C>
void load_i32_run_avx2(const typename C::Slot*, std::int64_t, std::int32_t*) noexcept {}
template <class C>
void store_i32_run_avx2(const std::int32_t*, std::int64_t, typename C::Slot*) noexcept {}
std::int64_t load_fp16_run(const std::uint16_t*, std::int64_t, float*) noexcept { return 0; }
std::int64_t store_fp16_run(const float*, std::int64_t, std::uint16_t*) noexcept { return 0; }
std::int64_t round_fp16_run(float*, std::int64_t) noexcept { return 0; }
#endif

bool is_aligned(const void* p, std::size_t to) noexcept { return reinterpret_cast<std::uintptr_t>(p) % to == 0; }

}  // namespace

float to_float(const void* slot, DataType t) noexcept {
  float v = 0.0F;
  with_codec(t, [&](auto codec) { v = codec.load(get<typename decltype(codec)::Slot>(slot)); });
  return v;
}

void from_float(float v, void* slot, DataType t) noexcept {
  with_codec(t, [&](auto codec) { put(slot, codec.save(v)); });
}

float fp4_to_float(const void* run, std::int64_t index) noexcept {
  const std::uint8_t byte = static_cast<const std::uint8_t*>(run)[index / 2];
  return e2m1_to_float(static_cast<std::uint8_t>(index % 2 == 0 ? byte & 0xFU : byte >> 4U));
}

void fp4_from_float(float v, void* run, std::int64_t index) noexcept {
  std::uint8_t& byte = static_cast<std::uint8_t*>(run)[index / 2];
  const std::uint32_t code = float_to_e2m1(v);
  byte = static_cast<std::uint8_t>(index % 2 == 0 ? (byte & 0xF0U) | code : (byte & 0x0FU) | code << 4U);
}

void load_fp4(const void* run, std::int64_t n, float* dst) noexcept {
  static constexpr std::array<float, 16> kValues = [] {
    std::array<float, 16> v{};
    for (std::size_t code = 0; code < v.size(); ++code) v[code] = e2m1_to_float(static_cast<std::uint8_t>(code));
    return v;
  }();
  const auto* bytes = static_cast<const std::uint8_t*>(run);
  for (std::int64_t i = 0; i + 1 < n; i += 2) {
    dst[i] = kValues[bytes[i / 2] & 0xFU];
    dst[i + 1] = kValues[bytes[i / 2] >> 4U];
  }
  if (n % 2 != 0) dst[n - 1] = kValues[bytes[n / 2] & 0xFU];
}

void store_fp4(const float* src, void* run, std::int64_t n) noexcept {
  auto* bytes = static_cast<std::uint8_t*>(run);
  for (std::int64_t i = 0; i + 1 < n; i += 2)
    bytes[i / 2] = static_cast<std::uint8_t>(float_to_e2m1(src[i]) | float_to_e2m1(src[i + 1]) << 4U);
}

float round_to(float v, DataType t) noexcept {
  with_codec(t, [&](auto codec) { v = codec.load(codec.save(v)); });
  return v;
}

void load_f32(const void* src, DataType t, std::int64_t stride, std::int64_t n, float* dst) noexcept {
  if (t == DataType::fp32 && stride == 1) {
    if (n > 0) std::memmove(dst, src, static_cast<std::size_t>(n) * sizeof(float));
    return;
  }
  with_codec(t, [&](auto codec) {
    using Slot = typename decltype(codec)::Slot;
    if (!is_aligned(src, sizeof(Slot))) {
      for (std::int64_t i = 0; i < n; ++i)
        dst[i] = codec.load(get<Slot>(static_cast<const char*>(src) + i * stride * static_cast<std::int64_t>(sizeof(Slot))));
      return;
    }
    const auto* p = static_cast<const Slot*>(src);
    std::int64_t i = 0;
    if (stride == 1) {
      if constexpr (sizeof(Slot) == 2)
        if (t == DataType::fp16 && kHasF16c) i = load_fp16_run(p, n, dst);
      using C = decltype(codec);
      kHasAvx2 ? load_run_avx2<C>(p + i, n - i, dst + i) : load_run<C>(p + i, n - i, dst + i);
      return;
    }
    for (; i < n; ++i) dst[i] = codec.load(p[i * stride]);
  });
}

void store_f32(const float* src, DataType t, void* dst, std::int64_t stride, std::int64_t n) noexcept {
  if (t == DataType::fp32 && stride == 1) {
    if (n > 0) std::memmove(dst, src, static_cast<std::size_t>(n) * sizeof(float));
    return;
  }
  with_codec(t, [&](auto codec) {
    using Slot = typename decltype(codec)::Slot;
    if (!is_aligned(dst, sizeof(Slot))) {
      for (std::int64_t i = 0; i < n; ++i)
        put(static_cast<char*>(dst) + i * stride * static_cast<std::int64_t>(sizeof(Slot)), codec.save(src[i]));
      return;
    }
    auto* p = static_cast<Slot*>(dst);
    std::int64_t i = 0;
    if (stride == 1) {
      if constexpr (sizeof(Slot) == 2)
        if (t == DataType::fp16 && kHasF16c) i = store_fp16_run(src, n, p);
      using C = decltype(codec);
      kHasAvx2 ? store_run_avx2<C>(src + i, n - i, p + i) : store_run<C>(src + i, n - i, p + i);
      return;
    }
    for (; i < n; ++i) p[i * stride] = codec.save(src[i]);
  });
}

void round_f32(float* x, DataType t, std::int64_t n) noexcept {
  if (t == DataType::fp32) return;
  const std::int64_t i = t == DataType::fp16 && kHasF16c ? round_fp16_run(x, n) : 0;
  with_codec(t, [&](auto codec) {
    using C = decltype(codec);
    kHasAvx2 ? round_run_avx2<C>(x + i, n - i) : round_run<C>(x + i, n - i);
  });
}

void load_i32(const void* src, DataType t, std::int64_t stride, std::int64_t n, std::int32_t* dst) noexcept {
  with_codec(t, [&](auto codec) {
    using C = decltype(codec);
    using Slot = typename C::Slot;
    if (stride == 1 && is_aligned(src, sizeof(Slot))) {
      const auto* p = static_cast<const Slot*>(src);
      kHasAvx2 ? load_i32_run_avx2<C>(p, n, dst) : load_i32_run<C>(p, n, dst);
      return;
    }
    for (std::int64_t i = 0; i < n; ++i)
      dst[i] = C::load_i32(get<Slot>(static_cast<const char*>(src) + i * stride * static_cast<std::int64_t>(sizeof(Slot))));
  });
}

void store_i32(const std::int32_t* src, DataType t, void* dst, std::int64_t stride, std::int64_t n) noexcept {
  with_codec(t, [&](auto codec) {
    using C = decltype(codec);
    using Slot = typename C::Slot;
    if (stride == 1 && is_aligned(dst, sizeof(Slot))) {
      auto* p = static_cast<Slot*>(dst);
      kHasAvx2 ? store_i32_run_avx2<C>(src, n, p) : store_i32_run<C>(src, n, p);
      return;
    }
    for (std::int64_t i = 0; i < n; ++i)
      put(static_cast<char*>(dst) + i * stride * static_cast<std::int64_t>(sizeof(Slot)), C::save_i32(src[i]));
  });
}

}  // namespace verglas::numeric
