// The kernels' decoder of narrow matrices, compiled for the host: every element of a stage, at every edge, and nothing touched
// that is no element and no scale of one.
#include <gtest/gtest.h>

#include <random>
#include <vector>

#include "carry.cuh"
#include "numeric/block_scale.hpp"

namespace {

using namespace vg;

std::mt19937 engine(13);
int between(int low, int high) { return low + static_cast<int>(engine() % static_cast<unsigned>(high - low + 1)); }

template <class P, class S, int SHARE, bool ATOMS>
struct Way {
  using Pieces = P;
  using Scale = S;
  static constexpr int BLOCK = SHARE;
  static constexpr bool INTERLEAVED = ATOMS, CONVERTS = false;
  static constexpr int scale_step(int) { return 1; }
};

/// int8 and one, as bf16: zeros would not stay zeros.
struct PlusOne {
  using Pieces = BytePieces;
  using Scale = E8m0Scale;
  using Stored = I8;
  using Stage = Bf16;
  static constexpr int BLOCK = 0;
  static constexpr bool INTERLEAVED = false, CONVERTS = true;
  float operator()(float v) const { return v + 1.0F; }
};

float element_value(const BytePieces&, uint8 byte, int64) { return static_cast<float>(static_cast<std::int8_t>(byte)) + 1.0F; }
float element_value(const Fp4Pieces&, uint8 byte, int64 at) {
  return verglas::numeric::e2m1_to_float(static_cast<uint8>(at % 2 == 0 ? byte & 15 : byte >> 4));
}
float element_value(const Fp4HalfPieces&, uint8 byte, int64 at) { return element_value(Fp4Pieces(), byte, at); }
float element_value(const Fp8Pieces<true>&, uint8 byte, int64) { return verglas::numeric::e4m3_to_float(byte); }
float element_value(const Fp8Pieces<false>&, uint8 byte, int64) { return verglas::numeric::e5m2_to_float(byte); }
float scale_value(const E8m0Scale&, uint8 byte) { return verglas::numeric::e8m0_to_float(byte); }
float scale_value(const E4m3Scale&, uint8 byte) { return std::fabs(verglas::numeric::e4m3_to_float(byte)); }
float scale_value(const E4m3HalfScale&, uint8 byte) { return scale_value(E4m3Scale(), byte); }

/// What a stage has of a number, NaN with all bits.
template <class Pieces>
constexpr bool IS_HALF = std::is_same_v<Pieces, Fp4HalfPieces>;
template <class Pieces>
uint16 rounded(float x) {
  return IS_HALF<Pieces> ? verglas::numeric::float_to_fp16(x) : verglas::numeric::float_to_bf16(x);
}
template <class Pieces>
uint16 canonical(uint16 bits) {
  return (bits & 0x7fff) > (IS_HALF<Pieces> ? 0x7c00 : 0x7f80) ? 0x7fff : bits;
}

/// Scales of a matrix, padding poisoned with NaN.
struct Scales {
  std::vector<uint8> memory;
  verglas::numeric::ScaleShape shape;
  int64 pitch = 0;
  bool interleaved = false;
  int64 at(int l, int row, int block) const {
    return interleaved ? verglas::numeric::scale_offset(shape, l, row, block) : (l * shape.rows + row) * pitch + block;
  }
  Scales(int batches, int rows, int blocks, bool in_atoms, bool is_e8m0)
      : shape{.batches = batches, .rows = rows, .columns = blocks}, pitch(blocks + between(0, 3)), interleaved(in_atoms) {
    const int64 bytes = in_atoms ? verglas::numeric::scale_blob_bytes(shape) : pitch * rows * batches;
    memory.assign(static_cast<std::size_t>(bytes), in_atoms || is_e8m0 ? 0xff : 0x7f);
    for (int l = 0; l < batches; ++l)
      for (int r = 0; r < rows; ++r)
        for (int b = 0; b < blocks; ++b)
          memory[static_cast<std::size_t>(at(l, r, b))] = static_cast<uint8>(is_e8m0 ? between(0, 255) : between(0, 254));
  }
};

template <class W, int LINES>
int wrong_elements(bool wide, int64 step) {
  using P = typename W::Pieces;
  constexpr int UNIT = P::ELEMENTS / 16;  // elements of a byte
  const int rows = between(1, 2 * LINES), k_extent = UNIT * between(1, 200 / UNIT), mn = between(0, 1) * LINES;
  const int blocks = W::BLOCK == 0 ? 0 : (k_extent + W::BLOCK - 1) / W::BLOCK, batch = between(0, 1);
  int64 pitch = k_extent * step + UNIT * between(0, 9);
  if (wide) pitch = (pitch + 16 * UNIT - 1) / (16 * UNIT) * 16 * UNIT;
  const int64 matrix = pitch * rows;
  std::vector<uint8> memory(static_cast<std::size_t>(2 * matrix / UNIT) + 32);
  for (auto& byte : memory) byte = static_cast<uint8>(engine());
  uint8* base = memory.data() + (16 - reinterpret_cast<std::uintptr_t>(memory.data()) % 16) % 16 + (wide ? 0 : 1);
  const Scales scales(2, rows, std::max(1, blocks), W::INTERLEAVED, std::is_same_v<typename W::Scale, E8m0Scale>);
  const View view{base, pitch, step, matrix};
  const Aux aux{scales.memory.data(), scales.pitch * rows, scales.pitch, 1};
  std::vector<Decoder<W, LINES, 1>> decoders(128);
  for (threadIdx.x = 0; threadIdx.x < 128; ++threadIdx.x) {
    decoders[threadIdx.x].open(4096 * 8, view, aux);
    decoders[threadIdx.x].begin(mn, 0, 0, batch, batch, rows, k_extent);
  }

  first_byte = reinterpret_cast<const char*>(base);
  end_byte = first_byte + (matrix + int64{rows - 1} * pitch + int64{k_extent - 1} * step) / UNIT + 1;
  other_first_byte = reinterpret_cast<const char*>(scales.memory.data());
  other_end_byte = other_first_byte + scales.memory.size();
  int wrong = 0;
  for (int block = 0; block * 64 < k_extent; ++block) {
    const int slot = block % 2;
    std::memset(shared.data(), 0xEE, shared.size());
    faults = 0;
    for (threadIdx.x = 0; threadIdx.x < 128; ++threadIdx.x)
      decoders[threadIdx.x].fetch(static_cast<uint32>(slot) * Decoder<W, LINES, 1>::SLOT_BYTES);
    for (threadIdx.x = 0; threadIdx.x < 128; ++threadIdx.x)
      decoders[threadIdx.x].decode(0, slot, block, k_extent - block * 64, W());
    wrong += faults;
    for (int line = 0; line < LINES; ++line)
      for (int e = 0; e < 64; ++e) {
        const int row = mn + line, k = block * 64 + e;
        uint16 want = 0, got = 0;
        bool is_judged = true;
        if (row >= rows) {
          is_judged = !W::CONVERTS;  // lines behind the matrix hold anything there
        } else {
          const bool in = k < k_extent;
          const int64 at = batch * matrix + row * pitch + k * step;
          float scale = 1.0F;
          if (W::BLOCK != 0 && k / std::max(1, W::BLOCK) < blocks)
            scale = scale_value(typename W::Scale(),
                                scales.memory[static_cast<std::size_t>(scales.at(batch, row, k / std::max(1, W::BLOCK)))]);
          is_judged = in || !std::isnan(scale);  // a block that is NaN is NaN to its end
          const float x = in ? element_value(P(), base[at / UNIT], at) : 0.0F;
          want = in ? rounded<P>(x * scale) : uint16{0};
        }
        std::memcpy(&got, shared.data() + line * 128 + ((e / 8 ^ line % 8) * 16) + e % 8 * 2, 2);
        wrong += is_judged && canonical<P>(got) != canonical<P>(want) ? 1 : 0;
      }
    for (std::size_t i = LINES * 128; i < 4096 * 8; ++i) wrong += shared[i] != static_cast<char>(0xEE) ? 1 : 0;
  }
  other_first_byte = other_end_byte = nullptr;
  return wrong;
}

template <class W>
void expect_right() {
  const int64 most = W::Pieces::ELEMENTS == 16 ? 3 : 1;
  for (int i = 0; i < 6; ++i)
    for (const bool wide : {true, false}) {
      EXPECT_EQ((wrong_elements<W, 16>(wide, 1)), 0);
      EXPECT_EQ((wrong_elements<W, 64>(wide, 1)), 0);
      EXPECT_EQ((wrong_elements<W, 256>(wide, 1)), 0);
      EXPECT_EQ((wrong_elements<W, 128>(wide, wide ? 1 : most)), 0);
    }
}

TEST(HostDecoder, DecodesFp4) {
  expect_right<Way<Fp4Pieces, E4m3Scale, 16, true>>();
  expect_right<Way<Fp4Pieces, E4m3Scale, 16, false>>();
  expect_right<Way<Fp4Pieces, E4m3Scale, 32, true>>();
  expect_right<Way<Fp4HalfPieces, E4m3HalfScale, 16, true>>();
  expect_right<Way<Fp4HalfPieces, E4m3HalfScale, 32, false>>();
  expect_right<Way<Fp4Pieces, E8m0Scale, 32, true>>();
  expect_right<Way<Fp4Pieces, E8m0Scale, 32, false>>();
}

TEST(HostDecoder, ConvertsBytesAndLeavesZerosBehindK) { expect_right<PlusOne>(); }

TEST(HostDecoder, DecodesFp8WithScalesAndWithout) {
  expect_right<Way<Fp8Pieces<true>, E8m0Scale, 32, true>>();
  expect_right<Way<Fp8Pieces<true>, E8m0Scale, 32, false>>();
  expect_right<Way<Fp8Pieces<false>, E8m0Scale, 32, true>>();
  expect_right<Way<Fp8Pieces<true>, E8m0Scale, 0, false>>();
  expect_right<Way<Fp8Pieces<false>, E8m0Scale, 0, false>>();
}

/// A matrix, and its elements times their scales as the test reads them.
template <class W>
struct Stored {
  using P = typename W::Pieces;
  int rows, k_extent;
  int64 pitch;
  std::vector<uint8> memory;
  Scales scales;
  Stored(int rows_, int k_extent_, bool wide)
      : rows(rows_),
        k_extent(k_extent_),
        pitch(wide ? (k_extent + 31) / 32 * 32 : k_extent + 2),
        memory(static_cast<std::size_t>(pitch * rows * 16 / P::ELEMENTS + 16)),
        scales(1, rows, blocks(), W::INTERLEAVED, true) {
    if constexpr (P::ELEMENTS == 8) {
      for (std::size_t i = 0; i + 1 < memory.size(); i += 2) {
        const uint16 v = verglas::numeric::float_to_bf16(static_cast<float>(between(-8, 8)));
        std::memcpy(&memory[i], &v, 2);
      }
    } else {
      for (uint8& b : memory) b = static_cast<uint8>(P::ELEMENTS == 32 ? engine() : 0x38 + between(0, 31));
    }
    if constexpr (W::BLOCK != 0)
      for (int r = 0; r < rows; ++r)
        for (int b = 0; b < blocks(); ++b)
          scales.memory[static_cast<std::size_t>(scales.at(0, r, b))] = static_cast<uint8>(between(40, 70));
  }
  int blocks() const { return W::BLOCK == 0 ? 1 : (k_extent + W::BLOCK - 1) / std::max(1, W::BLOCK); }
  View view() { return {memory.data(), pitch, 1, 0}; }
  Aux aux() const { return {scales.memory.data(), 0, scales.pitch, 1}; }
  double value(int row, int k) const {
    if (row >= rows || k >= k_extent) return 0;
    const int64 at = row * pitch + k;
    if constexpr (P::ELEMENTS == 8) {
      uint16 v = 0;
      std::memcpy(&v, &memory[static_cast<std::size_t>(2 * at)], 2);
      return static_cast<double>(bf16_to_float(v));
    } else {
      const float x = element_value(P(), memory[static_cast<std::size_t>(at * 16 / P::ELEMENTS)], at);
      if constexpr (W::BLOCK == 0) return static_cast<double>(x);
      if constexpr (W::BLOCK != 0)
        return static_cast<double>(x) *
               static_cast<double>(scale_value(
                   typename W::Scale(), scales.memory[static_cast<std::size_t>(scales.at(0, row, k / std::max(1, W::BLOCK)))]));
    }
  }
};

template <int PIECES>
struct HeldConfig {
  static constexpr int BLOCK_M = 128, A_DECODED = PIECES;
};

/// A in registers and B in a stage have one order of K: their products, slot by slot as wgmma pairs them, are those of K in
/// order.
template <class WA, class WB>
int wrong_products(bool wide) {
  using P = typename WA::Pieces;
  constexpr int LINES = 128, COLUMNS = 32, PIECES = 64 / P::ELEMENTS, STAGE_B = 40960, SLOT = 65536;
  Stored<WA> a(between(1, 128), 2 * between(1, 100), wide);
  Stored<WB> b(between(1, 32), a.k_extent, wide);
  const View a_view = a.view(), b_view = b.view();
  std::vector<Decoder<WA, LINES, 1, void, true>> carriers(128);
  std::vector<Decoder<WB, COLUMNS, 1, P>> decoders(128);
  for (threadIdx.x = 0; threadIdx.x < 128; ++threadIdx.x) {
    carriers[threadIdx.x].open(0, a_view, a.aux());
    carriers[threadIdx.x].begin(0, 0, 0, 0, 0, a.rows, a.k_extent);
    decoders[threadIdx.x].open(SLOT, b_view, b.aux());
    decoders[threadIdx.x].begin(0, 0, 0, 0, 0, b.rows, b.k_extent);
  }
  int wrong = 0;
  for (int block = 0; block * 64 < a.k_extent; ++block) {
    std::memset(shared.data(), 0xEE, shared.size());
    const int left = a.k_extent - block * 64;
    faults = 0;
    const auto on = [](const auto& m, const auto& step) {
      first_byte = reinterpret_cast<const char*>(m.memory.data()), end_byte = first_byte + m.memory.size();
      other_first_byte = reinterpret_cast<const char*>(m.scales.memory.data());
      other_end_byte = other_first_byte + m.scales.memory.size();
      for (threadIdx.x = 0; threadIdx.x < 128; ++threadIdx.x) step();
    };
    on(a, [&] { carriers[threadIdx.x].fetch(0); });
    on(b, [&] { decoders[threadIdx.x].fetch(0); });
    on(b, [&] { decoders[threadIdx.x].decode(STAGE_B, 0, block, left, WB()); });
    wrong += faults;
    std::vector<double> x(LINES * 64);
    for (threadIdx.x = 0; threadIdx.x < 128; ++threadIdx.x)
      for (int row_block = 0; row_block < 2; ++row_block) {
        const int lane = static_cast<int>(threadIdx.x) % 32,
                  row = 64 * row_block + static_cast<int>(threadIdx.x) / 32 * 16 + lane / 4;
        HeldPart<HeldConfig<PIECES>, WA> part(0);
        part.load(0, row_block);
        part.decode_scales(block);
        for (int half = 0; half < 2; ++half) {
          uint32 out[8];
          part.decode(half, out);
          for (int i = 0; i < 16; ++i) {
            const int reg = i / 2 % 4, slot = 32 * half + 16 * (i / 8) + 8 * (reg / 2) + 2 * (lane % 4) + i % 2;
            x[static_cast<std::size_t>((row + 8 * (reg % 2)) * 64 + slot)] =
                static_cast<double>(bf16_to_float(static_cast<uint16>(out[i / 2] >> 16 * (i % 2))));
          }
        }
      }
    for (int m = 0; m < a.rows; ++m)
      for (int n = 0; n < COLUMNS; ++n) {
        double got = 0, want = 0;
        for (int s = 0; s < 64; ++s) {
          uint16 y = 0;
          std::memcpy(&y, shared.data() + STAGE_B + n * 128 + ((s / 8 ^ n % 8) * 16) + s % 8 * 2, 2);
          got += x[static_cast<std::size_t>(m * 64 + s)] * static_cast<double>(bf16_to_float(y));
          want += a.value(m, 64 * block + s) * b.value(n, 64 * block + s);
        }
        wrong += got != want ? 1 : 0;
      }
  }
  other_first_byte = other_end_byte = nullptr;
  return wrong;
}

TEST(HostDecoder, ARegistersAndTheirBHaveOneOrderOfK) {
  for (int i = 0; i < 6; ++i)
    for (const bool wide : {true, false}) {
      EXPECT_EQ((wrong_products<Way<Fp4Pieces, E4m3Scale, 16, true>, Way<Fp4Pieces, E4m3Scale, 16, true>>(wide)), 0);
      EXPECT_EQ((wrong_products<Way<Fp4Pieces, E4m3Scale, 32, false>, Way<Fp4Pieces, E4m3Scale, 32, true>>(wide)), 0);
    }
}

/// bf16 as it is stored.
struct Plain {
  struct Pieces {
    static constexpr int ELEMENTS = 8;
  };
  using Scale = E4m3Scale;
  static constexpr int BLOCK = 0;
  static constexpr bool INTERLEAVED = false;
};
constexpr int kRows = 128;
template <class WB, int COLUMNS>
struct RowsOf {
  using Type = Fp4Rows<WB, COLUMNS / 16>;
  static Type make(const View& view, const Aux& scales) { return {view, scales}; }
};
template <int COLUMNS>
struct RowsOf<Plain, COLUMNS> {
  using Type = PlainRows<COLUMNS / 16>;
  static Type make(const View& view, const Aux&) { return Type(view); }
};

/// The same beside few rows, by stages of 256.
template <class WA, class WB, int COLUMNS>
int wrong_products_of_few_rows(bool wide, int least_scale) {
  using Of = RowsOf<WB, COLUMNS>;
  constexpr int K = 256;
  Stored<WA> a(between(1, 128), 2 * between(1, 400), true);
  Stored<WB> b(between(1, COLUMNS), a.k_extent, wide);
  for (int r = 0; r < a.rows; ++r)
    for (int i = 0; i < a.blocks(); ++i)
      a.scales.memory[static_cast<std::size_t>(a.scales.at(0, r, i))] = static_cast<uint8>(between(least_scale, least_scale + 4));
  const View b_view = b.view();
  std::vector<RowScales<WA>> scales;
  std::vector<typename Of::Type> rows;
  std::vector<SpreadPlace<COLUMNS, kRows>> places;
  for (threadIdx.x = 0; threadIdx.x < 128; ++threadIdx.x) {
    const int thread = static_cast<int>(threadIdx.x);
    scales.emplace_back(a.aux()).begin(std::min(thread, a.rows - 1), a.rows, 0, a.k_extent, 0);
    const auto& place = places.emplace_back();
    rows.push_back(Of::make(b_view, b.aux()));
    int lines[COLUMNS / 16];
    for (int i = 0; i < COLUMNS / 16; ++i) lines[i] = std::min(place.line + 16 * i, b.rows - 1);
    rows.back().begin(lines, b.rows, 8 * place.word, b.k_extent, 0);
  }
  int wrong = 0;
  for (int from = 0; from < a.k_extent; from += K) {
    std::memset(shared.data(), 0xEE, shared.size());
    faults = 0;
    const auto on = [](const auto& m, const auto& step) {
      first_byte = reinterpret_cast<const char*>(m.memory.data()), end_byte = first_byte + m.memory.size();
      other_first_byte = reinterpret_cast<const char*>(m.scales.memory.data());
      other_end_byte = other_first_byte + m.scales.memory.size();
      for (threadIdx.x = 0; threadIdx.x < 128; ++threadIdx.x) step();
    };
    // The copy engine: lines of 128 bytes, pieces of 16 turned by the line, zeros outside.
    for (int line = 0; line < 128; ++line)
      for (int byte = 0; byte < 128; ++byte) {
        const int k = from + 2 * byte;
        const bool in = line < a.rows && k < a.k_extent;
        shared[static_cast<std::size_t>(line * 128 + ((byte / 16 ^ line % 8) * 16) + byte % 16)] =
            static_cast<char>(in ? a.memory[static_cast<std::size_t>((line * a.pitch + k) / 2)] : 0);
      }
    on(a, [&] { scales[threadIdx.x].fetch(CarriedStage<kRows>::SCALES + threadIdx.x * CarriedStage<kRows>::SCALE_BYTES); });
    on(b, [&] {
      typename Of::Type::Part part[COLUMNS / 16][4];
      auto& here = rows[threadIdx.x];
      const auto& place = places[threadIdx.x];
      const bool whole = here.is_whole();
      if (whole) here.load(part);
      for (int line = 0; line < COLUMNS / 16; ++line) {
        if (!whole) here.load_line(std::min(place.line + 16 * line, b.rows - 1), from + 8 * place.word, part[line]);
        place.template store_line<typename Of::Type>(0, line, part[line]);
      }
    });
    wrong += faults;
    std::vector<double> x(128 * K);
    for (threadIdx.x = 0; threadIdx.x < 256; ++threadIdx.x) {
      const int lane = static_cast<int>(threadIdx.x) % 32, row = static_cast<int>(threadIdx.x) / 32 * 16 + lane / 4;
      CarriedPart<WA, kRows> part(static_cast<int>(threadIdx.x) / 128);
      part.load(0);
      part.decode_scales();
      for (int block = 0; block < 4; ++block) {
        uint32 out[16];
        part.decode(block, out);
        for (int i = 0; i < 32; ++i) {
          const int reg = i / 2 % 4, slot = 64 * block + 16 * (i / 8) + 8 * (reg / 2) + 2 * (lane % 4) + i % 2;
          x[static_cast<std::size_t>((row + 8 * (reg % 2)) * K + slot)] =
              std::ldexp(static_cast<double>(bf16_to_float(static_cast<uint16>(out[i / 2] >> 16 * (i % 2)))), WA::Scale::SHORT);
        }
      }
    }
    for (int m = 0; m < a.rows; ++m)
      for (int n = 0; n < b.rows; ++n) {
        double got = 0, want = 0;
        for (int s = 0; s < K; ++s) {
          uint16 y = 0;
          std::memcpy(
              &y,
              shared.data() + CarriedStage<kRows>::B + s / 64 * COLUMNS * 128 + n * 128 + ((s % 64 / 8 ^ n % 8) * 16) + s % 8 * 2,
              2);
          got += x[static_cast<std::size_t>(m * K + s)] * static_cast<double>(bf16_to_float(y));
          want += a.value(m, from + s) * b.value(n, from + s);
        }
        wrong += got != want ? 1 : 0;
      }
  }
  other_first_byte = other_end_byte = nullptr;
  return wrong;
}

TEST(HostDecoder, FewRowsAndWhatIsCarriedHaveOneOrderOfK) {
  using Nvfp4 = Way<Fp4Pieces, E4m3Scale, 16, true>;
  using Mxfp4 = Way<Fp4Pieces, E8m0Scale, 32, true>;
  for (int i = 0; i < 4; ++i)
    for (const bool wide : {true, false}) {
      EXPECT_EQ((wrong_products_of_few_rows<Nvfp4, Plain, 16>(wide, 0x30)), 0);
      EXPECT_EQ((wrong_products_of_few_rows<Nvfp4, Plain, 16>(wide, 0x7a)), 0);  // up to 448
      EXPECT_EQ((wrong_products_of_few_rows<Nvfp4, Plain, 32>(wide, 0)), 0);     // from 0 on
      EXPECT_EQ((wrong_products_of_few_rows<Way<Fp4Pieces, E4m3Scale, 16, false>, Plain, 16>(wide, 0x38)), 0);
      EXPECT_EQ((wrong_products_of_few_rows<Way<Fp4Pieces, E4m3Scale, 32, false>, Plain, 32>(wide, 0x38)), 0);
      EXPECT_EQ((wrong_products_of_few_rows<Mxfp4, Plain, 16>(wide, 118)), 0);
      EXPECT_EQ((wrong_products_of_few_rows<Mxfp4, Plain, 16>(wide, 126)), 0);  // 2 and more among them
      EXPECT_EQ((wrong_products_of_few_rows<Way<Fp4Pieces, E8m0Scale, 32, false>, Plain, 32>(wide, 120)), 0);
      EXPECT_EQ((wrong_products_of_few_rows<Way<Fp4Pieces, E8m0Scale, 16, true>, Plain, 16>(wide, 122)), 0);
      EXPECT_EQ((wrong_products_of_few_rows<Nvfp4, Nvfp4, 16>(wide, 0x38)), 0);
      EXPECT_EQ((wrong_products_of_few_rows<Mxfp4, Mxfp4, 32>(wide, 125)), 0);
    }
}

}  // namespace
