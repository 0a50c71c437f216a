#pragma once
// Hopper's instructions, one function each. No header: NVRTC brings none, and a user's machine may have none.

namespace vg {

using uint8 = unsigned char;
using uint16 = unsigned short;
using uint32 = unsigned int;
using uint64 = unsigned long long;
using int64 = long long;

#define VG_DEVICE __device__ __forceinline__

/// Opaque to us; lies in the parameter block, whose address the copy engine reads.
struct alignas(64) TensorMap {
  uint64 opaque[16];
};

VG_DEVICE uint32 shared_address(const void* p) { return static_cast<uint32>(__cvta_generic_to_shared(p)); }

/// Warp-uniform by construction: the compiler may keep what depends on it in uniform registers.
VG_DEVICE int warp_index() { return __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x) / 32, 0); }

/// One lane of a converged warp.
VG_DEVICE bool elect_one() {
  uint32 elected;
  asm volatile("{\n.reg .pred p;\nelect.sync _|p, 0xffffffff;\nselp.u32 %0, 1, 0, p;\n}" : "=r"(elected));
  return elected != 0;
}

// ---- mbarrier ----------------------------------------------------------------------------------------------------------

VG_DEVICE void barrier_init(uint32 barrier, uint32 arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}
VG_DEVICE void fence_barrier_init() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }
VG_DEVICE void barrier_arrive(uint32 barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}
VG_DEVICE void barrier_arrive_expect(uint32 barrier, uint32 bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}
/// Returns once the phase of this parity has completed. `try_wait` suspends the thread in hardware.
VG_DEVICE void barrier_wait(uint32 barrier, uint32 parity) {
  asm volatile(
      "{\n.reg .pred p;\nagain:\nmbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n@p bra done;\nbra again;\ndone:\n}" ::"r"(
          barrier),
      "r"(parity)
      : "memory");
}

/// Named barrier of 128 threads.
template <int ID>
VG_DEVICE void warpgroup_sync() {
  asm volatile("bar.sync %0, 128;" ::"n"(ID) : "memory");
}
/// Barrier of one consumer warpgroup. With its number in a register ptxas reserves all sixteen, which nobody misses; a branch for
/// each immediate number would cut what is scheduled together.
VG_DEVICE void consumer_sync(int consumer) { asm volatile("bar.sync %0, 128;" ::"r"(1 + consumer) : "memory"); }
/// Barrier of warps 0 and 1 or of warps 2 and 3 of one.
VG_DEVICE void half_consumer_sync(int consumer) {
  asm volatile("bar.sync %0, 64;" ::"r"(5 + 2 * consumer + static_cast<int>(threadIdx.x / 64 % 2)) : "memory");
}

// ---- clusters ----------------------------------------------------------------------------------------------------------

VG_DEVICE uint32 cluster_rank() {
  uint32 rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}
/// By all threads of all blocks.
VG_DEVICE void cluster_sync() {
  asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
}
/// The same place in the shared memory of another block of the cluster.
VG_DEVICE uint32 remote_shared(uint32 address, uint32 rank) {
  uint32 there;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(address), "r"(rank));
  return there;
}
/// Orders nothing: for what was read, not for what was written.
VG_DEVICE void barrier_arrive_remote(uint32 barrier) {
  asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" ::"r"(barrier) : "memory");
}
/// Four values to another block; their 16 bytes count at a barrier there.
VG_DEVICE void store_remote(uint32 to, uint32 barrier, uint32 a, uint32 b, uint32 c, uint32 d) {
  asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 [%0], {%2, %3, %4, %5}, [%1];" ::"r"(to),
               "r"(barrier), "r"(a), "r"(b), "r"(c), "r"(d)
               : "memory");
}

// ---- bulk tensor copies ------------------------------------------------------------------------------------------------

