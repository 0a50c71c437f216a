#include <algorithm>

#include "engine/sm90/engine.hpp"
#include "engine/sm90/exchange.hpp"
#include "engine/sm90/problem.hpp"
#include "engine/sm90/prologue.hpp"
#include "engine/sm90/runs.hpp"
#include "support/feature_graph.hpp"

namespace support {
namespace {

using namespace verglas;

class Lister {
 public:
  Lister(const chain::FusionChain& c, const Knobs& knobs)
      : c_(sm90::seen_chain(c, knobs)), k_(sm90::configuration_of(c, knobs)), exchanged_(sm90::exchanges(knobs)) {}

  std::vector<std::string> run() {
    add("tile", std::to_string(k_.block_m) + "x" + std::to_string(k_.block_n) +
                    (k_.schedule == sm90::Schedule::pingpong ? "pp" : "c" + std::to_string(k_.consumers)));
    if (k_.split > 1) add("split", "");
    if (exchanged_) add("exchanged", "");
    if (k_.programmatic) add("programmatic", "");
    const bool carries = k_.held && k_.carried;
    matrix("A", 0, k_.a_path, k_.a_major, k_.a_turned, k_.a_decoded, k_.casts || k_.held);
    matrix("B", 1, k_.b_path, k_.b_major, k_.b_turned, k_.b_decoded, false);
    add("input", std::string(name_of(k_.input)));
    if (k_.input_b != DataType::not_set) add("two types", "");
    add("producers", std::to_string(k_.producers));
    if (k_.held || k_.casts) add("registers", k_.casts ? "casts" : carries ? "carried" : "held");
    if (k_.scaled) add("sums", "scaled");
    if (k_.promoted && !k_.scaled) add("sums", "promoted");
    if (k_.gemms > 1) add("products", std::to_string(k_.a_count) + std::to_string(k_.b_count));
    if (c_.declared[0] > 1 && k_.groups == 0) add("batch", "");
    outputs();
    operands();
    for (const chain::Reduction& r : c_.reductions)
      add(std::string("reduction") + (r.reduces[0] ? "L" : "") + (r.reduces[1] ? "M" : "") + (r.reduces[2] ? "N" : ""), "");
    if (c_.reductions.size() > 1) add("reductions", "");
    for (const chain::Quantise& q : c_.quantised)
      add(q.along_m ? "quantised M" : "quantised N",
          std::to_string(q.block) + (type_of(q.role) == DataType::fp4_e2m1 ? "fp4" : "fp8") +
              (q.scale_role < 0                                                  ? " unscaled"
               : c_.roles[static_cast<std::size_t>(q.scale_role)].is_interleaved ? ""
                                                                                 : " plain"));
    if (c_.quantised.size() > 1) add("quantisers", "");
    if (k_.run_bytes > 0) add(k_.rotates ? "rotates" : "runs", "");
    groups();
    std::sort(all_.begin(), all_.end());
    all_.erase(std::unique(all_.begin(), all_.end()), all_.end());
    return std::move(all_);
  }

 private:
  void add(const std::string& what, const std::string& which) { all_.push_back(what + "=" + which); }
  DataType type_of(int role) const {
    return c_.operands[static_cast<std::size_t>(c_.roles[static_cast<std::size_t>(role)].operand)].dtype;
  }

  void matrix(const std::string& side, int which, sm90::Path path, sm90::Major major, bool turned, int decoded,
              bool in_registers) {
    const chain::MatrixInput& in = sm90::first_input(c_, which);
    add(side + " path", std::to_string(sm90::piece_bytes(path)) + (turned ? " turned" : major == sm90::Major::mn ? " mn" : ""));
    if (in.scale_role >= 0) {
      const chain::Role& r = c_.roles[static_cast<std::size_t>(in.scale_role)];
      add(side + " scales",
          std::string(name_of(type_of(in.scale_role))) + std::to_string(r.block) + (r.is_interleaved ? "" : " plain"));
    }
    if (decoded != 0 && !in_registers) add(side + " decoded", std::to_string(decoded));
    if (!in.prologue.empty()) add(side + " converted", in.prologue[0].mode == PointwiseMode::identity ? "cast" : "steps");
    const chain::Role& role = c_.roles[static_cast<std::size_t>(in.role)];
    if (k_.groups == 0 && c_.declared[0] > 1 && role.symbol[0] == chain::Symbol::one) add(side + " broadcast", "");
  }

  void outputs() {
    if (k_.has_d) {
      add("D", std::to_string(bytes_of(k_.output)) + (k_.d_along_m ? " along M" : ""));
      add("D path", std::to_string(sm90::piece_bytes(k_.d_path)));
    } else {
      add("D", "none");
    }
    const sm90::StagedRoles staged = sm90::staged_roles(c_);
    if (k_.loads_tile) add("tile operand", "");
    for (int i = 0; i < staged.further_count; ++i)
      add("further", staged.further[static_cast<std::size_t>(i)].shrink > 1 ? "half" : "whole");
    if (k_.run_bytes == 0 && c_.stores.size() > 1U + static_cast<std::size_t>(k_.further_outputs)) add("stored by threads", "");
  }

  void operands() {
    const int staged = sm90::staged_roles(c_).tile.role;
    for (const chain::Value& v : c_.values) {
      if (v.kind != chain::ValueKind::aux || v.source == staged) continue;
      if (c_.roles[static_cast<std::size_t>(v.source)].kind == chain::RoleKind::host_scalar) {
        add("host scalar", "");
        continue;
      }
      add(std::string("operand ") + (v.varies[0] ? "L" : "") + (v.varies[1] ? "M" : "") + (v.varies[2] ? "N" : ""), "");
    }
  }

  void groups() {
    if (k_.groups == 0) return;
    add("groups", k_.depth_groups ? (k_.accumulates ? "added" : "gradient")
                  : k_.gathers    ? "gather"
                  : k_.scatters   ? "scatter"
                                  : "rows");
    if (k_.addressed != 0) {
      const bool in_tensor = k_.addressed + 1 != 1 << k_.b_count;
      const bool has_tables = std::ranges::any_of(c_.inputs, [](const chain::MatrixInput& in) { return in.scale_table >= 0; });
      add("by address", in_tensor ? "one of two" : has_tables ? "and scales" : "");
    }
    if (k_.zero_fill) add("zero fill", "");
    if (k_.claims) add("claims", "");
    if (k_.tail_rows != 0) add("tail rows", "");
    if (k_.wide_offsets) add("wide offsets", "");
    if (k_.offsets_are_ends) add("ends", "");
  }

  const chain::FusionChain c_;
  const sm90::KernelConfig k_;
  const bool exchanged_;
  std::vector<std::string> all_;
};

}  // namespace

std::vector<std::string> features_of(const chain::FusionChain& chain, const Knobs& knobs) { return Lister(chain, knobs).run(); }

}  // namespace support
