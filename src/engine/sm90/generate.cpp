#include "engine/sm90/generate.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>

#include "engine/sm90/expression.hpp"
#include "engine/sm90/prologue.hpp"
#include "engine/sm90/rope.hpp"
#include "engine/sm90/runs.hpp"
#include "numeric/convert.hpp"
#include "numeric/quantise.hpp"

namespace verglas::sm90 {
namespace {

using chain::FusionChain;
using chain::ValueKind;

std::string_view mode_name(ReductionMode mode) {
  using enum ReductionMode;
  switch (mode) {
    case add: return "Add";
    case mul: return "Mul";
    case min: return "Min";
    case max: return "Max";
    case amax: return "Amax";
    case avg: return "Avg";
    case norm1: return "Norm1";
    case norm2: return "Norm2";
    case mul_no_zeros: return "MulNoZeros";
  }
  return "Add";
}

class Generator {
 public:
  explicit Generator(const FusionChain& c) : c_(c), staged_(staged_roles(c)), made_(c.values.size(), false) {
    if (staged_.tile.role >= 0) plan_.maps.push_back(staged_.tile);
    plan_.maps.insert(plan_.maps.end(), staged_.further.begin(), staged_.further.begin() + staged_.further_count);
  }

  /// `runs`: what the drain of runs stores (runs.cuh).
  EpiloguePlan run(const RunChain* runs = nullptr) {
    if (has_rope(c_)) return rope();
    in_runs_ = runs != nullptr;
    if (in_runs_) second_ = runs->second;
    for (std::size_t g = 0; g < c_.gemms.size(); ++g) {
      const int v = c_.gemms[g].value;
      const bool integer = c_.gemms[g].accumulate == DataType::int32 && !c_.grouping.combines();
      declare(v);
      loop(fmt::format("v{}[i] = {};", v,
                       rounded(before_pairs(c_.values[static_cast<std::size_t>(v)].dtype), integer,
                               fmt::format("{}(r[{}][i])", integer ? "__float_as_int" : "", g))));
      round(v);
      made_[static_cast<std::size_t>(v)] = true;
    }
    for (const chain::Step& s : c_.steps) step(s);
    for (const chain::Store& s : c_.stores) need(s.value);
    for (std::size_t i = 1; i < c_.stores.size(); ++i) store(c_.stores[i]);
    if (in_runs_)
      for (const RunStore& s : runs->stores) store_run(s);
    for (const chain::Quantise& q : c_.quantised) quantise(q);
    for (const chain::Reduction& r : c_.reductions) reduction(r);
    if (!c_.stores.empty() && c_.stores[0].accumulate) {
      const int role = c_.stores[0].role;
      line("float held[8];");
      const int slot = slot_in(plan_.aux, role);
      line(fmt::format("load_aux<Config::Output, Config::D_PIECE == 0 && !Config::D_ALONG_M, true>(held, a.aux[{}], p, at);",
                       slot));
      load_ahead_ += fmt::format(
          "    if constexpr (Config::D_PIECE == 0 && !Config::D_ALONG_M)\n      ask_for_lines<Config::Output, 64 * "
          "Layout<Config>::M_BLOCKS, Config::BLOCK_N>(a.aux[{}], p, t);\n",
          slot);
      loop(fmt::format("r[0][i] = v{}[i] + held[i];", c_.stores[0].value));
    } else if (!c_.stores.empty()) {
      loop(fmt::format("r[0][i] = {}(v{}[i]);", is_int(c_.stores[0].value) ? "__int_as_float" : "", c_.stores[0].value));
    }
    plan_.text.prologues = prologues_text(c_, plan_);
    write_text();
    return std::move(plan_);
  }

 private:
  void line(const std::string& s) { body_ += "    " + s + "\n"; }
  void loop(const std::string& s) { line("_Pragma(\"unroll\") for (int i = 0; i < 8; ++i) " + s); }

  bool is_int(int v) const { return c_.values[static_cast<std::size_t>(v)].dtype == DataType::int32; }
  void declare(int v) { line(fmt::format("{} v{}[8];", is_int(v) ? "int" : "float", v)); }

  /// What an expression is rounded to, where `round` does the rest.
  static DataType before_pairs(DataType t) { return t == DataType::bf16 || t == DataType::fp16 ? DataType::fp32 : t; }
  /// To bf16 or fp16, where anybody but a store reads the value: a store rounds by itself.
  void round(int v) {
    const DataType type = c_.values[static_cast<std::size_t>(v)].dtype;
    if (is_read(c_, v) && (type == DataType::bf16 || type == DataType::fp16))
      line(fmt::format("round_to<{}>(v{});", slot_name(type), v));
  }

