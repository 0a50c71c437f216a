#pragma once
#include "parameters.cuh"

namespace vg {

/// Shared memory of one block, from the constants of a flavor. The same sums stand in configuration.cpp (`smem_bytes`).
///
///   0                          STAGES x [ each A: BLOCK_M lines of 128 bytes | JOINED x each B: lines | scales ], swizzled
///   STAGES * STAGE_BYTES       CONSUMERS x staging: STORE_BUFFERS chunks of D, FURTHER_BUFFERS of each further output; or
///                              RUN_SLOTS x RUN_BYTES (runs.cuh)
///   LANDING                    CONSUMERS x (SPLIT - 1) x sums of another block
///   LIST                       where LISTED tiles of the block lie, 16 bytes each
///   BARRIERS                   full[STAGES], empty[STAGES], order[2], landed[CONSUMERS], read[CONSUMERS]
///   LOADED                     more of them: loaded[CONSUMERS][STORE_BUFFERS]
///   SCRATCH                    CONSUMERS x words of the reductions and of operands along n
///   GROUP_TABLE                CLAIMS: full[QUEUE], empty[QUEUE], a tile[QUEUE]
///   BEGIN_TABLE                first rows and tiles before GROUPS + 1 groups, a word a warp; CLAIMS: three cursors, a flag, a
///                              number
///   PLACES                     CONSUMERS x where each row of a piece lies in D, a word a warp: are all of its rows in place;
///                              COMBINES: one word
///   GATHERED                   rows of A of a tile
///   DECODING                   DECODERS x each decoded A, each decoded B: SLOTS x pieces of 16 bytes and their scales
///
/// HELD: the A of a stage is as in memory, pieces of 16 bytes and four scales a line (HeldPart); consumers decode it to
/// registers. CASTS: it is bytes, in lines of 64 (CastPart). CARRIED: JOINED k-blocks of it are lines of 128 bytes, then scales
/// of each line, 16 bytes (carry.cuh).
template <class C>
struct Layout {
  static constexpr int LINE = 128;  // bytes; one k-block of a row, or 64 elements along MN
  static constexpr int BLOCK_K = LINE / C::INPUT_BYTES;
  static constexpr int M_BLOCKS = C::BLOCK_M / 64 / (C::PINGPONG ? 1 : C::CONSUMERS);  // wgmma row blocks a consumer holds
  /// Of the last tile of a group row blocks may be nobody's: they are not multiplied.
  static constexpr bool ENDS_EARLY = C::GROUPS > 0 && !C::DEPTH_GROUPS && C::BLOCK_M == 128 && (M_BLOCKS == 1 || !C::PROMOTED);
  /// Of the last k-block only steps that are there are multiplied.
  static constexpr bool CUTS_STEPS = C::DEPTH_GROUPS || C::LISTED > 0;
  static constexpr int A_LINES = C::BLOCK_M;
  static constexpr int B_LINES = C::B_K_MAJOR ? C::BLOCK_N : (C::BLOCK_N + 63) / 64 * 64;
  static constexpr int A_BYTES =  // of one matrix
      C::CARRIED ? A_LINES * (LINE + 16)
      : C::HELD  ? (A_LINES * (16 * C::A_DECODED + 4) + 1023) / 1024 * 1024
      : C::CASTS ? A_LINES * BLOCK_K
                 : A_LINES * LINE;
  static constexpr int B_BYTES = B_LINES * LINE;
  static constexpr int ALL_A_BYTES = C::A_COUNT * A_BYTES;
  static constexpr int SCALES =
      ALL_A_BYTES + C::JOINED * C::B_COUNT * B_BYTES;  // in a stage: 16 bytes a line of each A, then of each B
  static constexpr int SCALE_BYTES =
      C::SCALED ? (16 * (C::A_COUNT * C::BLOCK_M + C::B_COUNT * C::BLOCK_N) + 1023) / 1024 * 1024 : 0;
  static constexpr int STAGE_BYTES = SCALES + SCALE_BYTES;