VG_DEVICE void prefetch_map(const TensorMap* map) { asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory"); }
// A map that a kernel makes in memory: written, released, acquired by whoever goes by it.
VG_DEVICE void replace_address(TensorMap* map, uint64 address) {
  asm volatile("tensormap.replace.tile.global_address.global.b1024.b64 [%0], %1;" ::"l"(map), "l"(address) : "memory");
}
VG_DEVICE void release_maps() { asm volatile("fence.proxy.tensormap::generic.release.gpu;" ::: "memory"); }
VG_DEVICE void acquire_map(const TensorMap* map) {
  asm volatile("fence.proxy.tensormap::generic.acquire.gpu [%0], 128;" ::"l"(map) : "memory");
}
/// Box at (x, y, z), inner coordinate first. What lies outside the tensor arrives as zeros and counts as delivered.
VG_DEVICE void tma_load(uint32 to, const TensorMap* map, uint32 barrier, int x, int y, int z) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5}], [%2];" ::"r"(
          to),
      "l"(map), "r"(barrier), "r"(x), "r"(y), "r"(z)
      : "memory");
}
/// Of what is read once: its lines are the first to leave the L2.
VG_DEVICE void tma_load_once(uint32 to, const TensorMap* map, uint32 barrier, int x, int y, int z) {
  asm volatile(
      "{\n.reg .b64 policy;\ncreatepolicy.fractional.L2::evict_first.b64 policy, 1.0;\n"
      "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1, {%3, %4, %5}], "
      "[%2], policy;\n}" ::"r"(to),
      "l"(map), "r"(barrier), "r"(x), "r"(y), "r"(z)
      : "memory");
}
/// What lies outside the tensor is not written.
VG_DEVICE void tma_store(const TensorMap* map, uint32 from, int x, int y, int z) {
  asm volatile("cp.async.bulk.tensor.3d.global.shared::cta.tile.bulk_group [%0, {%2, %3, %4}], [%1];" ::"l"(map), "r"(from),
               "r"(x), "r"(y), "r"(z)
               : "memory");
}
/// The same by the threads for which `holds`: one statement, with operands that all threads form.
VG_DEVICE void tma_store_where(bool holds, const TensorMap* map, uint32 from, int x, int y, int z) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %5, 0;\n"
      "@p cp.async.bulk.tensor.3d.global.shared::cta.tile.bulk_group [%0, {%2, %3, %4}], [%1];\n}" ::"l"(map),
      "r"(from), "r"(x), "r"(y), "r"(z), "r"(static_cast<int>(holds))
      : "memory");
}
/// Groups belong to the thread that commits them: the same thread has to wait.
VG_DEVICE void bulk_commit() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
/// Until all but the newest N groups have read their shared memory.
template <int N>
VG_DEVICE void bulk_wait_read() {
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(N) : "memory");
}
/// Copies of this thread's own, without registers: `bytes` of 16 or 4, the others zero. Groups are counted as above.
VG_DEVICE void copy_async_16(uint32 to, const void* from, int bytes) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes) : "memory");
}
VG_DEVICE void copy_async_4(uint32 to, const void* from, int bytes) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(to), "l"(from), "r"(bytes) : "memory");
}
/// An arrival once all such copies of this thread so far are there; one of those that the barrier counts.
VG_DEVICE void barrier_arrive_copied(uint32 barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(barrier) : "memory");
}
VG_DEVICE void async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int N>
VG_DEVICE void async_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}
/// Makes this thread's ordinary stores to shared memory visible to the copy engine and to wgmma. Every writer executes it.
VG_DEVICE void fence_async_proxy() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// ---- wgmma -------------------------------------------------------------------------------------------------------------

/// Until at most N groups of this warpgroup are in flight.
template <int N>
VG_DEVICE void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory");
}

/// Shared-memory matrix descriptor, 128B swizzle. The address is that of a tile that starts on 1024 bytes.
///   63-62 swizzle (1 = 128B) | 45-32 stride offset / 16 | 29-16 leading offset / 16 | 13-0 address / 16
VG_DEVICE constexpr uint64 matrix_descriptor(uint32 address, uint32 leading_bytes, uint32 stride_bytes) {
  return uint64{1} << 62 | uint64{stride_bytes >> 4} << 32 | uint64{leading_bytes >> 4} << 16 | uint64{(address & 0x3ffff) >> 4};
}

