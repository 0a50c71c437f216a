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
  add("bool", "A_TURNED", c.a_turned);
  add("bool", "B_TURNED", c.b_turned);
  add("bool", "PROMOTED", c.promoted);
  add("bool", "SCALED", c.scaled);
  add("int", "A_DECODED", c.a_decoded);
  add("int", "B_DECODED", c.b_decoded);
  add("int", "PRODUCERS", c.producers);
  add("int", "SLOTS", std::max(1, c.slots));
  add("int", "REDUCTIONS", c.reductions);
  add("int", "COLUMN_REDUCTIONS", c.column_reductions);
  add("int", "VECTORS", c.vectors);
  add("int", "COLUMN_QUANTISERS", c.column_quantisers);
  add("bool", "QUANTISES", c.quantises);
  add("bool", "HAS_D", c.has_d);
  add("bool", "D_ALONG_M", c.d_along_m);
  add("bool", "LOADS_TILE", c.loads_tile);
  add("int", "FURTHER_OUTPUTS", c.further_outputs);
  add("int", "FURTHER_BUFFERS", c.further_buffers);
  add("int", "RUN_BYTES", c.run_bytes);
  add("int", "RUN_SLOTS", c.run_slots);
  add("int", "GEMMS", c.gemms);
  add("int", "A_COUNT", c.a_count);
  add("int", "B_COUNT", c.b_count);
  add("bool", "PROGRAMMATIC", c.programmatic);
  add("int", "GROUPS", c.groups);
  add("int", "SMEM_BYTES", smem_bytes(c));
  add("bool", "GATHERS", c.gathers);
  add("bool", "SCATTERS", c.scatters);
  add("bool", "DEPTH_GROUPS", c.depth_groups);
  add("bool", "ACCUMULATES", c.accumulates);
  add("bool", "OFFSETS_WIDE", c.wide_offsets);
  add("bool", "OFFSETS_END", c.offsets_are_ends);
  add("bool", "ZERO_FILL", c.zero_fill);
  add("bool", "B_BY_ADDRESS", c.by_address);
  add("int", "PRODUCER_REGISTERS", producer_registers(c));
  add("int", "CONSUMER_REGISTERS", consumer_registers(c));
  for (const auto& [name, which] : {std::pair{"gemm_a", c.gemm_a}, {"gemm_b", c.gemm_b}})
    fmt::format_to(std::back_inserter(out), "  VG_DEVICE static constexpr int {}(int g) {{ return g == 0 ? {} : {}; }}\n", name,
                   which[0], which[1]);
  return out + "};\n";
}

}  // namespace

std::string wgmma_text(const KernelConfig& c) {
  const int registers = instruction_n(c) / 2, k = 32 / bytes_of(c.input);
  const bool integer = c.input == DataType::int8;
  // One k-step in units of 16 bytes of the descriptor's address: 32 bytes along a line, or 16 lines.
  const int a_step = c.a_major == Major::k ? 2 : 128, b_step = c.b_major == Major::k ? 2 : 128;
  std::string list, operands;
  for (int i = 0; i < registers; ++i) {
    fmt::format_to(std::back_inserter(list), "{}%{}", i ? "," : "", i);
    fmt::format_to(std::back_inserter(operands), "{}\"+{}\"(d[{}])", i ? "," : "", integer ? "r" : "f", i);
  }
  // Signs of both factors, and which of them lie along M or N: only 16-bit types may.
  std::string immediates = integer ? "" : ", 1, 1";
  if (bytes_of(c.input) == 2) immediates += fmt::format(", {}, {}", c.a_major == Major::k ? 0 : 1, c.b_major == Major::k ? 0 : 1);
  std::string steps;
  for (int step = 0; step < (c.scaled ? 1 : 4); ++step) {
    fmt::format_to(std::back_inserter(steps),
                   "        \"wgmma.mma_async.sync.aligned.m64n{}k{}.{}.{}.{} {{{}}}, a{}, b{}, {}{};\\n\"\n", instruction_n(c),
                   k, integer ? "s32" : "f32", wgmma_type(c.input), wgmma_type(input_of_b(c)), list, step, step, step ? "1" : "p",
                   immediates);
  }
  // The address is in the low word, and no tile crosses its 14 bits: 32-bit additions.
  return fmt::format(
      "struct Wgmma {{\n"
      "  using Accumulator = {8};\n"
      "  static constexpr int WIDTH = {9};\n"
      "  VG_DEVICE static void multiply(Accumulator (&d)[{0}], uint64 a, uint64 b, bool accumulate) {{\n"
      "    asm volatile(\n"
      "        \"{{\\n.reg .pred p;\\n.reg .b32 al, ah, bl, bh;\\n.reg .b64 a0, a1, a2, a3, b0, b1, b2, b3;\\n\"\n"
      "        \"setp.ne.b32 p, %{3}, 0;\\nmov.b64 {{al, ah}}, %{1};\\nmov.b64 {{bl, bh}}, %{2};\\n\"\n"
      "        \"mov.b64 a0, %{1};\\nmov.b64 b0, %{2};\\n\"\n"
      "        \"add.u32 al, al, {4};\\nadd.u32 bl, bl, {5};\\nmov.b64 a1, {{al, ah}};\\nmov.b64 b1, {{bl, bh}};\\n\"\n"
      "        \"add.u32 al, al, {4};\\nadd.u32 bl, bl, {5};\\nmov.b64 a2, {{al, ah}};\\nmov.b64 b2, {{bl, bh}};\\n\"\n"
      "        \"add.u32 al, al, {4};\\nadd.u32 bl, bl, {5};\\nmov.b64 a3, {{al, ah}};\\nmov.b64 b3, {{bl, bh}};\\n\"\n"
      "        \"wgmma.fence.sync.aligned;\\n\"\n"
      "{6}"
      "        \"wgmma.commit_group.sync.aligned;\\n}}\"\n"
      "        : {7}\n"
      "        : \"l\"(a), \"l\"(b), \"r\"(static_cast<int>(accumulate))\n"
      "        : \"memory\");\n"
      "  }}\n"
      "  VG_DEVICE static void settle(Accumulator (&d)[{0}]) {{ asm volatile(\"\" : {7}::\"memory\"); }}\n"
      "}};\n",
      registers, registers, registers + 1, registers + 2, a_step, b_step, steps, operands, integer ? "int" : "float",
      instruction_n(c));
}

std::string kernel_source(const KernelConfig& c, const EpilogueText& epilogue, const std::string& entry) {
  return fmt::format(
      "#include \"gemm.cuh\"\n#include \"quantise.cuh\"\n#include \"reduce.cuh\"\n\nnamespace vg {{\n\n{}\n{}\n{}\n\n{}\n\n{}\n\n"
      "struct alignas(64) Block {{\n  Parameters gemm;\n  EpilogueArguments epilogue;\n}};\n\n}}  // namespace vg\n\n"
      "extern \"C\" __global__ void __launch_bounds__({}, 1) {}{}(const __grid_constant__ vg::Block block) {{\n"
      "  vg::gemm<vg::Config, vg::Wgmma, vg::Prologues, vg::Epilogue>(block.gemm, block.epilogue);\n}}\n",
      constants_text(c), wgmma_text(c), epilogue.arguments, epilogue.prologues, epilogue.body, threads_of(c),
      c.split > 1 ? fmt::format("__cluster_dims__({}, 1, 1) ", c.split) : "", entry);
}

}  // namespace verglas::sm90
