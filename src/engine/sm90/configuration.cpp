#include "engine/sm90/configuration.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace verglas::sm90 {
namespace {

int b_lines(const KernelConfig& c) { return c.b_major == Major::k ? c.block_n : (c.block_n + 63) / 64 * 64; }

/// Chunks of one row block: as many of 128 bytes a row as fit, then one of 64 and one of 32.
int chunks_of_row_block(const KernelConfig& c) {
  const int bytes = c.block_n * bytes_of(c.output);
  return bytes / 128 + bytes % 128 / 64 + bytes % 64 / 32;
}

std::string input_name(const KernelConfig& c) {
  const std::string b(verglas::name_of(input_of_b(c)));
  const std::string promoted = is_fp8_product(c) ? c.scaled ? "_scaled" : c.promoted ? "_promoted" : "_fast" : "";
  const auto from = [](DataType stored, const char* side) {
    return stored == DataType::not_set ? std::string() : fmt::format("_{}{}", side, verglas::name_of(stored));
  };
  return std::string(verglas::name_of(c.input)) + from(c.a_stored, "a") + from(c.b_stored, "b") +
         (input_of_b(c) == c.input ? "" : "_" + b) + promoted;
}

bool copies(const KernelConfig& c) { return c.a_path != Path::tma || c.b_path != Path::tma; }
bool shifted(const KernelConfig& c, Path path, DataType stored, bool turned, int decoded) {
  return piece_bytes(path) == bytes_of(c.input) && stored == DataType::not_set && !turned && decoded == 0;
}
bool shifts_a(const KernelConfig& c) { return shifted(c, c.a_path, c.a_stored, c.a_turned, c.a_decoded); }
bool shifts_b(const KernelConfig& c) { return shifted(c, c.b_path, c.b_stored, c.b_turned, c.b_decoded); }
char letter(Major m) { return m == Major::k ? 'k' : 'n'; }

std::string path_suffix(const KernelConfig& c) {
  if (c.a_path == Path::tma && c.b_path == Path::tma && c.d_path == Path::tma) return {};
  return fmt::format("_p{}{}{}{}{}{}", piece_bytes(c.a_path), piece_bytes(c.b_path), piece_bytes(c.d_path),
                     c.a_turned ? "_at" : "", c.b_turned ? "_bt" : "",
                     c.producers > 1 && c.slots == 0 ? fmt::format("_l{}", c.producers) : "");
}

std::string product_suffix(const KernelConfig& c) {
  if (c.gemms == 1) return {};
  return fmt::format("_a{}{}b{}{}", c.gemm_a[0], c.gemm_a[1], c.gemm_b[0], c.gemm_b[1]);
}

std::string epilogue_suffix(const KernelConfig& c) {
  std::string s = c.slots != 0 || c.carried ? fmt::format("_q{}{}{}x{}{}", c.a_decoded, c.b_decoded, c.producers, c.slots,
                                                          c.held ? fmt::format("{}{}", c.carried ? 'c' : 'h', c.joined) : "")
                                            : "";
  if (c.casts) s += "_c";
  s += c.d_along_m ? "_m" : c.has_d ? "" : "_n";
  if (c.reductions != 0) s += fmt::format("_r{}{}", c.reductions, c.column_reductions);
  if (c.vectors != 0) s += fmt::format("_v{}", c.vectors);
  if (c.loads_tile) s += "_t";
  if (c.rotates) s += "_rope";
  if (c.run_bytes != 0) s += fmt::format("_u{}x{}", c.run_slots, c.run_bytes);
  return c.further_outputs == 0 ? s : s + fmt::format("_o{}{}", c.further_outputs, c.further_buffers);
}

std::string group_suffix(const KernelConfig& c) {
  if (c.groups == 0) return {};
  return fmt::format("_g{}{}{}{}{}{}{}{}{}{}{}", c.groups,
                     c.gathers    ? "g"
                     : c.scatters ? "s"
                     : c.combines ? "m"
                                  : "",
                     c.depth_groups ? "k" : "", c.group_atoms ? "b" : "", c.row_unit > 1 ? fmt::format("r{}", c.row_unit) : "",
                     c.accumulates ? "a" : "", c.wide_offsets ? "w" : "", c.offsets_are_ends ? "e" : "", c.zero_fill ? "z" : "",
                     c.addressed == 0                    ? ""
                     : c.addressed + 1 == 1 << c.b_count ? "t"
                     : c.addressed == 1                  ? "tf"
                                                         : "ts",
                     c.claims        ? "c"
                     : c.listed != 0 ? "l"
                                     : "") +
         (c.tail_rows != 0 ? std::to_string(c.tail_rows) : "");
}

}  // namespace