/// The same without swizzle: 8 lines of 16 bytes lie side by side, the next 16 bytes along K and the next 8 lines at offsets.
VG_DEVICE uint64 plain_descriptor(uint32 address, uint32 along_k, uint32 next_lines) {
  return uint64{next_lines >> 4} << 32 | uint64{along_k >> 4} << 16 | uint64{(address & 0x3ffff) >> 4};
}

template <int N>
VG_DEVICE void raise_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(N));
}
template <int N>
VG_DEVICE void lower_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(N));
}

// ---- values of a warp ---------------------------------------------------------------------------------------------------

VG_DEVICE int sum_of_warp(int x) {
  int sum;
  asm volatile("redux.sync.add.s32 %0, %1, 0xffffffff;" : "=r"(sum) : "r"(x));
  return sum;
}
VG_DEVICE int most_of_warp(int x) {
  int most;
  asm volatile("redux.sync.max.s32 %0, %1, 0xffffffff;" : "=r"(most) : "r"(x));
  return most;
}

// ---- programmatic launch -----------------------------------------------------------------------------------------------

/// Until the kernel before ours is complete and its writes are visible; before any access to the caller's memory.
VG_DEVICE void wait_for_previous_kernel() { asm volatile("griddepcontrol.wait;" ::: "memory"); }
VG_DEVICE void let_next_kernel_start() { asm volatile("griddepcontrol.launch_dependents;" ::: "memory"); }

// ---- global memory ------------------------------------------------------------------------------------------------------

/// An address that the compiler forms once, and not anew for each place beside it.
VG_DEVICE void keep_apart(char*& at) { asm volatile("" : "+l"(at)); }

// Loads are volatile so that they stay with their unit: hoisted over a tile they would spill. They are predicated, and 0 where
// not `in`: with a branch around each the loads of a unit wait for one another.
VG_DEVICE uint32 load_word(const void* from, bool in) {
  uint32 v;
  asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %2, 0;\nmov.b32 %0, 0;\n@p ld.global.u32 %0, [%1];\n}"
               : "=r"(v)
               : "l"(from), "r"(static_cast<int>(in)));
  return v;
}
VG_DEVICE void load_words(uint32& a, uint32& b, const void* from, bool in) {
  asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %3, 0;\nmov.b32 %0, 0;\nmov.b32 %1, 0;\n@p ld.global.v2.u32 {%0, %1}, [%2];\n}"
               : "=r"(a), "=r"(b)
               : "l"(from), "r"(static_cast<int>(in)));
}
VG_DEVICE void load_words(uint32& a, uint32& b, uint32& c, uint32& d, const void* from, bool in) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %5, 0;\nmov.b32 %0, 0;\nmov.b32 %1, 0;\nmov.b32 %2, 0;\nmov.b32 %3, 0;\n"
      "@p ld.global.v4.u32 {%0, %1, %2, %3}, [%4];\n}"
      : "=r"(a), "=r"(b), "=r"(c), "=r"(d)
      : "l"(from), "r"(static_cast<int>(in)));
}
VG_DEVICE uint32 load_half(const void* from, bool in) {
  uint32 v;
  asm volatile(
      "{\n.reg .pred p;\n.reg .b16 h;\nsetp.ne.b32 p, %2, 0;\nmov.b16 h, 0;\n@p ld.global.u16 h, [%1];\ncvt.u32.u16 %0, h;\n}"
      : "=r"(v)
      : "l"(from), "r"(static_cast<int>(in)));
  return v;
}
VG_DEVICE uint32 load_byte(const void* from, bool in) {
  uint32 v;
  asm volatile(
      "{\n.reg .pred p;\n.reg .b16 h;\nsetp.ne.b32 p, %2, 0;\nmov.b16 h, 0;\n@p ld.global.u8 h, [%1];\ncvt.u32.u16 %0, h;\n}"
      : "=r"(v)
      : "l"(from), "r"(static_cast<int>(in)));
  return v;
}
VG_DEVICE void prefetch_l2(const void* at) { asm volatile("prefetch.global.L2 [%0];" ::"l"(at)); }
VG_DEVICE void store_u32(void* to, uint32 v) { asm volatile("st.global.u32 [%0], %1;" ::"l"(to), "r"(v) : "memory"); }
VG_DEVICE void store_u8(void* to, uint32 v) { asm volatile("st.global.u8 [%0], %1;" ::"l"(to), "r"(v) : "memory"); }
VG_DEVICE void store_u16(void* to, uint16 v) { asm volatile("st.global.u16 [%0], %1;" ::"l"(to), "h"(v) : "memory"); }
/// By the threads for which `holds`, without a branch.
VG_DEVICE void store_u8_where(bool holds, void* to, uint32 v) {
  asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %2, 0;\n@p st.global.u8 [%0], %1;\n}" ::"l"(to), "r"(v),
               "r"(static_cast<int>(holds))
               : "memory");
}
VG_DEVICE void store_u16_where(bool holds, void* to, uint32 v) {
  asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %2, 0;\n@p st.global.u16 [%0], %1;\n}" ::"l"(to), "h"(static_cast<uint16>(v)),
               "r"(static_cast<int>(holds))
               : "memory");
}
VG_DEVICE void store_u32_where(bool holds, void* to, uint32 v) {
  asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %2, 0;\n@p st.global.u32 [%0], %1;\n}" ::"l"(to), "r"(v),
               "r"(static_cast<int>(holds))
               : "memory");
}
VG_DEVICE void store_u64(void* to, uint32 low, uint32 high) {
  asm volatile("st.global.v2.u32 [%0], {%1, %2};" ::"l"(to), "r"(low), "r"(high) : "memory");
}
VG_DEVICE void store_u128(void* to, const uint32 (&v)[4]) {
  asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(to), "r"(v[0]), "r"(v[1]), "r"(v[2]), "r"(v[3]) : "memory");
}