  static constexpr int CHUNK_BYTES = 64 * LINE;
  static constexpr int ROW_BYTES = C::BLOCK_N * C::Output::BYTES;  // of a tile of D
  static constexpr int FULL_CHUNKS = ROW_BYTES / LINE;             // 128 bytes a row
  static constexpr int HALF = ROW_BYTES % LINE / 64;               // then one of 64 and one of 32
  static constexpr int QUARTER = ROW_BYTES % 64 / 32;
  static_assert(ROW_BYTES % 32 == 0);
  static constexpr int CHUNKS = FULL_CHUNKS + HALF + QUARTER;  // of one row block
  /// Copies of a tile that is staged whole are issued by all warps: measured behind promoted sums; beside scales it takes
  /// registers.
  static constexpr bool SPREADS = C::PROMOTED && !C::SCALED;
  static constexpr int STAGING = STAGE_BYTES * C::STAGES;
  static constexpr int STAGING_OF_CONSUMER =
      (C::STORE_BUFFERS + C::FURTHER_OUTPUTS * C::FURTHER_BUFFERS) * CHUNK_BYTES + C::RUN_SLOTS * C::RUN_BYTES;
  static constexpr int SUMS_BYTES = C::GEMMS * M_BLOCKS * 64 * C::BLOCK_N * 4;  // of a consumer
  static constexpr int LANDING = STAGING + C::CONSUMERS * STAGING_OF_CONSUMER, LANDING_BYTES = (C::SPLIT - 1) * SUMS_BYTES;
  static constexpr int LIST = LANDING + C::CONSUMERS * LANDING_BYTES;
  static constexpr int BARRIERS = LIST + 16 * C::LISTED;
  static constexpr int LOADED = BARRIERS + 8 * (2 * C::STAGES + 2 + (C::SPLIT > 1 ? 2 * C::CONSUMERS : 0));
  static constexpr int LOADED_BARRIERS = C::LOADS_TILE ? (C::CONSUMERS * C::STORE_BUFFERS + 1) / 2 * 2 : 0;  // 16 bytes each two
  static constexpr int SCRATCH = LOADED + 8 * LOADED_BARRIERS;
  static constexpr int SCRATCH_BYTES =
      4 * ((C::COLUMN_REDUCTIONS * 4 + C::VECTORS) * C::BLOCK_N + 8 * C::REDUCTIONS + C::QUANTISER_WORDS);  // a consumer
  static constexpr int THREADS = 128 * (C::CONSUMERS + C::PRODUCERS);
  static constexpr int GROUP_TABLE = SCRATCH + C::CONSUMERS * SCRATCH_BYTES;
  static constexpr int QUEUE = C::DEPTH_GROUPS ? 4 : 2, QUEUE_WORDS = 5,
                       QUEUE_BYTES = C::CLAIMS ? (16 + 4 * QUEUE_WORDS) * QUEUE : 0;
  static constexpr int BEGIN_TABLE = GROUP_TABLE + QUEUE_BYTES;
  static constexpr int PLACES =
      BEGIN_TABLE +
      (C::GROUPS > 0 ? 4 * (2 * (C::GROUPS + 1) + THREADS / 32 + (C::CLAIMS ? 6 : 0) + (C::GROUP_ATOMS ? C::GROUPS : 0)) : 0);
  static constexpr int PLACES_BYTES = C::GATHERS || C::SCATTERS ? 4 * (64 * M_BLOCKS + 4) : C::COMBINES ? 16 : 0;  // a consumer
  static constexpr int GATHERED = PLACES + C::CONSUMERS * PLACES_BYTES;
  static constexpr int DECODING = (GATHERED + (C::GATHERS ? 4 * C::BLOCK_M : 0) + 15) / 16 * 16;
  static constexpr int decoding_bytes(int pieces) { return C::SLOTS * ((pieces + 127) / 128 * 128) * 20; }  // of a matrix
  static constexpr int A_DECODING = C::HELD ? 0 : C::A_COUNT * decoding_bytes(A_LINES * C::A_DECODED),
                       B_DECODING = C::CARRIED ? 0 : C::B_COUNT * decoding_bytes(B_LINES * C::B_DECODED);
  static constexpr int SMEM_BYTES = DECODING + C::DECODERS * (A_DECODING + B_DECODING);

  static constexpr bool A_COPIED = C::A_PIECE != 0, B_COPIED = C::B_PIECE != 0;  // by threads, not by the copy engine
  static constexpr bool ANY_COPIED = A_COPIED || B_COPIED, ANY_TMA = !A_COPIED || !B_COPIED;
  static constexpr bool ANY_DECODED = C::A_DECODED != 0 || C::B_DECODED != 0;
  // Of an A that is held every thread that brings it says so when it is there, and a warp that does nothing else at once.
  static constexpr int FULL_ARRIVALS =
      (ANY_TMA ? 1 : 0) + (ANY_COPIED || C::SCALED ? 4 : 0) + (C::HELD ? 128 : 0) + (C::CARRIED ? 4 : 0);
  static constexpr int EMPTY_ARRIVALS = 4 * (C::PINGPONG ? 1 : C::CONSUMERS);  // warps that read a stage

  static_assert(C::BLOCK_M % 64 == 0 && C::BLOCK_M <= 256 && C::BLOCK_N % 16 == 0 && C::BLOCK_N <= 256);
  static_assert(C::BLOCK_M % (64 * (C::PINGPONG ? 1 : C::CONSUMERS)) == 0 && (!C::PINGPONG || C::CONSUMERS == 2));
  static_assert(SMEM_BYTES <= 232448);
  static_assert(C::DECODERS == 1 || (C::STAGES >= C::DECODERS + (C::PINGPONG ? 2 : 0)));  // else parities are mistaken
  static_assert(!C::HELD || (C::A_DECODED != 0 && C::GEMMS == 1 && !C::PINGPONG));
  static_assert(!C::CASTS || (!C::HELD && C::GEMMS == 1 && !A_COPIED && !B_COPIED && C::GROUPS == 0));
  static_assert(C::CARRIED ? C::JOINED == 4 && !A_COPIED : C::JOINED == 1);

  VG_DEVICE static uint32 full(uint32 smem, int stage) { return smem + BARRIERS + 8 * stage; }
  VG_DEVICE static uint32 empty(uint32 smem, int stage) { return smem + BARRIERS + 8 * (C::STAGES + stage); }
  VG_DEVICE static uint32 order(uint32 smem, int consumer) { return smem + BARRIERS + 8 * (2 * C::STAGES + consumer); }
  VG_DEVICE static uint32 landed(uint32 smem, int consumer) { return order(smem, 2 + consumer); }
  VG_DEVICE static uint32 read(uint32 smem, int consumer) { return landed(smem, C::CONSUMERS + consumer); }
};

}  // namespace vg