bool is_output_type(DataType t) noexcept {
  using enum DataType;
  return t == bf16 || t == fp16 || t == fp32 || t == int32 || t == int8 || t == uint8 || t == boolean || t == fp8_e4m3 ||
         t == fp8_e5m2;
}
bool shifts(const KernelConfig& c) noexcept { return shifts_a(c) || shifts_b(c); }
bool shifts_all(const KernelConfig& c) noexcept {
  return shifts(c) && (c.a_path == Path::tma || shifts_a(c)) && (c.b_path == Path::tma || shifts_b(c));
}
DataType input_of_b(const KernelConfig& c) noexcept { return c.input_b == DataType::not_set ? c.input : c.input_b; }
DataType stored_a(const KernelConfig& c) noexcept { return c.a_stored == DataType::not_set ? c.input : c.a_stored; }
DataType stored_b(const KernelConfig& c) noexcept { return c.b_stored == DataType::not_set ? input_of_b(c) : c.b_stored; }
int input_bytes(const KernelConfig& c) noexcept { return std::min(bytes_of(stored_a(c)), bytes_of(stored_b(c))); }
int line_bytes_of_a(const KernelConfig& c) noexcept {
  return c.casts ? kLineBytes / bytes_of(c.input) * bytes_of(stored_a(c)) : kLineBytes;
}
bool is_fp8_product(const KernelConfig& c) noexcept { return is_fp8(c.input); }
int instruction_n(const KernelConfig& c) noexcept {
  // With scales two products are in hand, each of them beside those, and two at least make a tile.
  const bool has_tables = c.quantisers > 0 && c.group_atoms && c.run_bytes > 0;
  const int held = (copies(c) || has_tables ? 160 : c.addressed != 0 ? 184 : 192) - results_of(c);
  const int most = c.scaled ? std::clamp(std::min(c.block_n, held) / 2, 8, 64) : c.promoted ? 192 : 256;
  int parts = 1;
  while (c.block_n / parts > most || c.block_n % (8 * parts) != 0) ++parts;
  return c.block_n / parts;
}
int block_k(const KernelConfig& c) noexcept { return kLineBytes / bytes_of(c.input); }
int threads_of(const KernelConfig& c) noexcept { return 128 * (c.consumers + c.producers); }
int row_blocks(const KernelConfig& c) noexcept { return c.block_m / 64 / (c.schedule == Schedule::pingpong ? 1 : c.consumers); }
int results_of(const KernelConfig& c) noexcept { return c.gemms * row_blocks(c) * c.block_n / 2; }
int accumulators_of(const KernelConfig& c) noexcept {
  return results_of(c) + (c.scaled ? 2 * instruction_n(c) : c.promoted ? instruction_n(c) / 2 : 0);
}
int stage_bytes(const KernelConfig& c) noexcept {
  const int scales = c.scaled ? (16 * (c.a_count * c.block_m + c.b_count * c.block_n) + 1023) / 1024 * 1024 : 0;
  const int a = c.carried ? c.block_m * (kLineBytes + 16)
                : c.held  ? (c.block_m * (16 * c.a_decoded + 4) + 1023) / 1024 * 1024
                          : c.a_count * c.block_m * line_bytes_of_a(c);
  return a + c.joined * c.b_count * b_lines(c) * kLineBytes + scales;
}
int chunks_of(const KernelConfig& c) noexcept { return row_blocks(c) * chunks_of_row_block(c); }
int quantised_columns(const KernelConfig& c) noexcept {
  if (c.quantisers == 0) return 0;
  // As many as there are registers for.
  const bool runs = c.run_bytes > 0 && !c.rotates;
  const bool has_tables = c.scaled && c.group_atoms && (c.block_n > 128 || runs);
  if (c.held ? runs : has_tables || c.producers > 1 || (c.schedule == Schedule::pingpong && c.reductions > 0)) return 32;
  return runs || c.scaled || copies(c) || (c.has_d && c.column_quantisers > 0) ? 64 : 128;
}
int units_at_once(const KernelConfig& c) noexcept {
  if (!c.loads_tile || c.column_reductions > 0 || c.quantisers > 0 || c.run_bytes > 0) return 1;
  return !c.held ? 4 : c.reductions > 1 ? 1 : 2;
}
bool stores_through(const KernelConfig& c) noexcept { return c.quantisers > 0 && c.promoted && !c.scaled && !c.rotates; }
bool stores_first(const KernelConfig& c) noexcept {
  return stores_through(c) && c.has_d && c.d_path == Path::tma && c.further_outputs == 0 && !c.loads_tile &&
         c.column_reductions == 0 && row_blocks(c) == 1 && c.store_buffers >= chunks_of(c);
}
int quantiser_words(const KernelConfig& c) noexcept {
  return (c.column_quantisers > 0 ? 34 * c.column_quantisers : stores_through(c) ? 16 : 0) * quantised_columns(c);
}
int scratch_bytes(const KernelConfig& c) noexcept {
  return 4 * ((c.column_reductions * 4 + c.vectors) * c.block_n + 8 * c.reductions + quantiser_words(c));
}
int decoding_bytes(const KernelConfig& c) noexcept {
  const auto bytes = [](int pieces) { return (pieces + 127) / 128 * 128 * 20; };
  if (c.carried) return 0;
  return (c.held ? 0 : c.a_count * bytes(c.block_m * c.a_decoded)) + c.b_count * bytes(c.block_n * c.b_decoded);
}
int landing_bytes(const KernelConfig& c) noexcept { return (c.split - 1) * c.consumers * 4 * 128 * results_of(c); }
int group_bytes(const KernelConfig& c) noexcept {
  if (c.groups == 0) return 0;
  const int places = c.consumers * (c.gathers || c.scatters ? 64 * row_blocks(c) + 4 : c.combines ? 4 : 0);
  const int queue = c.claims ? (c.depth_groups ? 4 : 2) * (16 + 4 * 5) : 0,
            cursors = (c.claims ? 6 : 0) + (c.group_atoms ? c.groups : 0);  // layout.cuh
  return queue + 16 * c.listed + 4 * (2 * (c.groups + 1) + threads_of(c) / 32 + cursors + places + (c.gathers ? c.block_m : 0));
}
int map_bytes(const KernelConfig& c) noexcept {
  return c.addressed != 0 && c.b_path == Path::tma ? (c.stages + 2) * c.b_count * 128 : 0;
}
int smem_bytes(const KernelConfig& c) noexcept {
  const int chunks = c.store_buffers + c.further_outputs * c.further_buffers;
  const int barriers =
      2 * c.stages + 2 + (c.split > 1 ? 2 * c.consumers : 0) + (c.loads_tile ? (c.consumers * c.store_buffers + 1) / 2 * 2 : 0);
  const int of_consumer = chunks * kChunkBytes + c.run_slots * c.run_bytes + scratch_bytes(c);
  const int before = c.stages * stage_bytes(c) + c.consumers * of_consumer + landing_bytes(c) + 8 * barriers + group_bytes(c);
  return (before + 15) / 16 * 16 + (c.producers - c.carried) * c.slots * decoding_bytes(c);
}
int entry_registers(const KernelConfig& c) noexcept {
  const int share = kRegistersPerSm / threads_of(c) / 8 * 8;
  return share < 255 ? share : 255;
}
/// Do several warpgroups copy, and not decode?
bool copies_by_turns(const KernelConfig& c) noexcept { return copies(c) && c.producers > 1 && c.slots == 0 && !c.carried; }
// setmaxnreg hands out the pool of entry registers times warpgroups anew, in steps of 8: 3 x 168 = 504 and 4 x 128 = 512. Threads
// that copy an operand hold pieces and addresses; one lane that asks for boxes needs little, and some more where it makes maps.
int producer_registers(const KernelConfig& c) noexcept {
  if (c.consumers == 1) return entry_registers(c);
  if (c.carried) return 128;
  if (c.held) return c.consumers == 3 ? 72 : 56;
  if (copies(c)) return c.consumers != 2 ? 80 : copies_by_turns(c) ? (c.scaled ? 96 : 104) : shifts(c) ? 104 : 88;
  if (c.consumers == 2) return c.addressed != 0 ? 56 : accumulators_of(c) >= 176 && !c.scaled ? 24 : 40;
  return 32;
}
int carrier_registers(const KernelConfig& c) noexcept { return c.consumers == 1 ? entry_registers(c) : 56; }
int consumer_registers(const KernelConfig& c) noexcept {
  if (c.consumers == 1) return entry_registers(c);
  if (c.held) return c.carried ? 160 : c.consumers == 3 ? 112 : 200;
  if (copies_by_turns(c)) return c.scaled ? 160 : 152;
  if (copies(c)) return c.producers > 1 ? 168 : c.consumers != 2 ? 144 : shifts(c) ? 200 : 208;
  if (c.consumers == 2) return c.addressed != 0 ? 224 : accumulators_of(c) >= 176 && !c.scaled ? 240 : 232;
  return 160;
}