// Likewise where `in`: with a branch around each a unit is many blocks, which take long to compile.
VG_DEVICE void store_u128_where(bool holds, void* to, const uint32 (&v)[4]) {
  asm volatile("{.reg .pred p; setp.ne.b32 p, %5, 0; @p st.global.v4.u32 [%0], {%1, %2, %3, %4};}" ::"l"(to), "r"(v[0]),
               "r"(v[1]), "r"(v[2]), "r"(v[3]), "r"(static_cast<int>(holds))
               : "memory");
}
VG_DEVICE void store_u8(void* to, uint32 v, bool in) {
  asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %2, 0;\n@p st.global.u8 [%0], %1;\n}" ::"l"(to), "r"(v),
               "r"(static_cast<int>(in))
               : "memory");
}
VG_DEVICE void store_u16(void* to, uint16 v, bool in) {
  asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %2, 0;\n@p st.global.u16 [%0], %1;\n}" ::"l"(to), "h"(v),
               "r"(static_cast<int>(in))
               : "memory");
}
VG_DEVICE void store_u32(void* to, uint32 v, bool in) {
  asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %2, 0;\n@p st.global.u32 [%0], %1;\n}" ::"l"(to), "r"(v),
               "r"(static_cast<int>(in))
               : "memory");
}
VG_DEVICE void store_u64(void* to, uint32 low, uint32 high, bool in) {
  asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %3, 0;\n@p st.global.v2.u32 [%0], {%1, %2};\n}" ::"l"(to), "r"(low), "r"(high),
               "r"(static_cast<int>(in))
               : "memory");
}

// ---- values ------------------------------------------------------------------------------------------------------------

