#pragma once
#include <string>

#include "engine/sm90/configuration.hpp"

namespace verglas::sm90 {

/// What a chain adds to the kernel's source. Both texts are CUDA C++ inside namespace vg.
struct EpilogueText {
  /// `struct EpilogueArguments { … };` alignment at most 64; its bytes follow Parameters in the parameter block.
  std::string arguments = "struct EpilogueArguments {};";
  /// `struct Prologues` with a constructor from const EpilogueArguments& and members a and b, what happens to an element of that
  /// side on its way into the product: NoPrologue, or CONVERTS, the types Stored and Stage, and a call from the value of one to
  /// that of the other. Where matrices have scales, also scales_a and scales_b, the bytes of four blocks of a row.
  std::string prologues =
      "struct Prologues {\n  NoPrologue a, b;\n  VG_DEVICE explicit Prologues(const EpilogueArguments&) {}\n};";
  /// `struct Epilogue` with a constructor from (const Parameters&, const EpilogueArguments&) and what Drain calls, by all
  /// threads of a warpgroup (epilogue.cuh): load_ahead(const TilePiece&) before the products; begin(const TilePiece&) behind
  /// them, for each row block begin_rows(), for each of its chunks begin_chunk(), fetch(const Place&, int unit) and then
  /// unit(float (&x)[GEMMS][8], const Position&) for each unit of it that meets D, absorb<COUNT>(const Position&) behind COUNT of
  /// them, pass(int block, int unit) for others, where STEP is not 0 end_units(const Position& last) behind so many of them or
  /// the last of a chunk, end_chunk<UNITS>(int block, int first_unit); end_rows(int block), then end(); start() before the first
  /// tile and finish() behind the last; and clear() where D has no element. With ZERO_FILL pass_row(int row), by a warp for each
  /// row that nobody owns: what all outputs but D have there. With LOADS_TILE also map(int which, int width) and
  /// tile_batch(int), with FURTHER_OUTPUTS store_further(bool leader, chunk, width, batch, row, col); with RUN_BYTES, for
  /// runs.cuh, units of two products and store_runs(bool leader, slot, batch, row).
  std::string body =
      "struct Epilogue {\n"
      "  static constexpr int STEP = 0;\n"
      "  VG_DEVICE Epilogue(const Parameters&, const EpilogueArguments&) {}\n"
      "  VG_DEVICE void load_ahead(const TilePiece&) {}\n"
      "  VG_DEVICE void begin(const TilePiece&) {}\n"
      "  VG_DEVICE void begin_rows() {}\n"
      "  VG_DEVICE void unit(float (&)[1][8], const Position&) {}\n"
      "  VG_DEVICE void fetch(const Place&, int) {}\n"
      "  template <int COUNT>\n"
      "  VG_DEVICE void absorb(const Position&) {}\n"
      "  VG_DEVICE void begin_chunk() {}\n"
      "  VG_DEVICE void pass(int, int) {}\n"
      "  template <int UNITS>\n"
      "  VG_DEVICE void end_chunk(int, int) {}\n"
      "  VG_DEVICE void end_rows(int) {}\n"
      "  VG_DEVICE void end() {}\n"
      "  VG_DEVICE void start(const TilePiece&) {}\n"
      "  VG_DEVICE void finish(const TilePiece&) {}\n"
      "  VG_DEVICE void clear(const TilePiece&) {}\n"
      "  VG_DEVICE void pass_row(int) const {}\n"
      "};";
};

/// The whole source of a flavor, but for the embedded headers that it includes. `entry` is the `extern "C"` name.
/// The configuration must be without fault.
std::string kernel_source(const KernelConfig& config, const EpilogueText& epilogue, const std::string& entry);

/// `struct Wgmma` of that source alone: the instructions of one 128-byte k-block in one statement, or of one k-step of it where
/// each has scales of its own.
std::string wgmma_text(const KernelConfig& config);

}  // namespace verglas::sm90