  void store(const chain::Store& s) {
    const chain::Role& role = c_.roles[static_cast<std::size_t>(s.role)];
    const std::string_view type = slot_name(c_.operands[static_cast<std::size_t>(role.operand)].dtype);
    const int slot = slot_in(plan_.aux, s.role);
    pass_row_ += fmt::format("    zero_row<8 * {}::BYTES>(a.aux[{}], row, p.n);\n", type, slot);
    const auto end = staged_.further.begin() + staged_.further_count;
    const auto it = std::find_if(staged_.further.begin(), end, [&](const StagedRole& r) { return r.role == s.role; });
    if (it == end) {
      const bool is_of_rows = c_.grouping.has_group_rows();
      line(fmt::format("store_output<{}>(a.aux[{}], v{}, p, {});", type, slot, s.value, is_of_rows ? "at.shared()" : "at"));
      return;
    }
    const auto which = static_cast<std::size_t>(it - staged_.further.begin());
    const std::string chunk = fmt::format("{} * Config::FURTHER_BUFFERS * Layout<Config>::CHUNK_BYTES", which);
    line(fmt::format("stage<{}, {}>({{at.further.chunk + {}, at.further.width / {}, at.further.col, at.further.thread}}, v{});",
                     type, it->along_m, chunk, it->shrink, s.value));
    store_further_ += fmt::format(
        "    store_chunk<{}, {}>(map({}, width), leader, chunk + {}, width / {}, target_of(a.aux[{}]), batch, row, col, p.m, "
        "p.n);\n",
        type, it->along_m, which + (staged_.tile.role >= 0 ? 1 : 0), chunk, it->shrink, slot);
  }

  /// What the drain of rotated tiles (rope.cuh) asks for.
  EpiloguePlan rope() {
    const std::string tables =
        fmt::format("a.aux[{}], a.aux[{}]", slot_in(plan_.aux, c_.rope.cos_role), slot_in(plan_.aux, c_.rope.sin_role));
    state_ += fmt::format("  using Rope = RopeBlock<{}>;\n", c_.rope.head);
    begin_ += fmt::format("    Rope::warm<64 * Layout<Config>::M_BLOCKS>({}, p, t);\n", tables);
    line(fmt::format("const Rope z(words, {}, p, batch, row, col);", tables));
    line("fetch_next();");
    std::string stores;  // behind all scales, which wait for one another's lanes
    for (const chain::Quantise& q : c_.quantised) {
      const std::string types = quantiser_of(q);
      const int slot = slot_in(plan_.aux, q.role), scales = slot_in(plan_.aux, q.scale_role);
      pads_ += fmt::format("    {}Quantiser<{}{}>::pad<Config::CONSUMERS>(a.aux[{}], p, t);\n", q.along_m ? "Column" : "", types,
                           q.along_m ? ", 0, 4, 4, false, false" : ", 1, 0, 4, 4, false, false", scales);
      const std::string kinds = types.substr(0, types.find(", 32"));  // without the block, of which there is one kind
      const bool is_interleaved = c_.roles[static_cast<std::size_t>(q.scale_role)].is_interleaved;
      const char axis = q.along_m ? 'm' : 'n';
      line(fmt::format("const auto factors{} = z.scale_along_{}<{}, {}>(a.aux[{}], p);", quantised_, axis, kinds, is_interleaved,
                       scales));
      stores += fmt::format("    z.store_along_{}<{}>(a.aux[{}], factors{});\n", axis, kinds, slot, quantised_++);
    }
    body_ += stores;
    plan_.text.prologues = prologues_text(c_, plan_);
    write_text();
    return std::move(plan_);
  }

  DataType type_of(int role) const {
    return c_.operands[static_cast<std::size_t>(c_.roles[static_cast<std::size_t>(role)].operand)].dtype;
  }
  /// Elements, scales, block and whether these lie in atoms.
  std::string quantiser_of(const chain::Quantise& q) const {
    const DataType data = type_of(q.role);
    std::string elements = data == DataType::fp4_e2m1   ? "E2m1Elements"
                           : data == DataType::fp8_e4m3 ? "E4m3Elements"
                                                        : "E5m2Elements";
    if (q.vmax != numeric::largest_of(data))
      elements = fmt::format("UpTo<{}, {:#x}u>", elements, std::bit_cast<std::uint32_t>(q.vmax));
    return fmt::format("{}, {}, {}, {}", elements, type_of(q.scale_role) == DataType::fp8_e8m0 ? "E8m0Stored" : "E4m3Stored",
                       q.block, c_.roles[static_cast<std::size_t>(q.scale_role)].is_interleaved);
  }