std::optional<std::string> fault_of(const KernelConfig& c) {
  const DataType a = c.input, b = input_of_b(c);
  const auto is_factor_fp8 = [](DataType t) { return t == DataType::fp8_e4m3 || t == DataType::fp8_e5m2; };
  const bool alone = a == DataType::bf16 || a == DataType::fp16 || a == DataType::fp32 || a == DataType::int8;
  if (!(alone && a == b) && !(is_factor_fp8(a) && is_factor_fp8(b)))
    return fmt::format("inputs {} and {} have no wgmma", verglas::name_of(a), verglas::name_of(b));
  if (!is_output_type(c.output)) return fmt::format("output {} is not stored", verglas::name_of(c.output));
  if (bytes_of(a) != 2 && (c.a_major != Major::k || c.b_major != Major::k))
    return fmt::format("{} along M or N has no wgmma", verglas::name_of(a));
  for (const auto& [turned, path, stored, role] :
       {std::tuple{c.a_turned, c.a_path, c.a_stored, "a"}, {c.b_turned, c.b_path, c.b_stored, "b"}}) {
    // A thread converts what 16 bytes of a stage hold, or turns single elements.
    const int most = turned ? bytes_of(stored) : 16 / bytes_of(a) * bytes_of(stored);
    if (stored != DataType::not_set && !((c.casts || c.carried) && role[0] == 'a')) {
      if (path == Path::tma || piece_bytes(path) > most)
        return fmt::format("{} is converted from pieces of {} bytes, at most {}", role, piece_bytes(path), most);
      continue;
    }
    const bool served = bytes_of(a) == 4 ? path == Path::bytes4 || path == Path::bytes16
                                         : bytes_of(a) == 1 && (path == Path::bytes1 || path == Path::bytes4);
    if (turned && !served)
      return fmt::format("{} of {} is not turned in pieces of {}", role, verglas::name_of(a), piece_bytes(path));
  }
  if (c.promoted && !is_fp8_product(c)) return fmt::format("sums of {} need no promotion", verglas::name_of(a));
  if ((c.a_decoded != 0 || c.b_decoded != 0) && (bytes_of(a) != 2 || (c.slots < 2 && !c.carried)))
    return "what is decoded becomes 16-bit values";
  if (c.held && (c.a_decoded == 0 || (c.b_decoded == 0 && !c.carried) || c.producers != 2 || c.gemms != 1 ||
                 c.schedule == Schedule::pingpong || bytes_of(a) != 2))
    return "A in registers, of what is not one product of two matrices that are decoded";
  if (c.casts && (c.a_path != Path::tma || c.b_path != Path::tma || c.a_turned || c.a_major != Major::k || c.gemms != 1 ||
                  c.groups != 0 || c.a_decoded != 0 || c.b_decoded != 0 || bytes_of(a) != 2 || bytes_of(stored_a(c)) != 1))
    return "casts of A in registers, of what is not bytes along K beside 16-bit values, both by the copy engine";
  if (c.joined != (c.carried ? 4 : 1)) return fmt::format("{} k-blocks a stage", c.joined);
  if (c.carried && (!c.held || c.a_path != Path::tma || c.block_m != 64 * c.consumers || c.consumers > 2))
    return "few rows beside fp4 that the copy engine does not bring";
  if (c.producers > 1 && ((c.slots == 0 && !c.carried && !(copies(c) && c.groups == 0)) || (c.consumers > 2 && !c.held) ||
                          c.stages < c.producers + (c.schedule == Schedule::pingpong ? 2 : 0)))
    return fmt::format("{} producers", c.producers);
  if (c.scaled && !c.promoted) return "blocks with scales are promoted";
  if (c.promoted && c.stages < 2) return "sums that are promoted wait for the next stage before they leave theirs";
  if (c.promoted && c.schedule == Schedule::pingpong) return "with ping-pong nothing hides a promotion";
  if (c.consumers < 1 || c.consumers > 3) return fmt::format("{} consumers, not 1 to 3", c.consumers);
  if (c.schedule == Schedule::pingpong && c.consumers != 2) return fmt::format("ping-pong with {} consumers, not 2", c.consumers);
  const int rows = 64 * (c.schedule == Schedule::pingpong ? 1 : c.consumers);
  if (c.block_m <= 0 || c.block_m > 256 || c.block_m % rows != 0) {
    return fmt::format("block_m {} is not a multiple of {} up to 256", c.block_m, rows);
  }
  if (c.block_n <= 0 || c.block_n > 256 || c.block_n % 16 != 0) {
    return fmt::format("block_n {} is not a multiple of 16 up to 256", c.block_n);
  }
  if (c.block_n * bytes_of(c.output) % 32 != 0) return fmt::format("rows of {} bytes of D", c.block_n * bytes_of(c.output));
  if (c.gemms < 1 || c.gemms > 2 || c.a_count < 1 || c.a_count > c.gemms || c.b_count < 1 || c.b_count > c.gemms) {
    return fmt::format("{} products of {} and {} matrices", c.gemms, c.a_count, c.b_count);
  }
  if (c.split < 1 || c.split > 8 || (c.split & (c.split - 1)) != 0)
    return fmt::format("K split over {} blocks, not 1, 2, 4 or 8", c.split);
  if (c.split > 1 && c.schedule == Schedule::pingpong) return "K split with ping-pong, which ptxas serialises";
  if (c.stages < 2) return fmt::format("{} stages, at least 2", c.stages);
  if (c.store_buffers < 1 && c.has_d) return fmt::format("{} store buffers, at least 1", c.store_buffers);
  // One wgmma needs N/2 + 26 registers, and ptxas counts them against those at entry, not against those after setmaxnreg.
  if (instruction_n(c) / 2 + 26 > entry_registers(c)) {
    return fmt::format("block_n {} needs {} registers at entry of {}", c.block_n, instruction_n(c) / 2 + 26, entry_registers(c));
  }
  // 24 for addresses, barriers and the unit in hand, which is where promoted sums were: 192 accumulators compile without spills
  // at 240, 208 do not.
  const int beside = copies_by_turns(c) && c.promoted ? 24 : 40;
  if (accumulators_of(c) + beside > consumer_registers(c)) {
    return fmt::format("{} accumulators of {} registers leave fewer than {}", accumulators_of(c), consumer_registers(c), beside);
  }
  for (const auto& [path, size, role] : {std::tuple{c.a_path, bytes_of(stored_a(c)), "a"},
                                         {c.b_path, bytes_of(stored_b(c)), "b"},
                                         {c.d_path, bytes_of(c.output), "d"}}) {
    if (path != Path::tma && piece_bytes(path) < size) {
      return fmt::format("pieces of {} bytes of {} with elements of {}", piece_bytes(path), role, size);
    }
  }
  if (c.run_bytes > 0 && (c.block_n % 64 != 0 || c.gemms != 1 || c.has_d || c.run_bytes % 1024 != 0 || c.run_slots < 1))
    return fmt::format("runs of {} columns, {} products, {} slots of {} bytes", c.block_n, c.gemms, c.run_slots, c.run_bytes);
  if ((c.d_along_m || c.loads_tile || c.further_outputs > 0) && c.d_path != Path::tma)
    return fmt::format("the epilogue's copies beside pieces of {} bytes of d", piece_bytes(c.d_path));
  if (c.groups > 0 && c.split > 1) return "groups with K split";
  if (c.addressed != 0 && (c.groups == 0 || c.depth_groups)) return "addresses of what is not a weight of rows";
  if (c.gathers && (c.a_path == Path::tma || c.a_major != Major::k || c.a_turned)) return "rows that are gathered in boxes";
  if ((c.gathers || c.scatters) && 64 * row_blocks(c) > 128) return "more than 128 rows a consumer with places of their own";
  if ((has_group_rows(c) && (c.d_along_m || c.further_outputs > 0)) ||
      (c.groups > 0 && !c.depth_groups && c.a_major == Major::mn && c.a_path == Path::tma))
    return "rows of groups, which begin anywhere, with boxes along M";
  if (c.depth_groups && ((c.a_major == Major::k && c.a_path == Path::tma) || (c.b_major == Major::k && c.b_path == Path::tma)))
    return "parts of K, which begin anywhere, with boxes along K";
  if (smem_bytes(c) > kSmemBytes) return fmt::format("{} bytes of shared memory of {}", smem_bytes(c), kSmemBytes);
  return std::nullopt;
}