VG_DEVICE float bf16_to_float(uint16 v) { return __uint_as_float(static_cast<uint32>(v) << 16); }
VG_DEVICE float f16_to_float(uint16 v) {
  float f;
  asm("cvt.f32.f16 %0, %1;" : "=f"(f) : "h"(v));
  return f;
}
VG_DEVICE uint16 bf16_bits(float f) {
  uint16 h;
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(h) : "f"(f));
  return h;
}
VG_DEVICE uint16 f16_bits(float f) {
  uint16 h;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(h) : "f"(f));
  return h;
}
/// 2^x within two ulps; results below the normal range are 0.
VG_DEVICE float exp2_approx(float x) {
  float r;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x));
  return r;
}
/// The larger, the smaller; NaN where one is.
VG_DEVICE float larger(float a, float b) {
  float r;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(r) : "f"(a), "f"(b));
  return r;
}
VG_DEVICE float smaller(float a, float b) {
  float r;
  asm("min.NaN.f32 %0, %1, %2;" : "=f"(r) : "f"(a), "f"(b));
  return r;
}
/// 1 / x within an ulp, for x that is not subnormal.
VG_DEVICE float reciprocal(float x) {
  float r;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x));
  return r;
}
/// a · b + c, rounded once.
VG_DEVICE float multiply_add(float a, float b, float c) { return __fmaf_rn(a, b, c); }
/// a · b + c, rounded once, then no less than 0 and no more than 1; NaN is 0.
VG_DEVICE float saturated(float a, float b, float c) {
  float r;
  asm("fma.rn.sat.f32 %0, %1, %2, %3;" : "=f"(r) : "f"(a), "f"(b), "f"(c));
  return r;
}
// 1 or 0. The assembler takes a choice between the constants -1 and -0 for an integer that is converted, which has no -0: hidden
// from it, the choice is one instruction and a negation the next.
VG_DEVICE float truth(bool holds) {
  float r;
  asm("{\n  .reg .pred p;\n  setp.ne.s32 p, %1, 0;\n  selp.f32 %0, 0f3F800000, 0f00000000, p;\n}"
      : "=f"(r)
      : "r"(static_cast<int>(holds)));
  return r;
}
VG_DEVICE float root_approx(float x) {
  float r;
  asm("sqrt.approx.f32 %0, %1;" : "=f"(r) : "f"(x));
  return r;
}
/// Two values rounded to nearest even, the first in the low half.
VG_DEVICE uint32 pack_bf16(float low, float high) {
  uint32 out;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(out) : "f"(high), "f"(low));
  return out;
}
VG_DEVICE uint32 pack_fp16(float low, float high) {
  uint32 out;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(out) : "f"(high), "f"(low));
  return out;
}