  void quantise(const chain::Quantise& q) {
    need(q.value);
    const bool is_scaled = q.scale_role >= 0;
    const bool by_group =
        is_scaled && c_.grouping.has_group_rows() && c_.roles[static_cast<std::size_t>(q.scale_role)].is_interleaved;
    const std::string units = fmt::format(
        "Config::BLOCK_N / {0}, Config::QUANTISED_COLUMNS / 16, (Config::D_FIRST ? Config::BLOCK_N : "
        "Config::QUANTISED_COLUMNS) / 16",
        in_runs_ ? 32 : 16);
    const char* const grouped = by_group ? ", true" : "";
    const std::string type = !is_scaled ? fmt::format("Rounder<E2m1Elements, {}, {}>", in_runs_ ? 2 : 1, units)
                             : q.along_m
                                 ? fmt::format(
                                       "ColumnQuantiser<{}, {}, Config::SCALED || (Config::A_DECODED || Config::B_DECODED), "
                                       "Config::STORES_THROUGH{}>",
                                       quantiser_of(q), units, grouped)
                                 : fmt::format("Quantiser<{}, {}, {}, (Config::COLUMN_QUANTISERS > 0), Config::STORES_THROUGH{}>",
                                               quantiser_of(q), in_runs_ ? 2 : 1, units, grouped);
    const std::string words =
        fmt::format("piece.scratch + WORDS + 4 * Config::VECTORS * Config::BLOCK_N + {} * Config::QUANTISED_COLUMNS",
                    q.along_m ? 136 * column_quantisers_++ : 0);
    const int slot = slot_in(plan_.aux, q.role), scales = !is_scaled ? slot : slot_in(plan_.aux, q.scale_role);
    std::string value = fmt::format("v{}", q.value);
    if (is_int(q.value)) {
      value = fmt::format("q{}", quantised_);
      line(fmt::format("float {}[8];", value));
      loop(fmt::format("{}[i] = static_cast<float>(v{}[i]);", value, q.value));
    }
    state_ += fmt::format("  {} quantiser{};\n", type, quantised_);
    const int part = in_runs_ ? 2 : 1;
    pass_row_ += fmt::format("    zero_row<{}>(a.aux[{}], row, p.n / {});\n", bits_of(type_of(q.role)), slot, part);
    if (is_scaled && !by_group)
      pass_row_ += q.along_m ? fmt::format("    zero_block<{}>(a.aux[{}], row, p.n);\n", q.block, scales)
                             : fmt::format("    zero_row<8>(a.aux[{}], row, p.n / {});\n", scales, part * q.block);
    const char* const rows = by_group ? ", GroupRows<Config>(piece)" : "";
    if (is_scaled)
      pads_ += by_group ? fmt::format("    {}::pad_groups<Config::CONSUMERS, Config::GATHERS>(a.aux[{}], p, t{});\n", type,
                                      scales, rows)
                        : fmt::format("    {}::pad<Config::CONSUMERS>(a.aux[{}], p, t);\n", type, scales);
    line(fmt::format("quantiser{}.unit({}, a.aux[{}], a.aux[{}], p, at{});", quantised_, value, slot, scales, rows));
    end_units_ += fmt::format("    quantiser{}.end_units(a.aux[{}], a.aux[{}], p, piece, at, {}{});\n", quantised_++, slot,
                              scales, words, rows);
  }