std::string name_of(const KernelConfig& c) {
  return fmt::format("{}x{}x{}_{}{}_s{}_{}{}_{}_{}{}{}{}{}{}{}", c.block_m, c.block_n, c.stages,
                     c.schedule == Schedule::pingpong ? "pingpong" : "coop", c.consumers, c.store_buffers, letter(c.a_major),
                     letter(c.b_major), input_name(c), verglas::name_of(c.output), path_suffix(c), product_suffix(c),
                     epilogue_suffix(c), group_suffix(c), c.split > 1 ? fmt::format("_split{}", c.split) : "",
                     c.programmatic ? "_pdl" : "");
}

int stages_that_fit(KernelConfig c, int most) noexcept {
  for (c.stages = most; c.stages > 0 && smem_bytes(c) > kSmemBytes;) --c.stages;
  return c.stages;
}

void fit_staging(KernelConfig& c) noexcept {
  constexpr int kOnTheWay = 32'000;  // bytes, of what is decoded: as much as hides memory's latency
  if (decoding_bytes(c) > 0)
    for (c.slots = 2; c.slots < 16 && 2 * c.slots * (c.producers - c.carried) * decoding_bytes(c) <= kOnTheWay;) c.slots *= 2;
  const bool pingpong = c.schedule == Schedule::pingpong;
  if (c.rotates) {
    c.store_buffers = 0;
    c.run_slots = row_blocks(c) * c.block_n / 64;
    c.stages = stages_that_fit(c);
    return;
  }
  if (c.run_bytes > 0) {
    c.store_buffers = 0;
    c.run_slots = (pingpong ? 2 : row_blocks(c) * c.block_n / 64) + 1;
    do {
      --c.run_slots;
      c.stages = stages_that_fit(c);
    } while (c.stages < 3 && c.run_slots > 1);
    return;
  }
  if (!c.has_d) {
    c.store_buffers = 0;
    c.stages = stages_that_fit(c);
    return;
  }
  const int most = pingpong && !c.is_shallow ? (c.loads_tile ? std::min(4, chunks_of(c)) : 2) : chunks_of(c);
  // Behind ping-pong what is copied beside D keeps memory busy, and a fourth stage is worth more than further chunks.
  int enough = pingpong && (c.further_outputs > 0 || c.loads_tile) ? 4 : 3;
  const auto fits = [&](int chunks, int further) {
    c.store_buffers = chunks;
    c.further_buffers = further;
    c.stages = stages_that_fit(c);
    return c.stages >= enough;
  };
  if (c.further_outputs == 0 && !c.loads_tile) {
    if (!fits(most, 0)) fits(2, 0);
    return;
  }
  for (; enough >= 3; --enough)
    for (int further = c.further_outputs == 0 ? 0 : enough > 3 && c.loads_tile ? 1 : 2;; --further) {
      for (int chunks = most; chunks >= 2; --chunks)
        if (fits(chunks, further)) return;
      if (further <= 1) break;
    }
  fits(2, c.further_outputs == 0 ? 0 : 1);
}

}  // namespace verglas::sm90