/// Two values in two bytes, nearest even and saturating, the first in the low one.
VG_DEVICE uint16 pack_e4m3(float low, float high) {
  uint16 out;
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(out) : "f"(high), "f"(low));
  return out;
}
VG_DEVICE uint16 pack_e5m2(float low, float high) {
  uint16 out;
  asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(out) : "f"(high), "f"(low));
  return out;
}
/// Two values from the low two bytes, as a pair of fp16.
VG_DEVICE uint32 halves_of_e4m3(uint32 bytes) {
  uint32 both;
  asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(both) : "h"(static_cast<uint16>(bytes)));
  return both;
}
VG_DEVICE uint32 halves_of_e5m2(uint32 bytes) {
  uint32 both;
  asm("cvt.rn.f16x2.e5m2x2 %0, %1;" : "=r"(both) : "h"(static_cast<uint16>(bytes)));
  return both;
}
VG_DEVICE float e4m3_to_float(uint32 byte) { return f16_to_float(static_cast<uint16>(halves_of_e4m3(byte))); }
VG_DEVICE float e5m2_to_float(uint32 byte) { return f16_to_float(static_cast<uint16>(byte << 8)); }
/// Bytes of both by number; with the high bit of a number eight times the byte's sign. __byte_perm leaves that bit out.
VG_DEVICE uint32 permute_bytes(uint32 a, uint32 b, uint32 numbers) {
  uint32 r;
  asm("prmt.b32 %0, %1, %2, %3;" : "=r"(r) : "r"(a), "r"(b), "r"(numbers));
  return r;
}
/// Two products, rounded to nearest even; subnormals are numbers.
VG_DEVICE uint32 multiply_bf16(uint32 a, uint32 b) {
  uint32 r;
  asm("mul.rn.bf16x2 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b));
  return r;
}
VG_DEVICE uint32 subtract_bf16(uint32 a, uint32 b) {
  uint32 r;
  asm("sub.rn.bf16x2 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b));
  return r;
}
VG_DEVICE uint32 subtract_fp16(uint32 a, uint32 b) {
  uint32 r;
  asm("sub.rn.f16x2 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b));
  return r;
}
VG_DEVICE uint32 multiply_fp16(uint32 a, uint32 b) {
  uint32 r;
  asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b));
  return r;
}
/// Nearest even, saturating; NaN is 0.
VG_DEVICE int nearest_int(float f) {
  int i;
  asm("cvt.rni.s32.f32 %0, %1;" : "=r"(i) : "f"(f));
  return i;
}
/// What the tensor cores keep of an fp32, nearest even.
VG_DEVICE uint32 tf32_bits(uint32 f) {
  uint32 t;
  asm("cvt.rn.tf32.f32 %0, %1;" : "=r"(t) : "f"(__uint_as_float(f)));
  return t;
}

/// Four 8x8 matrices of 16-bit values; lane l gives the address of line l % 8 of matrix l / 8. TRANSPOSED: a line is a column of
/// what the lanes hold.
template <bool TRANSPOSED>
VG_DEVICE void store_matrices(uint32 address, uint32 a, uint32 b, uint32 c, uint32 d) {
  if constexpr (TRANSPOSED) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(a), "r"(b), "r"(c),
                 "r"(d)
                 : "memory");
  } else {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(a), "r"(b), "r"(c), "r"(d)
                 : "memory");
  }
}
VG_DEVICE void store_two_matrices(uint32 address, uint32 a, uint32 b) {
  asm volatile("stmatrix.sync.aligned.m8n8.x2.shared.b16 [%0], {%1, %2};" ::"r"(address), "r"(a), "r"(b) : "memory");
}
template <bool TRANSPOSED>
VG_DEVICE void load_matrices(uint32 address, uint32 (&v)[4]) {
  if constexpr (TRANSPOSED) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v[0]), "=r"(v[1]), "=r"(v[2]), "=r"(v[3])
                 : "r"(address)
                 : "memory");
  } else {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v[0]), "=r"(v[1]), "=r"(v[2]), "=r"(v[3])
                 : "r"(address)
                 : "memory");
  }
}
VG_DEVICE void store_pair(uint32 address, float x, float y) {
  asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(address), "f"(x), "f"(y) : "memory");
}
VG_DEVICE void load_pair(uint32 address, float& x, float& y) {
  asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(x), "=f"(y) : "r"(address) : "memory");
}

VG_DEVICE void store_float(uint32 address, float x) { asm volatile("st.shared.f32 [%0], %1;" ::"r"(address), "f"(x) : "memory"); }
VG_DEVICE float load_float(uint32 address) {
  float x;
  asm volatile("ld.shared.f32 %0, [%1];" : "=f"(x) : "r"(address) : "memory");
  return x;
}