  void store_run(const RunStore& s) {
    need(s.value);
    const chain::Role& role = c_.roles[static_cast<std::size_t>(s.role)];
    const DataType dtype = c_.operands[static_cast<std::size_t>(role.operand)].dtype;
    const std::string_view type = slot_name(dtype);
    StagedRole staged = staged_run(c_, s.role);
    // Both runs lie side by side in memory: one box, where its lines are no longer than the swizzle.
    const int of_run = chain::kRun * bytes_of(dtype), runs = s.run >= 0 && 2 * of_run <= kLineBytes ? 2 : 1;
    const int slot = slot_in(plan_.aux, s.role), width = runs * of_run;
    staged.width = width;
    const int first = runs == 2 ? 0 : s.run;
    const std::string column =
        s.run < 0 ? fmt::format("{} * pair", chain::kRun) : fmt::format("{} * pair + {}", 2 * chain::kRun, first * chain::kRun);
    const std::string columns = s.run < 0 ? "p.n / 2" : "p.n";
    line(fmt::format("stage<{}, {}>({{at.place.chunk + {}, {}, at.place.col + {}, at.place.thread}}, v{});", type, staged.along_m,
                     run_bytes_, width, runs == 2 ? s.run * chain::kRun : 0, s.value));
    const bool of_rows = c_.grouping.has_group_rows();
    if (s.run <= 0) {
      plan_.run_outputs.push_back(s.role);
      pass_row_ += fmt::format("    zero_row<{}>(a.aux[{}], row, {});\n", 8 * bytes_of(dtype), slot, columns);
    }
    if (runs == 2 && s.run == 0) return;
    if (staged.role >= 0) {
      const auto is_known = [&](const StagedRole& x) { return x.role == s.role; };
      const auto known = std::find_if(plan_.maps.begin(), plan_.maps.end(), is_known) - plan_.maps.begin();
      if (known == std::ssize(plan_.maps)) plan_.maps.push_back(staged);
      if (of_rows) {  // of what copies would leave a part of threads store all
        store_runs_ += fmt::format(
            "    if (whole && mapped_of<{0}>({6}) == ({6}))\n      copy_chunk<{0}, false>(map({1}, {2}), leads, slot + {3}, {2}, "
            "batch, row, {5}, p.m, {6});\n"
            "    else\n      store_by_threads<{0}, 16>(slot + {3}, {2}, target_of(a.aux[{4}]), batch, row, {5}, end, {6}, "
            "places);\n",
            type, known, width, run_bytes_, slot, column, columns);
      } else {
        // Else one thread issues them, and what they leave is stored at once.
        store_runs_ += fmt::format(
            "    if constexpr (!Layout<Config>::SPREADS)\n      store_chunk<{0}, {1}>(map({2}, {3}), leads, slot + {4}, {3}, "
            "target_of(a.aux[{5}]), batch, row, {6}, p.m, {7});\n"
            "    else if (warp == (turn + {8} * step) % 4)\n      copy_chunk<{0}, {1}>(map({2}, {3}), leads, slot + {4}, {3}, "
            "batch, "
            "row, {6}, p.m, {7});\n",
            type, staged.along_m, known, width, run_bytes_, slot, column, columns, runs_stored_++);
        store_rests_ += fmt::format("    store_rest<{}, {}>(slot + {}, {}, target_of(a.aux[{}]), batch, row, {}, p.m, {});\n",
                                    type, staged.along_m, run_bytes_, width, slot, column, columns);
        has_rests_ += fmt::format("    has = has || mapped_of<{0}>({1}) != ({1});\n", type, staged.along_m ? "p.m" : columns);
      }
    } else {
      store_runs_ +=
          fmt::format("    store_by_threads<{}, {}>(slot + {}, {}, target_of(a.aux[{}]), batch, row, {}, end, {}, places);\n",
                      type, bytes_of(dtype), run_bytes_, width, slot, column, columns);
    }
    run_bytes_ += 64 * width;
  }

  /// Loads what a step reads, when it is first read.
  void need(int v) {
    if (made_[static_cast<std::size_t>(v)]) return;
    made_[static_cast<std::size_t>(v)] = true;
    const chain::Value& value = c_.values[static_cast<std::size_t>(v)];
    declare(v);
    if (value.kind == ValueKind::constant) {
      const std::string text =
          is_int(v) ? std::to_string(static_cast<std::int32_t>(std::clamp(value.constant, -2147483647.0, 2147483647.0)))
                    : literal(numeric::round_to(static_cast<float>(value.constant), value.dtype));
      loop(fmt::format("v{}[i] = {};", v, text));
      return;
    }
    const chain::Role& role = c_.roles[static_cast<std::size_t>(value.source)];
    if (role.kind == chain::RoleKind::host_scalar) {
      loop(fmt::format("v{}[i] = {}(a.scalar[{}]);", v, is_int(v) ? "__float_as_int" : "", slot_in(plan_.scalars, value.source)));
      return;
    }
    const std::string_view type = slot_name(value.dtype);
    const int slot = slot_in(plan_.aux, value.source);
    if (value.source == staged_.tile.role) {
      tile_slot_ = slot;
      state_ += fmt::format("  TileUnit<{}, Config::D_ALONG_M> tile[4];\n", type);
      fetch_ += "    tile[unit % 4].fetch(at);\n";
      line(fmt::format("tile[at.unit % 4].read(v{});", v));
    } else if (value.varies[1] && value.varies[2]) {
      line(fmt::format("load_aux<{}, false, (Config::GROUPS > 0)>(v{}, a.aux[{}], p, {});", type, v, slot,
                       value.varies[0] ? "at" : "at.shared()"));
    } else if (value.varies[1]) {
      state_ += fmt::format("  ColumnVector<{}, Layout<Config>::M_BLOCKS> ahead{};\n", type, v);
      load_ahead_ += fmt::format("    ahead{}.load(a.aux[{}], p, t);\n", v, slot);
      line(fmt::format("ahead{0}.read(v{0}, at);", v));
    } else if (value.varies[2]) {
      const auto known = std::find(vectors_.begin(), vectors_.end(), value.source);  // the other run reads it too
      const auto which = known - vectors_.begin();
      const std::string words = fmt::format("piece.scratch + WORDS + {} * Config::BLOCK_N", 4 * which);
      if (known == vectors_.end()) {
        vectors_.push_back(value.source);
        state_ += fmt::format("  RowVector<{}, Config::BLOCK_N> vector{};\n", type, which);
        load_ahead_ += fmt::format("    vector{}.load(a.aux[{}], p, t);\n", which, slot);
        begin_ += fmt::format("    vector{}.keep({});\n", which, words);
      }
      const bool is_second = std::ranges::find(second_, v) != second_.end();
      line(fmt::format("vector{}.read(v{}, {}, {});", which, v, words,
                       !in_runs_   ? "at"
                       : is_second ? "at.of_run(1)"
                                   : "at.of_run(0)"));
    } else {
      state_ += fmt::format("  OneValue<{}> ahead{};\n", type, v);
      load_ahead_ += fmt::format("    ahead{}.load(a.aux[{}], t);\n", v, slot);
      line(fmt::format("ahead{0}.read(v{0});", v));
    }
  }

