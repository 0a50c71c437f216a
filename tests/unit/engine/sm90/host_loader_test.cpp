// The kernels' loader of matrices and of scales, compiled for the host: every byte of a stage, at every edge, and nothing touched
// that is no element. The threads of the warpgroup take their turns.
#include <gtest/gtest.h>

#include <random>
#include <vector>

#include "load.cuh"
#include "numeric/block_scale.hpp"
#include "scales.cuh"
#include "shift.cuh"

namespace {

using namespace vg;

std::mt19937 engine(11);
int between(int low, int high) { return low + static_cast<int>(engine() % static_cast<unsigned>(high - low + 1)); }

template <int BYTES>
struct Config {
  static constexpr int INPUT_BYTES = BYTES, DECODERS = 1;
};

/// int8 and one, as bf16: zeros would not stay zeros.
struct PlusOne {
  static constexpr bool CONVERTS = true;
  using Stored = I8;
  using Stage = Bf16;
  float operator()(float v) const { return v + 1.0F; }
};
/// fp32 as e4m3.
struct Narrow {
  static constexpr bool CONVERTS = true;
  using Stored = F32;
  using Stage = E4m3;
  float operator()(float v) const { return v; }
};

/// The bytes that an element becomes.
template <class Prologue, int BYTES>
uint32 stage_bits(uint32 stored) {
  if constexpr (Prologue::CONVERTS) {
    return Prologue::Stage::pack(Prologue()(Prologue::Stored::value(stored)), 0.0F) & (BYTES == 2 ? 0xffffU : 0xffU);
  } else {
    return BYTES == 4 ? tf32_bits(stored) : stored;
  }
}

/// A call by the lanes of each warp, which exchange values: once to hear what they say, and again to listen.
template <class Loaders, class Call>
void by_warps(Loaders& loaders, Call call) {
  for (unsigned warp = 0; warp < 4; ++warp) {
    const Loaders before = loaders;
    for (const bool listens : {false, true}) {
      if (listens) loaders = before;
      begin_exchange(listens);
      for (unsigned lane = 0; lane < 32; ++lane) {
        threadIdx.x = 32 * warp + lane;
        next_lane();
        call(loaders[threadIdx.x]);
      }
    }
  }
}

/// BYTES: of an element in a stage. `any`: neither stride is 1. PIECE is 0 for lines that are shifted.
template <class Prologue, int BYTES, int LINES, bool K_MAJOR, bool TURNED, int PIECE, int BUDGET>
int wrong_bytes(bool any) {
  using Shifted = ShiftLoader<Config<BYTES>, LINES, K_MAJOR>;
  using Whole = Loader<Config<BYTES>, Prologue, LINES, K_MAJOR, TURNED, PIECE == 0 ? BYTES : PIECE, BUDGET>;
  constexpr int STORED = StoredBytes<Prologue, BYTES>::VALUE, BLOCK_K = 128 / BYTES, STEP = PIECE == 0 ? 1 : PIECE / STORED;
  const int mn_extent = between(1, 2 * LINES), k_extent = between(1, 3 * BLOCK_K);
  const int mn = between(0, 1) * LINES, batch = between(0, 1);
  const bool k_inner = K_MAJOR && !TURNED;
  const int64 step = any ? 3 : 1;
  int64 pitch = (k_inner ? k_extent : mn_extent) * step + between(0, 5);
  pitch += (STEP - pitch % STEP) % STEP;
  const int64 outer_count = k_inner ? mn_extent : k_extent, matrix = pitch * outer_count;
  const int64 along_k = k_inner ? step : pitch, along_mn = k_inner ? pitch : step;
  std::vector<unsigned char> memory(static_cast<std::size_t>(2 * matrix * STORED) + 48);
  for (auto& byte : memory) byte = static_cast<unsigned char>(engine());
  auto* base = memory.data() + (16 - reinterpret_cast<std::uintptr_t>(memory.data()) % 16) % 16;
  if (PIECE == 0) base += between(0, 16 / BYTES - 1) * BYTES;
  if (STORED == 4)  // small numbers
    for (int64 i = 0; i < 2 * matrix; ++i) {
      const auto v = static_cast<float>(between(-8, 8));
      std::memcpy(base + 4 * i, &v, 4);
    }
  first_byte = reinterpret_cast<const char*>(base);
  end_byte = first_byte + (matrix + (mn_extent - 1) * along_mn + (k_extent - 1) * along_k + 1) * STORED;
  const View view{base, K_MAJOR ? along_mn : along_k, K_MAJOR ? along_k : along_mn, matrix};
  const auto element = [&](int row, int k) {
    uint32 bits = 0;
    if (row >= mn_extent || k >= k_extent) return bits;
    std::memcpy(&bits, base + (batch * matrix + row * along_mn + k * along_k) * STORED, STORED);
    return stage_bits<Prologue, BYTES>(bits);
  };

  faults = 0;
  std::vector<std::conditional_t<PIECE == 0, Shifted, Whole>> loaders(128);
  const auto source = [&](int block) {
    const bool in = block * BLOCK_K < k_extent;
    return Source{view, mn, block * BLOCK_K, batch, in ? mn_extent : 0, in ? k_extent : 0};
  };
  for (threadIdx.x = 0; threadIdx.x < 128; ++threadIdx.x) loaders[threadIdx.x].begin(source(0));
  int wrong = 0;
  for (int block = 0; block * BLOCK_K < k_extent; ++block) {
    std::memset(shared.data(), 0xEE, shared.size());
    by_warps(loaders, [&](auto& loader) { loader.write(0, source(block), source(block + 1), Prologue()); });
    for (int line = 0; line < LINES; ++line)
      for (int e = 0; e < 128 / BYTES; ++e) {
        const uint32 want =
            K_MAJOR ? element(mn + line, block * BLOCK_K + e) : element(mn + line / 64 * 64 + e, block * BLOCK_K + line % 64);
        uint32 got = 0;
        std::memcpy(&got, shared.data() + line * 128 + (((e * BYTES / 16) ^ line % 8) * 16) + e * BYTES % 16, BYTES);
        wrong += got != want ? 1 : 0;
      }
    for (std::size_t i = LINES * 128; i < shared.size(); ++i) wrong += shared[i] != static_cast<char>(0xEE) ? 1 : 0;
  }
  return wrong + faults;
}

template <class Prologue, int BYTES, bool K_MAJOR, bool TURNED, int PIECE>
void expect_right(bool any = false) {
  for (int i = 0; i < 12; ++i) {
    EXPECT_EQ((wrong_bytes<Prologue, BYTES, 64, K_MAJOR, TURNED, PIECE, 32>(any)), 0);
    EXPECT_EQ((wrong_bytes<Prologue, BYTES, 128, K_MAJOR, TURNED, PIECE, 16>(any)), 0);
    EXPECT_EQ((wrong_bytes<Prologue, BYTES, 192, K_MAJOR, TURNED, PIECE, 32>(any)), 0);
    EXPECT_EQ((wrong_bytes<Prologue, BYTES, 256, K_MAJOR, TURNED, PIECE, 8>(any)), 0);
  }
}

TEST(HostLoader, CopiesInPiecesOfEverySize) {
  expect_right<NoPrologue, 2, true, false, 2>();
  expect_right<NoPrologue, 2, true, false, 2>(true);
  expect_right<NoPrologue, 2, true, false, 4>();
  expect_right<NoPrologue, 2, true, false, 8>();
  expect_right<NoPrologue, 2, true, false, 16>();
  expect_right<NoPrologue, 2, false, false, 2>();
  expect_right<NoPrologue, 2, false, false, 8>();
  expect_right<NoPrologue, 1, true, false, 1>(true);
  expect_right<NoPrologue, 1, true, false, 4>();
  expect_right<NoPrologue, 1, true, false, 16>();
  expect_right<NoPrologue, 4, true, false, 4>();
  expect_right<NoPrologue, 4, true, false, 16>();
}

TEST(HostLoader, ShiftsLinesThatBeginAnywhere) {
  for (const bool any : {false, true}) {
    expect_right<NoPrologue, 2, true, false, 0>(any);
    expect_right<NoPrologue, 2, false, false, 0>(any);
    expect_right<NoPrologue, 1, true, false, 0>(any);
    expect_right<NoPrologue, 4, true, false, 0>(any);
  }
  for (int i = 0; i < 40; ++i) {
    EXPECT_EQ((wrong_bytes<NoPrologue, 2, 16, true, false, 0, 8>(false)), 0);
    EXPECT_EQ((wrong_bytes<NoPrologue, 2, 32, true, false, 0, 8>(false)), 0);
    EXPECT_EQ((wrong_bytes<NoPrologue, 2, 176, true, false, 0, 8>(false)), 0);
  }
}

TEST(HostLoader, TurnsWhatLiesAlongMn) {
  expect_right<NoPrologue, 1, true, true, 1>();
  expect_right<NoPrologue, 1, true, true, 4>();
  expect_right<NoPrologue, 4, true, true, 4>();
  expect_right<NoPrologue, 4, true, true, 16>();
}

TEST(HostLoader, ConvertsAndLeavesZerosOutside) {
  expect_right<PlusOne, 2, true, false, 1>(true);
  expect_right<PlusOne, 2, true, false, 8>();
  expect_right<PlusOne, 2, false, false, 4>();
  expect_right<Narrow, 1, true, false, 16>();
  expect_right<Narrow, 1, true, true, 4>();
}

TEST(HostLoader, ReadsScalesAndNoPadding) {
  for (int round = 0; round < 200; ++round) {
    const int rows = between(1, 300), blocks = between(1, 11), batches = between(1, 2);
    const verglas::numeric::ScaleShape shape{.batches = batches, .rows = rows, .columns = blocks};
    std::vector<unsigned char> atoms(static_cast<std::size_t>(verglas::numeric::scale_blob_bytes(shape)) + 16, 0xFF);
    const int shift = between(0, 4);
    const auto value = [](int batch, int row, int block) {
      return static_cast<unsigned char>((batch * 31 + row * 7 + block) % 255);
    };
    for (int l = 0; l < batches; ++l)
      for (int r = 0; r < rows; ++r)
        for (int b = 0; b < blocks; ++b)
          atoms[static_cast<std::size_t>(verglas::numeric::scale_offset(shape, l, r, b) + shift)] = value(l, r, b);
    const int64 pitch = blocks + between(0, 3);
    std::vector<unsigned char> plain(static_cast<std::size_t>(pitch * rows * batches), 0xFF);
    for (int l = 0; l < batches; ++l)
      for (int r = 0; r < rows; ++r)
        for (int b = 0; b < blocks; ++b) plain[static_cast<std::size_t>((l * rows + r) * pitch + b)] = value(l, r, b);
    for (const bool interleaved : {true, false}) {
      const auto& memory = interleaved ? atoms : plain;
      first_byte = reinterpret_cast<const char*>(memory.data());
      end_byte = first_byte + memory.size();
      faults = 0;
      const Aux aux{memory.data() + (interleaved ? shift : 0), pitch * rows, pitch, 1};
      for (int i = 0; i < 40; ++i) {
        const int row = between(0, rows + 5), first = 4 * between(0, 3), batch = between(0, batches - 1);
        const uint32 word = interleaved
                                ? load_scales<true>(aux, scales_of_row<true>(aux, row, batch, rows, blocks), first, blocks)
                                : load_scales<false>(aux, scales_of_row<false>(aux, row, batch, rows, blocks), first, blocks);
        for (int b = 0; b < 4; ++b) {
          const bool in = row < rows && first + b < blocks;
          EXPECT_EQ(word >> 8 * b & 0xff, in ? value(batch, row, first + b) : 0x7fU) << row << ' ' << first + b;
        }
      }
      EXPECT_EQ(faults, 0);
    }
  }
}

}  // namespace
