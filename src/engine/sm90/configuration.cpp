#include "engine/sm90/configuration.hpp"

#include <fmt/format.h>

namespace verglas::sm90 {
namespace {

int b_lines(const KernelConfig& c) { return c.b_major == Major::k ? c.block_n : (c.block_n + 63) / 64 * 64; }

/// Chunks of one row block: as many of 128 bytes a row as fit, then one of 64 and one of 32.
int chunks_of_row_block(const KernelConfig& c) {
  const int bytes = c.block_n * bytes_of(c.output);
  return bytes / 128 + bytes % 128 / 64 + bytes % 64 / 32;
}

bool copies(const KernelConfig& c) { return c.a_path != Path::tma || c.b_path != Path::tma; }

char letter(Major m) { return m == Major::k ? 'k' : 'n'; }

std::string path_suffix(const KernelConfig& c) {
  if (c.a_path == Path::tma && c.b_path == Path::tma && c.d_path == Path::tma) return {};
  return fmt::format("_p{}{}{}", piece_bytes(c.a_path), piece_bytes(c.b_path), piece_bytes(c.d_path));
}

std::string product_suffix(const KernelConfig& c) {
  if (c.gemms == 1) return {};
  return fmt::format("_a{}{}b{}{}", c.gemm_a[0], c.gemm_a[1], c.gemm_b[0], c.gemm_b[1]);
}

std::string reduction_suffix(const KernelConfig& c) {
  return c.reductions == 0 ? std::string() : fmt::format("_r{}{}", c.reductions, c.column_reductions);
}

}  // namespace

int block_k(const KernelConfig& c) noexcept { return kLineBytes / bytes_of(c.input); }
int threads_of(const KernelConfig& c) noexcept { return 128 * (c.consumers + 1); }
int row_blocks(const KernelConfig& c) noexcept { return c.block_m / 64 / (c.schedule == Schedule::pingpong ? 1 : c.consumers); }
int accumulators_of(const KernelConfig& c) noexcept { return c.gemms * row_blocks(c) * c.block_n / 2; }
int stage_bytes(const KernelConfig& c) noexcept { return (c.a_count * c.block_m + c.b_count * b_lines(c)) * kLineBytes; }
int chunks_of(const KernelConfig& c) noexcept { return row_blocks(c) * chunks_of_row_block(c); }
int scratch_bytes(const KernelConfig& c) noexcept {
  return c.reductions == 0 ? 0 : 4 * (c.column_reductions * 4 * c.block_n + 8 * c.reductions);
}
int smem_bytes(const KernelConfig& c) noexcept {
  return c.stages * stage_bytes(c) + c.consumers * (c.store_buffers * kChunkBytes + scratch_bytes(c)) + 8 * (2 * c.stages + 2);
}
int entry_registers(const KernelConfig& c) noexcept {
  const int share = kRegistersPerSm / threads_of(c) / 8 * 8;
  return share < 255 ? share : 255;
}
// setmaxnreg hands out the pool of entry registers times warpgroups anew, in steps of 8: 3 x 168 = 504 and 4 x 128 = 512. Threads
// that copy an operand hold pieces and addresses; one lane that asks for boxes needs little.
int producer_registers(const KernelConfig& c) noexcept {
  if (c.consumers == 1) return entry_registers(c);
  if (copies(c)) return c.consumers == 2 ? 88 : 80;
  if (c.consumers == 2) return accumulators_of(c) > 176 ? 24 : 40;
  return 32;
}
int consumer_registers(const KernelConfig& c) noexcept {
  if (c.consumers == 1) return entry_registers(c);
  if (copies(c)) return c.consumers == 2 ? 208 : 144;
  if (c.consumers == 2) return accumulators_of(c) > 176 ? 240 : 232;
  return 160;
}

std::optional<std::string> fault_of(const KernelConfig& c) {
  const bool wide = bytes_of(c.input) == 2;
  if (!wide) return fmt::format("input {} is not a 16-bit float", name_of(c.input));
  if (c.input != DataType::bf16 && c.input != DataType::fp16) return fmt::format("input {} has no wgmma", name_of(c.input));
  if (c.output != DataType::bf16 && c.output != DataType::fp16 && c.output != DataType::fp32) {
    return fmt::format("output {} is not bf16, fp16 or fp32", name_of(c.output));
  }
  if (c.consumers < 1 || c.consumers > 3) return fmt::format("{} consumers, not 1 to 3", c.consumers);
  if (c.schedule == Schedule::pingpong && c.consumers != 2) return fmt::format("ping-pong with {} consumers, not 2", c.consumers);
  const int rows = 64 * (c.schedule == Schedule::pingpong ? 1 : c.consumers);
  if (c.block_m <= 0 || c.block_m > 256 || c.block_m % rows != 0) {
    return fmt::format("block_m {} is not a multiple of {} up to 256", c.block_m, rows);
  }
  if (c.block_n <= 0 || c.block_n > 256 || c.block_n % 16 != 0) {
    return fmt::format("block_n {} is not a multiple of 16 up to 256", c.block_n);
  }
  if (c.gemms < 1 || c.gemms > 2 || c.a_count < 1 || c.a_count > c.gemms || c.b_count < 1 || c.b_count > c.gemms) {
    return fmt::format("{} products of {} and {} matrices", c.gemms, c.a_count, c.b_count);
  }
  if (c.stages < 2) return fmt::format("{} stages, at least 2", c.stages);
  if (c.store_buffers < 1) return fmt::format("{} store buffers, at least 1", c.store_buffers);
  // One wgmma needs N/2 + 26 registers, and ptxas counts them against those at entry, not against those after setmaxnreg.
  if (c.block_n / 2 + 26 > entry_registers(c)) {
    return fmt::format("block_n {} needs {} registers at entry of {}", c.block_n, c.block_n / 2 + 26, entry_registers(c));
  }
  // 24 for addresses, barriers and the unit in hand: 192 accumulators compile without spills at 240, 208 do not.
  if (accumulators_of(c) + 40 > consumer_registers(c)) {
    return fmt::format("{} accumulators of {} registers leave fewer than 40", accumulators_of(c), consumer_registers(c));
  }
  for (const auto& [path, size, role] :
       {std::tuple{c.a_path, bytes_of(c.input), "a"}, {c.b_path, bytes_of(c.input), "b"}, {c.d_path, bytes_of(c.output), "d"}}) {
    if (path != Path::tma && piece_bytes(path) < size) {
      return fmt::format("pieces of {} bytes of {} with elements of {}", piece_bytes(path), role, size);
    }
  }
  if (smem_bytes(c) > kSmemBytes) return fmt::format("{} bytes of shared memory of {}", smem_bytes(c), kSmemBytes);
  return std::nullopt;
}

std::string name_of(const KernelConfig& c) {
  return fmt::format("{}x{}x{}_{}{}_s{}_{}{}_{}_{}{}{}{}{}", c.block_m, c.block_n, c.stages,
                     c.schedule == Schedule::pingpong ? "pingpong" : "coop", c.consumers, c.store_buffers, letter(c.a_major),
                     letter(c.b_major), verglas::name_of(c.input), verglas::name_of(c.output), path_suffix(c), product_suffix(c),
                     reduction_suffix(c), c.programmatic ? "_pdl" : "");
}

int stages_that_fit(KernelConfig c, int most) noexcept {
  for (c.stages = most; c.stages > 0 && smem_bytes(c) > kSmemBytes;) --c.stages;
  return c.stages;
}

}  // namespace verglas::sm90