  void reduction(const chain::Reduction& r) {
    const std::size_t j = plan_.reductions.size();
    plan_.reductions.push_back(r);
    need(r.value);
    const std::string value = is_int(r.value) ? fmt::format("f{}", j) : fmt::format("v{}", r.value);
    if (is_int(r.value)) {
      line(fmt::format("float f{}[8];", j));
      loop(fmt::format("f{}[i] = static_cast<float>(v{}[i]);", j, r.value));
    }
    const std::string_view mode = mode_name(r.mode);
    const std::string reducer = fmt::format("Reducer<Config, {}, {}, {}, {}>", mode, r.reduces[1], r.reduces[2], r.reduces[0]);
    const std::string argument = fmt::format("a.reduction[{}]", j), words = fmt::format("words + {}", 32 * j);
    const bool any_order = r.mode == ReductionMode::max || r.mode == ReductionMode::min || r.mode == ReductionMode::amax;
    const bool lasts = r.reduces[0] && r.reduces[1] && r.reduces[2] && any_order;  // as Reducer has it
    Ending& ending = lasts ? last_ : ending_;
    const int quantiser = quantiser_of_amax(c_, r);
    const bool by_blocks = quantiser >= 0;
    if (r.reduces[2] && !by_blocks) {
      state_ += fmt::format("  float rows{}[2];\n", j);
      begin_rows_ += fmt::format("    rows{0}[0] = rows{0}[1] = {1}::identity();\n", j, mode);
      state_ += fmt::format("  float terms{}[4][8];\n", j);
      loop(fmt::format("terms{}[at.unit % 4][i] = {}[i];", j, value));
      absorb_ += fmt::format("    absorb_rows<{0}, COUNT>(rows{1}, terms{1}, p, at);\n", mode, j);
    }
    if (!r.reduces[1]) {
      pass_row_ +=
          fmt::format("    if (threadIdx.x % 32 == 0) {0}.out[row * {0}.row_stride] = {1}::identity();\n", argument, mode);
      state_ += fmt::format("  float kept{}[Layout<Config>::M_BLOCKS][2];\n", j);
      end_rows_ += fmt::format(
          "    if constexpr (LATE)\n      kept{0}[block][0] = rows{0}[0], kept{0}[block][1] = rows{0}[1];\n    else\n      "
          "{1}::store_rows({2}, p, piece, block, rows{0});\n",
          j, reducer, argument);
      ending_.rows += fmt::format(
          "      _Pragma(\"unroll\") for (int i = 0; i < Layout<Config>::M_BLOCKS; ++i) {}::store_rows({}, p, piece, i, "
          "kept{}[i]);\n",
          reducer, argument, j);
    } else if (r.reduces[2]) {
      const std::string all = by_blocks ? fmt::format("quantiser{}.most", quantiser) : fmt::format("all{}", j);
      if (!by_blocks) {
        state_ += fmt::format("  float {};\n", all);
        end_rows_ += fmt::format("    join_rows<Config, {}>({}, rows{}, p, piece, block);\n", mode, all, j);
      }
      begin_ += fmt::format("    {} = {}::identity();\n", all, mode);
      if (lasts) {
        start_ += fmt::format("    {}::begin_warp({});\n", reducer, words);
        keep_ += fmt::format("    {}::keep_warp({}, {});\n", reducer, all, words);
      } else {
        ending_.fold += fmt::format("    {}::fold_warp({}, {});\n", reducer, all, words);
      }
      ending.partials += fmt::format("      {}::store_folded({}, p, piece, {});\n", reducer, argument, words);
    } else {
      const std::string rows = fmt::format("piece.scratch + {} * 16 * Config::BLOCK_N", columns_++);
      state_ += fmt::format("  float columns{}[4 * Fold::UNITS];\n", j);
      begin_chunk_ +=
          fmt::format("    if constexpr (!Fold::BEHIND)\n      for (float& x : columns{}) x = {}::identity();\n", j, mode);
      const std::string fold =
          fmt::format("fold_columns<{}, Config::BLOCK_N, {{}}>({}, columns{}, {{}}, piece.thread);", mode, rows, j);
      line(fmt::format("absorb_columns<{}, Fold::WHOLE>(columns{}, {}, at, Fold::first_of(at.unit, at.place.col));", mode, j,
                       value));
      line("if constexpr (Fold::SINGLE) " + fmt::format(fmt::runtime(fold), 1, "at.block, at.unit"));
      pass_ += fmt::format("    if constexpr (Fold::BEHIND) pass_columns<{}, Fold::WHOLE>(columns{}, block, unit);\n", mode, j);
      end_units_ +=
          fmt::format("    if constexpr (Fold::BEHIND) Fold::fold_behind<{}>({}, columns{}, at.block, at.unit, piece.thread);\n",
                      mode, rows, j);
      end_chunk_ +=
          "    if constexpr (!Fold::SINGLE && !Fold::BEHIND) " + fmt::format(fmt::runtime(fold), "UNITS", "block, unit") + "\n";
      ending_.columns += fmt::format("    {}::store_columns({}, p, piece, {});\n", reducer, argument, rows);
    }
    state_ += fmt::format("  uint32 before{};\n", j);
    ending.arrive += fmt::format("    before{} = {}::arrive({}, p, piece, {});\n", j, reducer, argument, words);
    ending.tell += fmt::format("      {}::tell(before{}, {});\n", reducer, j, words);
    ending.finish +=
        fmt::format("    if (load_float({} + 16) != 0.0f) {}::finish({}, p, piece, {});\n", words, reducer, argument, words);
    clear_ += fmt::format("    {}::clear({}, p, t);\n", reducer, argument);
  }