/// Past the first-level cache: what another SM wrote; `otherwise` where not `in`.
VG_DEVICE uint32 load_l2(const uint32* from, bool in, uint32 otherwise) {
  uint32 x = otherwise;
  asm volatile("{.reg .pred p; setp.ne.b32 p, %2, 0; @p ld.relaxed.gpu.global.u32 %0, [%1];}"
               : "+r"(x)
               : "l"(from), "r"(static_cast<int>(in))
               : "memory");
  return x;
}
/// Four of them.
VG_DEVICE void load_l2(const uint32* from, bool in, uint32 (&x)[4]) {
  asm volatile("{.reg .pred p; setp.ne.b32 p, %5, 0; @p ld.relaxed.gpu.global.v4.u32 {%0, %1, %2, %3}, [%4];}"
               : "+r"(x[0]), "+r"(x[1]), "+r"(x[2]), "+r"(x[3])
               : "l"(from), "r"(static_cast<int>(in))
               : "memory");
}
/// Seen by other SMs at some time, in no order with anything else.
VG_DEVICE void store_l2(uint32* to, uint32 x) {
  asm volatile("st.relaxed.gpu.global.u32 [%0], %1;" ::"l"(to), "r"(x) : "memory");
}
VG_DEVICE void store_l2_of_4(uint32* to, uint32 x) {
  asm volatile("st.relaxed.gpu.global.v4.u32 [%0], {%1, %1, %1, %1};" ::"l"(to), "r"(x) : "memory");
}
/// The value before; counts up to `last` and then wraps to zero. By whom `in` is true for, without a branch: others have no
/// value.
VG_DEVICE uint32 count_up(uint32* counter, uint32 last, bool in = true) {
  uint32 before;
  asm volatile("{.reg .pred p; setp.ne.b32 p, %3, 0; @p atom.relaxed.gpu.global.inc.u32 %0, [%1], %2;}"
               : "=r"(before)
               : "l"(counter), "r"(last), "r"(static_cast<int>(in))
               : "memory");
  return before;
}

/// An aligned piece of memory of 1, 2, 4, 8 or 16 bytes, moved by one instruction.
template <int BYTES>
struct Piece;
template <>
struct Piece<1> {
  uint8 v;
};
template <>
struct Piece<2> {
  uint16 v;
};
template <>
struct Piece<4> {
  uint32 v;
};
template <>
struct alignas(8) Piece<8> {
  uint32 v[2];
};
template <>
struct alignas(16) Piece<16> {
  uint32 v[4];
};

VG_DEVICE void store_shared(uint32 address, Piece<1> x) {
  asm volatile("st.shared.u8 [%0], %1;" ::"r"(address), "r"(static_cast<uint32>(x.v)) : "memory");
}
VG_DEVICE void store_shared(uint32 address, Piece<2> x) {
  asm volatile("st.shared.b16 [%0], %1;" ::"r"(address), "h"(x.v) : "memory");
}
VG_DEVICE void store_shared(uint32 address, Piece<4> x) {
  asm volatile("st.shared.b32 [%0], %1;" ::"r"(address), "r"(x.v) : "memory");
}
VG_DEVICE void store_shared(uint32 address, Piece<8> x) {
  asm volatile("st.shared.v2.b32 [%0], {%1, %2};" ::"r"(address), "r"(x.v[0]), "r"(x.v[1]) : "memory");
}
VG_DEVICE void store_shared(uint32 address, Piece<16> x) {
  asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(x.v[0]), "r"(x.v[1]), "r"(x.v[2]), "r"(x.v[3])
               : "memory");
}
VG_DEVICE void load_shared(uint32 address, Piece<1>& x) {
  uint32 v;
  asm volatile("ld.shared.u8 %0, [%1];" : "=r"(v) : "r"(address) : "memory");
  x.v = static_cast<uint8>(v);
}
VG_DEVICE void load_shared(uint32 address, Piece<2>& x) {
  asm volatile("ld.shared.b16 %0, [%1];" : "=h"(x.v) : "r"(address) : "memory");
}
VG_DEVICE void load_shared(uint32 address, Piece<4>& x) {
  asm volatile("ld.shared.b32 %0, [%1];" : "=r"(x.v) : "r"(address) : "memory");
}
VG_DEVICE void load_shared(uint32 address, Piece<8>& x) {
  asm volatile("ld.shared.v2.b32 {%0, %1}, [%2];" : "=r"(x.v[0]), "=r"(x.v[1]) : "r"(address) : "memory");
}
VG_DEVICE void load_shared(uint32 address, Piece<16>& x) {
  asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
               : "=r"(x.v[0]), "=r"(x.v[1]), "=r"(x.v[2]), "=r"(x.v[3])
               : "r"(address)
               : "memory");
}

}  // namespace vg
