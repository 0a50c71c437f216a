#include "engine/sm90/source.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>

#include "engine/sm90/expression.hpp"

namespace verglas::sm90 {
namespace {

/// As wgmma names it.
std::string_view wgmma_type(DataType t) {
  switch (t) {
    case DataType::fp16: return "f16";
    case DataType::fp32: return "tf32";
    case DataType::int8: return "s8";
    case DataType::fp8_e4m3: return "e4m3";
    case DataType::fp8_e5m2: return "e5m2";
    default: return "bf16";
  }
}

std::string constants_text(const KernelConfig& c) {
  std::string out = "struct Config {\n";
  const auto add = [&out](const char* type, const char* name, auto value) {
    fmt::format_to(std::back_inserter(out), "  static constexpr {} {} = {};\n", type, name, value);
  };
  add("int", "BLOCK_M", c.block_m);
  add("int", "BLOCK_N", c.block_n);
  add("int", "STAGES", c.stages);
  add("int", "CONSUMERS", c.consumers);
  add("int", "SPLIT", c.split);
  add("int", "STORE_BUFFERS", c.store_buffers);
  add("bool", "PINGPONG", c.schedule == Schedule::pingpong);
  add("bool", "A_K_MAJOR", c.a_major == Major::k);
  add("bool", "B_K_MAJOR", c.b_major == Major::k);
  add("int", "INPUT_BYTES", bytes_of(c.input));
  fmt::format_to(std::back_inserter(out), "  using Output = {};\n", slot_name(c.output));
  add("int", "A_PIECE", piece_bytes(c.a_path));
  add("int", "B_PIECE", piece_bytes(c.b_path));
  add("int", "D_PIECE", piece_bytes(c.d_path));
  // K is split where few tiles share the long operand, or none do: the rows of a narrow tile, the columns of others.
  add("bool", "A_ONCE", c.carried || (c.split > 1 && c.block_n <= 32));
  add("bool", "B_ONCE", !c.carried && c.split > 1 && c.block_n > 32);
  add("bool", "A_TURNED", c.a_turned);
  add("bool", "B_TURNED", c.b_turned);
  add("bool", "PROMOTED", c.promoted);
  add("bool", "SCALED", c.scaled);
  add("int", "A_DECODED", c.a_decoded);
  add("int", "B_DECODED", c.b_decoded);
  add("int", "PRODUCERS", c.producers);
  add("bool", "HELD", c.held);
  add("bool", "CASTS", c.casts);
  add("bool", "CARRIED", c.carried);
  add("int", "DECODERS", c.producers - c.carried);
  add("int", "JOINED", c.joined);
  add("int", "SLOTS", std::max(1, c.slots));
  add("int", "REDUCTIONS", c.reductions);
  add("int", "COLUMN_REDUCTIONS", c.column_reductions);
  add("int", "VECTORS", c.vectors);
  add("int", "COLUMN_QUANTISERS", c.column_quantisers);
  add("int", "QUANTISED_COLUMNS", quantised_columns(c));
  add("int", "QUANTISER_WORDS", quantiser_words(c));
  add("bool", "STORES_THROUGH", stores_through(c));
  add("bool", "D_FIRST", stores_first(c));
  add("bool", "HAS_D", c.has_d);
  add("bool", "D_ALONG_M", c.d_along_m);
  add("bool", "LOADS_TILE", c.loads_tile);
  add("int", "FURTHER_OUTPUTS", c.further_outputs);
  add("int", "FURTHER_BUFFERS", c.further_buffers);
  add("int", "UNITS_AT_ONCE", units_at_once(c));
  add("int", "RUN_BYTES", c.run_bytes);
  add("int", "RUN_SLOTS", c.run_slots);
  add("bool", "ROTATES", c.rotates);
  add("int", "GEMMS", c.gemms);
  add("int", "A_COUNT", c.a_count);
  add("int", "B_COUNT", c.b_count);
  add("bool", "PROGRAMMATIC", c.programmatic);
  add("int", "GROUPS", c.combines ? 0 : c.groups);
  add("bool", "COMBINES", false);
  out += "  using Results = Config;\n";
  add("int", "SMEM_BYTES", smem_bytes(c));
  add("bool", "GATHERS", c.gathers);
  add("bool", "SCATTERS", c.scatters);
  add("bool", "DEPTH_GROUPS", c.depth_groups);
  add("bool", "GROUP_ATOMS", c.group_atoms);
  add("int", "ROW_UNIT", c.row_unit);
  add("bool", "ACCUMULATES", c.accumulates);
  add("bool", "OFFSETS_WIDE", c.wide_offsets);
  add("bool", "OFFSETS_END", c.offsets_are_ends);
  add("bool", "ZERO_FILL", c.zero_fill);
  add("int", "B_ADDRESSED", c.addressed);
  add("int", "TAIL_ROWS", c.tail_rows);
  add("bool", "CLAIMS", c.claims);
  if (c.groups > 0) add("int", "SHORT_TILE", kShortTile);
  add("int", "LISTED", c.listed);
  add("int", "PRODUCER_REGISTERS", producer_registers(c));
  add("int", "CARRIER_REGISTERS", carrier_registers(c));
  add("int", "CONSUMER_REGISTERS", consumer_registers(c));
  for (const auto& [name, which] : {std::pair{"gemm_a", c.gemm_a}, {"gemm_b", c.gemm_b}})
    fmt::format_to(std::back_inserter(out), "  VG_DEVICE static constexpr int {}(int g) {{ return g == 0 ? {} : {}; }}\n", name,
                   which[0], which[1]);
  out += "};\n";
  if (c.combines)
    fmt::format_to(
        std::back_inserter(out),
        "struct Products : Config {{\n  static constexpr int GROUPS = {};\n  static constexpr bool COMBINES = true;\n}};\n",
        c.groups);
  return out;
}

/// `multiply_scaled`: one k-step of fp8, and beside it the products of its scales, of which one of 16 k is not 0.
std::string scaled_text(const KernelConfig& c) {
  const int registers = instruction_n(c) / 2;
  std::string sums, scales, operands;
  for (int i = 0; i < registers; ++i) {
    fmt::format_to(std::back_inserter(sums), "{}%{}", i ? "," : "", i);
    fmt::format_to(std::back_inserter(scales), "{}%{}", i ? "," : "", registers + i);
  }
  for (int i = 0; i < 2 * registers; ++i)
    fmt::format_to(std::back_inserter(operands), "{}\"+f\"({}[{}])", i ? "," : "", i < registers ? "d" : "s", i % registers);
  return fmt::format(
      "  VG_DEVICE static void multiply_scaled(float (&d)[{0}], float (&s)[{0}], uint64 a, uint64 b, const uint32 (&r)[2],\n"
      "                                        uint64 c) {{\n"
      "    asm volatile(\n"
      "        \"{{\\n.reg .pred p;\\nsetp.ne.b32 p, 0, 0;\\nwgmma.fence.sync.aligned;\\n\"\n"
      "        \"wgmma.mma_async.sync.aligned.m64n{1}k32.f32.{2}.{3} {{{4}}}, %{5}, %{6}, p, 1, 1;\\n\"\n"
      "        \"wgmma.mma_async.sync.aligned.m64n{1}k16.f32.bf16.bf16 {{{7}}}, {{%{8}, %{9}, %{10}, %{10}}}, %{11}, p, 1, 1, "
      "0;\\n\"\n"
      "        \"wgmma.commit_group.sync.aligned;\\n}}\"\n"
      "        : {12}\n"
      "        : \"l\"(a), \"l\"(b), \"r\"(r[0]), \"r\"(r[1]), \"r\"(0), \"l\"(c)\n"
      "        : \"memory\");\n"
      "  }}\n",
      registers, instruction_n(c), wgmma_type(c.input), wgmma_type(input_of_b(c)), sums, 2 * registers, 2 * registers + 1, scales,
      2 * registers + 2, 2 * registers + 3, 2 * registers + 4, 2 * registers + 5, operands);
}

}  // namespace

std::string wgmma_text(const KernelConfig& c) {
  const int registers = instruction_n(c) / 2, k = 32 / bytes_of(c.input);
  const bool integer = c.input == DataType::int8, from_registers = c.held || c.casts;
  // One k-step in units of 16 bytes of the descriptor's address: 32 bytes along a line, or 16 lines.
  const int a_step = c.a_major == Major::k ? 2 : 128, b_step = c.b_major == Major::k ? 2 : 128;
  std::string list, operands;
  for (int i = 0; i < registers; ++i) {
    fmt::format_to(std::back_inserter(list), "{}%{}", i ? "," : "", i);
    fmt::format_to(std::back_inserter(operands), "{}\"+{}\"(d[{}])", i ? "," : "", integer ? "r" : "f", i);
  }
  // Signs of both factors, and which of them lie along M or N: only 16-bit types may.
  std::string immediates = integer ? "" : ", 1, 1";
  if (bytes_of(c.input) == 2)
    immediates += fmt::format("{}, {}",
                              from_registers          ? ""
                              : c.a_major == Major::k ? ", 0"
                                                      : ", 1",
                              c.b_major == Major::k ? 0 : 1);
  const int count = c.scaled ? 1 : from_registers && !c.carried ? 2 : 4;
  std::string steps, registers_a, operands_a;
  const auto instruction = [&](const std::string& a, const std::string& b, const char* accumulates) {
    return fmt::format("        \"wgmma.mma_async.sync.aligned.m64n{}k{}.{}.{}.{} {{{}}}, {}, {}, {}{};\\n\"\n", instruction_n(c),
                       k, integer ? "s32" : "f32", wgmma_type(c.input), wgmma_type(input_of_b(c)), list, a, b, accumulates,
                       immediates);
  };
  for (int step = 0; step < count; ++step) {
    const std::string a = from_registers ? fmt::format("{{%{},%{},%{},%{}}}", registers + 4 * step, registers + 4 * step + 1,
                                                       registers + 4 * step + 2, registers + 4 * step + 3)
                                         : fmt::format("a{}", step);
    steps += instruction(a, fmt::format("b{}", step), step ? "1" : "p");
    for (int i = 0; from_registers && i < 4; ++i) operands_a += fmt::format("\"r\"(a[{}]), ", 4 * step + i);
  }
  // The address is in the low word, and no tile crosses its 14 bits: 32-bit additions.
  const auto addresses = [&](char side, int operand, int to_next) {
    std::string text = fmt::format(
        "        \".reg .b32 {0}l, {0}h;\\n.reg .b64 {0}0, {0}1, {0}2, {0}3;\\nmov.b64 {{{0}l, {0}h}}, %{1};\\nmov.b64 {0}0, "
        "%{1};\\n\"\n",
        side, operand);
    for (int step = 1; step < count; ++step)
      text += fmt::format("        \"add.u32 {0}l, {0}l, {1};\\nmov.b64 {0}{2}, {{{0}l, {0}h}};\\n\"\n", side, to_next, step);
    return text;
  };
  const int b = registers + (from_registers ? 4 * count : 1);
  if (!from_registers) operands_a = "\"l\"(a), ";
  // Where the depth of a group ends: of a k-block the steps that it has.
  const std::string first_steps =
      !c.depth_groups && c.listed == 0
          ? std::string()
          : fmt::format(
                "  /// The first `count` k-steps.\n"
                "  VG_DEVICE static void multiply_steps(Accumulator (&d)[{0}], uint64 a, uint64 b, int count, bool accumulate) "
                "{{\n"
                "#pragma unroll 1\n"
                "    for (int step = 0; step < count; ++step)\n"
                "      asm volatile(\n"
                "        \"{{\\n.reg .pred p;\\nsetp.ne.b32 p, %{1}, 0;\\nwgmma.fence.sync.aligned;\\n\"\n"
                "{2}"
                "        \"wgmma.commit_group.sync.aligned;\\n}}\"\n"
                "        : {3}\n"
                "        : \"l\"(a + {4} * step), \"l\"(b + {5} * step), \"r\"(static_cast<int>(accumulate || step != 0))\n"
                "        : \"memory\");\n"
                "  }}\n",
                registers, registers + 2, instruction(fmt::format("%{}", registers), fmt::format("%{}", registers + 1), "p"),
                operands, a_step, b_step);
  return fmt::format(
      "struct Wgmma {{\n"
      "  using Accumulator = {0};\n"
      "  static constexpr int WIDTH = {1};\n"
      "  VG_DEVICE static void multiply(Accumulator (&d)[{2}], {3}, uint64 b, bool accumulate) {{\n"
      "    asm volatile(\n"
      "        \"{{\\n.reg .pred p;\\nsetp.ne.b32 p, %{4}, 0;\\n\"\n{5}{6}"
      "        \"wgmma.fence.sync.aligned;\\n\"\n"
      "{7}"
      "        \"wgmma.commit_group.sync.aligned;\\n}}\"\n"
      "        : {8}\n"
      "        : {9}\"l\"(b), \"r\"(static_cast<int>(accumulate))\n"
      "        : \"memory\");\n"
      "  }}\n"
      "{10}"
      "{11}"
      "  VG_DEVICE static void settle(Accumulator (&d)[{2}]) {{ asm volatile(\"\" : {8}::\"memory\"); }}\n"
      "}};\n",
      integer ? "int" : "float", instruction_n(c), registers,
      from_registers ? fmt::format("const uint32 (&a)[{}]", 4 * count) : std::string("uint64 a"), b + 1,
      from_registers ? std::string() : addresses('a', registers, a_step), addresses('b', b, b_step), steps, operands, operands_a,
      c.scaled ? scaled_text(c) : std::string(), first_steps);
}

std::string kernel_source(const KernelConfig& c, const EpilogueText& epilogue, const std::string& entry) {
  return fmt::format(
      "#include \"gemm.cuh\"\n#include \"quantise.cuh\"\n#include \"reduce.cuh\"\n\nnamespace vg {{\n\n{}\n{}\n{}\n\n{}\n\n{}\n\n"
      "struct alignas(64) Block {{\n  Parameters gemm;\n  EpilogueArguments epilogue;\n}};\n\n}}  // namespace vg\n\n"
      "extern \"C\" __global__ void __launch_bounds__({}, 1) {}{}(const __grid_constant__ vg::Block block) {{\n"
      "  vg::gemm<vg::{}, vg::Wgmma, vg::Prologues, vg::Epilogue>(block.gemm, block.epilogue);\n}}\n",
      constants_text(c), wgmma_text(c), epilogue.arguments, epilogue.prologues, epilogue.body, threads_of(c),
      c.split > 1 ? fmt::format("__cluster_dims__({}, 1, 1) ", c.split) : "", entry, c.combines ? "Products" : "Config");
}

}  // namespace verglas::sm90