  /// By which one thread of the piece does something.
  static std::string by_one(const std::string& text) {
    return text.empty() ? text : "    if (threadIdx.x % 128 == 0) {\n" + text + "    }\n";
  }
  /// What follows the last unit of a piece, or of all pieces: partial results to memory, and the result by who came last. Before
  /// that the piece arrives.
  struct Ending {
    std::string rows, fold, columns, partials, arrive, tell, finish;
    std::string text() const {
      if (arrive.empty()) return {};
      // Warps that multiply out of step would read a matrix once each.
      const std::string sync = "    consumer_sync(piece.consumer);\n", stores = columns + by_one(partials);
      return "    if constexpr (LATE) {\n" + rows + arrive + "    }\n" + by_one(tell) + fold + sync + stores +
             (stores.empty() ? stores : sync) + finish;
    }
  };

  void write_text() {
    std::string members, copies;
    if (c_.grouping.combines()) {
      const int role = c_.grouping.score_role, slot = slot_in(plan_.aux, role);
      copies += fmt::format(
          "  VG_DEVICE float score(int token, int slot) const {{\n    const Aux& s = a.aux[{0}];\n    return "
          "{1}::value({1}::load("
          "static_cast<const char*>(s.address) + (token * s.row_stride + slot * s.col_stride) * {1}::BYTES, true));\n  }}\n",
          slot, slot_name(type_of(role)));
    }
    if (!plan_.maps.empty()) members += fmt::format(" TensorMap map[{}];", 3 * plan_.maps.size());
    if (!plan_.aux.empty()) members += fmt::format(" Aux aux[{}];", plan_.aux.size());
    if (!plan_.reductions.empty()) members += fmt::format(" Reduction reduction[{}];", plan_.reductions.size());
    if (!plan_.scalars.empty()) members += fmt::format(" float scalar[{}];", plan_.scalars.size());
    plan_.text.arguments = "struct EpilogueArguments {" + members + " };";
    const std::string words = fmt::format("    const uint32 words = piece.scratch + {} * 16 * Config::BLOCK_N;\n", columns_);
    const auto with_words = [&words](const std::string& text) { return text.empty() ? text : words + text; };
    const std::string start = with_words(start_), end = with_words(keep_ + ending_.text()),
                      finish = pads_ + with_words(last_.arrive + last_.text());
    if (!ending_.arrive.empty()) begin_ = words + "    if constexpr (!LATE) {\n" + ending_.arrive + "    }\n" + begin_;
    if (!plan_.maps.empty())
      copies +=
          "  VG_DEVICE const TensorMap* map(int which, int width) const {\n"
          "    return &a.map[3 * which + (width == 128 ? 0 : width == 64 ? 1 : 2)];\n  }\n";
    if (staged_.tile.role >= 0)
      copies += fmt::format("  VG_DEVICE int tile_batch(int batch) const {{ return a.aux[{}].batch_stride != 0 ? batch : 0; }}\n",
                            tile_slot_);
    if (c_.grouping.zero_fill) copies += fmt::format("  VG_DEVICE void pass_row(int row) const {{\n{}  }}\n", pass_row_);
    if (!store_further_.empty())
      copies += fmt::format(
          "  VG_DEVICE void store_further(bool leader, uint32 chunk, int width, int batch, int row, int col) const {{\n{}  }}\n",
          store_further_);
    if (in_runs_)
      copies += fmt::format(
          "  static constexpr int COPIES = {};  // of a slot\n  /// Warp turn + i * step issues the i-th.\n"
          "  VG_DEVICE void store_runs(bool leads, int turn, int step, uint32 slot, int batch, int row, int pair, int end, "
          "bool whole, uint32 places) const {{\n"
          "    [[maybe_unused]] const int warp = static_cast<int>(threadIdx.x) / 32 % 4;\n{}  }}\n"
          "  VG_DEVICE bool has_rests() const {{\n    bool has = false;\n    if constexpr (Layout<Config>::SPREADS) {{\n{}    "
          "}}\n    "
          "return has;\n  }}\n"
          "  VG_DEVICE void store_rests(uint32 slot, int batch, int row, int pair) const {{\n{}  }}\n",
          runs_stored_, store_runs_, has_rests_, store_rests_);
    plan_.text.body = fmt::format(
        "struct Epilogue {{\n"
        "  // Behind ping-pong nothing goes to memory before the last of the copy engine's fences, which would wait for it.\n"
        "  static constexpr bool LATE = Config::PINGPONG && Config::LOADS_TILE;\n"
        "  static constexpr int WORDS = 4 * (Config::COLUMN_REDUCTIONS * 4 * Config::BLOCK_N + 8 * "
        "Config::REDUCTIONS);\n"
        "  using Fold = Folds<Config>;\n  static constexpr int STEP = Fold::STEP;\n  const Parameters& p;\n  const "
        "EpilogueArguments& a;\n  "
        "TilePiece piece;\n{}"
        "  VG_DEVICE Epilogue(const Parameters& parameters, const EpilogueArguments& arguments) : p(parameters), a(arguments) "
        "{{}}\n"
        "  VG_DEVICE void load_ahead(const TilePiece& t) {{\n{}  }}\n"
        "  VG_DEVICE void begin(const TilePiece& t) {{\n    piece = t;\n{}  }}\n"
        "  VG_DEVICE void begin_rows() {{\n{}  }}\n"
        "{}  VG_DEVICE void {} {{\n{}  }}\n"
        "  VG_DEVICE void fetch(const Place& at, int unit) {{\n{}  }}\n"
        "  template <int COUNT>\n  VG_DEVICE void absorb(const Position& at) {{\n{}  }}\n"
        "  VG_DEVICE void end_units(const Position& at) {{\n{}  }}\n"
        "  VG_DEVICE void begin_chunk() {{\n{}  }}\n"
        "  VG_DEVICE void pass(int block, int unit) {{\n{}  }}\n"
        "  template <int UNITS>\n  VG_DEVICE void end_chunk(int block, int unit) {{\n{}  }}\n"
        "  VG_DEVICE void end_rows(int block) {{\n{}  }}\n"
        "  VG_DEVICE void end() {{\n{}  }}\n"
        "  VG_DEVICE void start(const TilePiece& t) {{\n    piece = t;\n{}  }}\n"
        "  VG_DEVICE void finish(const TilePiece& t) {{\n    piece = t;\n{}  }}\n"
        "  VG_DEVICE void clear(const TilePiece& t) {{\n{}  }}\n{}}};",
        state_, load_ahead_, begin_, begin_rows_, has_rope(c_) ? "  template <class Next>\n" : "",
        has_rope(c_) ? "chunk(const Rope::Words& words, int batch, int row, int col, const Next& fetch_next) const"
                     : fmt::format("unit(float (&r)[{}][8], const Position& at)", c_.gemms.size()),
        body_, fetch_, absorb_, end_units_, begin_chunk_, pass_, end_chunk_, end_rows_, end, start, finish, clear_, copies);
  }

  void step(const chain::Step& s) {
    for (const int input : s.input)
      if (input >= 0 && s.mode != PointwiseMode::gen_index) need(input);
    const DataType type = c_.values[static_cast<std::size_t>(s.value)].dtype;
    const bool integer = s.compute == DataType::int32;
    std::string operands;
    constexpr std::string_view names = "xyz";
    for (std::size_t k = 0; k < 3 && s.input[k] >= 0 && s.mode != PointwiseMode::gen_index; ++k)
      operands += integer && !is_int(s.input[k]) ? fmt::format("const int {} = nearest_int(v{}[i]); ", names[k], s.input[k])
                  : integer                      ? fmt::format("const int {} = v{}[i]; ", names[k], s.input[k])
                  : is_int(s.input[k]) ? fmt::format("const float {} = static_cast<float>(v{}[i]); ", names[k], s.input[k])
                                       : fmt::format("const float {} = v{}[i]; ", names[k], s.input[k]);
    declare(s.value);
    const std::string result = integer ? int_expression(s.mode, s.parameters) : float_expression(s.mode, s.parameters);
    loop(fmt::format("{{ {}v{}[i] = {}; }}", operands, s.value, rounded(before_pairs(type), integer, result)));
    round(s.value);
    made_[static_cast<std::size_t>(s.value)] = true;
  }

  const FusionChain& c_;
  StagedRoles staged_;
  EpiloguePlan plan_;
  std::vector<bool> made_;
  std::string body_;
  int quantised_ = 0, column_quantisers_ = 0;
  int columns_ = 0;                    ///< reductions that lie in shared memory
  std::vector<int> vectors_, second_;  ///< roles of operands that do; their values of the second run
  int tile_slot_ = 0;
  bool in_runs_ = false;
  int runs_stored_ = 0;
  int run_bytes_ = 0;  ///< of a slot, as far as outputs have their place in it
  std::string state_, load_ahead_, store_further_, store_runs_, has_rests_, store_rests_, fetch_, absorb_, end_units_,
      begin_chunk_, pass_, pass_row_, end_chunk_, begin_, begin_rows_, end_rows_, pads_, start_, keep_, clear_;
  Ending ending_, last_;
};

}  // namespace

int slot_in(std::vector<int>& roles, int role) {
  const auto it = std::find(roles.begin(), roles.end(), role);
  if (it != roles.end()) return static_cast<int>(it - roles.begin());
  roles.push_back(role);
  return static_cast<int>(roles.size()) - 1;
}

Result<EpiloguePlan> epilogue_of(const FusionChain& c) {
  if (c.reductions.size() > kMaxReductions)
    return decline(Rule::sm90_epilogue, std::to_string(c.reductions.size()) + " reductions");
  for (const chain::Reduction& r : c.reductions) {
    const std::string name = label_of(c, c.roles[static_cast<std::size_t>(r.role)]);
    if (r.compute != DataType::fp32)
      return decline(Rule::sm90_epilogue, name + " computes in " + std::string(name_of(r.compute)));
    if (!r.reduces[1] && !r.reduces[2]) return decline(Rule::sm90_epilogue, name + " keeps both rows and columns");
  }
  if (auto fault = fault_of_prologues(c)) return tl::unexpected<Decline>(*std::move(fault));
  for (const chain::Store& s : c.stores) {
    const DataType t = c.operands[static_cast<std::size_t>(c.roles[static_cast<std::size_t>(s.role)].operand)].dtype;
    if (!is_output_type(t)) return decline(Rule::sm90_types, "an output is " + std::string(name_of(t)));
  }
  for (const chain::Value& v : c.values) {
    if (v.kind != ValueKind::constant && slot_name(v.dtype).empty())
      return decline(Rule::sm90_epilogue, "tensor '" + v.name + "' is " + std::string(name_of(v.dtype)));
  }
  const auto is_summed_so = [&](const chain::Store& s) {
    return (c.gemms[0].accumulate == DataType::int32) == (c.values[static_cast<std::size_t>(s.value)].dtype == DataType::int32);
  };
  const bool plain = !c.grouping.combines() && !std::ranges::any_of(c.stores, &chain::Store::accumulate) && c.steps.empty() &&
                     c.gemms.size() == 1 && c.stores.size() == 1 && c.reductions.empty() && c.quantised.empty() &&
                     is_summed_so(c.stores[0]) && first_input(c, 0).prologue.empty() && first_input(c, 1).prologue.empty() &&
                     !has_scales(c);
  if (plain) return EpiloguePlan{};
  return Generator(c).run();
}

EpiloguePlan epilogue_of_runs(const FusionChain& c) {
  const RunChain runs = in_runs(c);
  return Generator(runs.chain).run(&runs);
}

int vectors_of(const FusionChain& c) noexcept {
  std::vector<int> roles;
  for (const chain::Value& v : c.values)
    if (v.kind == ValueKind::aux && !v.varies[1] && v.varies[2] && std::ranges::find(roles, v.source) == roles.end())
      roles.push_back(v.source);
  return static_cast<int>(roles.size());
}

int quantiser_of_amax(const FusionChain& c, const chain::Reduction& r) noexcept {
  if (r.mode != ReductionMode::amax || !r.reduces[1] || !r.reduces[2]) return -1;
  const auto found = std::ranges::find_if(
      c.quantised, [&](const chain::Quantise& q) { return q.value == r.value && !q.along_m && q.scale_role >= 0; });
  return found == c.quantised.end() ? -1 : static_cast<int>(found - c.quantised.begin());
}

}  // namespace verglas::sm90
