#pragma once
#include <algorithm>
#include <utility>

#include "numeric/block_scale.hpp"
#include "recipe/recipe.hpp"

/// The one evaluator of the list of checks. `Report` decides what a failed check means:
///   Status report(int check, words)   words() → {got, want}; never called by the guard, so rendering costs it nothing
/// Hazard: checks fill the binding as they go; each reads only what those before it have filled.
namespace verglas::recipe {

struct Words {
  std::string got, want;
};

namespace detail {

std::string extents_text(const TensorView& v);
std::string extents_text(const std::int64_t (&canonical)[3], const RoleFact& f, const TensorView& v);
std::string strides_text(const TensorView& v);
std::string device_text(Device d);
std::string address_text(const void* p);
std::string axis_text(const RoleFact& f, int canonical);

inline bool is_empty(const TensorView& v, const Recipe& r, std::size_t operand) noexcept {
  if (v.is_bare()) {
    const RoleFact& f = r.roles[r.operands[operand].first_role];
    return f.extent[0] == 0 || f.extent[1] == 0 || f.extent[2] == 0;
  }
  for (int i = 0; i < v.rank && i < kMaxRank; ++i)
    if (v.extent[static_cast<std::size_t>(i)] == 0) return true;
  return false;
}

inline void bind_declared(const RoleFact& f, void* data, RoleView& out) noexcept {
  out.data = static_cast<char*>(data);
  for (int i = 0; i < 3; ++i) {
    out.extent[i] = f.extent[static_cast<std::size_t>(i)];
    out.stride[i] = f.stride[static_cast<std::size_t>(i)];
  }
}

/// Rank 2 or 3; the batch of rank 2 is 1. B in kernel order lists (b, N, K).
[[gnu::always_inline]] inline void bind_matrix(const RoleFact& f, const TensorView& v, RoleView& out) noexcept {
  out.data = static_cast<char*>(v.data);
  const bool swapped = f.kind == RoleKind::b && v.order == AxisOrder::kernel;
  const int row = swapped ? 2 : f.from_end[1];
  const int column = swapped ? 1 : f.from_end[2];
  const auto at = [&](int from_end) { return static_cast<std::size_t>(v.rank - from_end); };
  const bool batched = v.rank == 3;
  out.extent[0] = batched ? v.extent[0] : 1;
  out.stride[0] = batched ? v.stride[0] : 0;
  out.extent[1] = v.extent[at(row)];
  out.stride[1] = v.stride[at(row)];
  out.extent[2] = v.extent[at(column)];
  out.stride[2] = v.stride[at(column)];
}

/// Extents other than 1 are the wanted ones in order; axes that are 1 may be there or not, with any stride.
inline bool bind_aux(const std::int64_t (&want)[3], const TensorView& v, RoleView& out) noexcept {
  out.data = static_cast<char*>(v.data);
  if (v.rank == 3 && ((v.extent[0] ^ want[0]) | (v.extent[1] ^ want[1]) | (v.extent[2] ^ want[2])) == 0) {
    for (std::size_t i = 0; i < 3; ++i) {
      out.extent[i] = want[i];
      out.stride[i] = want[i] == 1 ? 0 : v.stride[i];
    }
    return true;
  }
  int axis = 0;
  for (int i = 0; i < 3; ++i) {
    out.extent[i] = want[i];
    out.stride[i] = 0;
    if (want[i] == 1) continue;
    while (axis < v.rank && v.extent[static_cast<std::size_t>(axis)] == 1) ++axis;
    if (axis == v.rank || v.extent[static_cast<std::size_t>(axis)] != want[i]) return false;
    out.stride[i] = v.stride[static_cast<std::size_t>(axis++)];
  }
  while (axis < v.rank && v.extent[static_cast<std::size_t>(axis)] == 1) ++axis;
  return axis == v.rank;
}

/// No element: nothing is read, so strides mean nothing.
inline bool is_void(const RoleView& v) noexcept { return v.extent[0] == 0 || v.extent[1] == 0 || v.extent[2] == 0; }

/// `reach_of` for any extents and strides.
[[gnu::noinline]] inline std::int64_t far_reach_of(const RoleView& v, std::int64_t slot_bytes) noexcept {
  if (v.extent[0] < 0 || v.extent[1] < 0 || v.extent[2] < 0) return -1;
  if (is_void(v)) return 0;
  std::int64_t elements = 1;
  bool over = false;
  for (int i = 0; i < 3; ++i) {
    std::int64_t step = 0;
    if (v.extent[i] > 1) over |= __builtin_mul_overflow(v.extent[i] - 1, v.stride[i], &step);
    over |= __builtin_add_overflow(elements, step, &elements);
  }
  over |= __builtin_mul_overflow(elements, slot_bytes, &elements);
  return over ? -1 : elements;
}

/// Bytes from the first element to the end of the last; −1 when that does not fit, or an extent is negative.
[[gnu::always_inline]] inline std::int64_t reach_of(const RoleView& v, std::int64_t slot_bytes) noexcept {
  constexpr std::uint64_t kSmall = std::uint64_t{1} << 29;  // three products of such, in elements of 8 bytes, fit 63 bits
  const std::int64_t x = v.extent[0] - 1, y = v.extent[1] - 1, z = v.extent[2] - 1;  // below 0 for an empty view: not small
  if (static_cast<std::uint64_t>(x | y | z | v.stride[0] | v.stride[1] | v.stride[2]) < kSmall) [[likely]]
    return (1 + x * v.stride[0] + y * v.stride[1] + z * v.stride[2]) * slot_bytes;
  return far_reach_of(v, slot_bytes);
}

/// Sorted by stride, each stride passes the reach of the smaller ones. Up to four axes.
[[gnu::noinline]] inline bool is_injective_in_some_order(const std::int64_t* extent, const std::int64_t* stride,
                                                         int axes) noexcept {
  std::int64_t s[4], e[4];
  int n = 0;
  for (int i = 0; i < axes; ++i) {
    if (extent[i] <= 1) continue;
    int at = n++;
    for (; at > 0 && s[at - 1] > stride[i]; --at) {
      s[at] = s[at - 1];
      e[at] = e[at - 1];
    }
    s[at] = stride[i];
    e[at] = extent[i];
  }
  std::int64_t reach = 0;
  for (int i = 0; i < n; ++i) {
    if (s[i] <= reach) return false;
    reach += (e[i] - 1) * s[i];
  }
  return true;
}

/// The same, where the strides mostly are in order already: of rows.
inline bool is_injective(const RoleView& v) noexcept {
  std::int64_t reach = 0;
  for (int i = 2; i >= 0; --i) {
    if (v.extent[i] <= 1) continue;
    if (v.stride[i] <= reach) return is_injective_in_some_order(v.extent, v.stride, 3);
    reach += (v.extent[i] - 1) * v.stride[i];
  }
  return true;
}

inline bool disjoint(const RoleView& x, const RoleView& y) noexcept {
  if (x.reach == 0 || y.reach == 0) return true;
  const auto a = reinterpret_cast<std::uintptr_t>(x.data);
  const auto b = reinterpret_cast<std::uintptr_t>(y.data);
  return a + static_cast<std::uintptr_t>(x.reach) <= b || b + static_cast<std::uintptr_t>(y.reach) <= a;
}

/// Two stored roles of one layout that together are one tensor with one more axis, of extent 2, and no two elements in one place.
inline bool interleaved(const RoleFact& f, const RoleView& x, const RoleFact& g, const RoleView& y) noexcept {
  const auto is_stored = [](const RoleFact& r) { return r.kind == RoleKind::output || r.kind == RoleKind::reduction; };
  if (!is_stored(f) || !is_stored(g) || f.slot_bytes != g.slot_bytes || f.is_packed || g.is_packed) return false;
  for (int i = 0; i < 3; ++i)
    if (x.extent[i] != y.extent[i] || (x.extent[i] > 1 && x.stride[i] != y.stride[i])) return false;
  const std::int64_t bytes = x.data < y.data ? y.data - x.data : x.data - y.data;
  if (bytes % f.slot_bytes != 0) return false;
  const std::int64_t extent[4] = {x.extent[0], x.extent[1], x.extent[2], 2};
  const std::int64_t stride[4] = {x.stride[0], x.stride[1], x.stride[2], bytes / f.slot_bytes};
  return is_injective_in_some_order(extent, stride, 4);
}

/// Rows of scores (rows, slots), unit axes left out or not; −1 where they have other extents.
inline std::int64_t rows_of_scores(const RoleFact& f, const TensorView& v) noexcept {
  std::int64_t elements = 1;
  for (std::size_t i = 0; i < static_cast<std::size_t>(v.rank); ++i)
    if (v.extent[i] < 0 || __builtin_mul_overflow(elements, v.extent[i], &elements)) return -1;
  RoleView unused;
  return bind_aux({1, elements / f.extent[2], f.extent[2]}, v, unused) ? elements / f.extent[2] : -1;
}

/// Elements of a role of one axis, rows of scores; −1 where it has more axes than that one, or extents that mean nothing.
inline std::int64_t elements_of(const RoleFact& f, const TensorView& v) noexcept {
  if (v.is_bare()) return f.extent[0] * f.extent[1];
  if (v.rank < 0 || v.rank > kMaxRank) return -1;
  if (f.kind == RoleKind::token_score) return rows_of_scores(f, v);
  std::int64_t n = 1;
  for (std::size_t i = 0; i < static_cast<std::size_t>(v.rank); ++i) {
    if (v.extent[i] == 1) continue;
    if (v.extent[i] < 0 || n != 1) return -1;
    n = v.extent[i];
  }
  return n;
}

/// Elements of a dense run in any order of axes; −1 where there are gaps or repeats, or extents that mean nothing.
inline std::int64_t dense_elements(const TensorView& v) noexcept {
  std::int64_t elements = 1, last = 0;
  bool over = v.rank < 1 || v.rank > kMaxRank, none = false;
  for (std::size_t i = 0; !over && i < static_cast<std::size_t>(v.rank); ++i) {
    over = v.extent[i] < 0;
    none |= v.extent[i] == 0;
  }
  if (over || none) return over ? -1 : 0;
  for (std::size_t i = 0; i < static_cast<std::size_t>(v.rank); ++i) {
    if (v.extent[i] == 1) continue;
    std::int64_t step = 0;
    over |= v.stride[i] < 0 || __builtin_mul_overflow(elements, v.extent[i], &elements) ||
            __builtin_mul_overflow(v.extent[i] - 1, v.stride[i], &step) || __builtin_add_overflow(last, step, &last);
  }
  return over || last != elements - 1 ? -1 : elements;
}

/// (batch, rows, blocks) of the scales of a role under the live extents.
inline void scale_extents(const RoleFact& f, const std::int64_t (&live)[kSymbols], std::int64_t (&out)[3]) noexcept {
  for (std::size_t i = 0; i < 3; ++i) out[i] = live[static_cast<std::size_t>(f.symbol[i])];
  out[2] = numeric::scale_columns(out[2], f.block);
  if (f.is_by_group) out[1] = numeric::grouped_scale_rows(out[1], live[static_cast<std::size_t>(Symbol::g)]);
}

inline std::string rows_text(const RoleFact& f, const std::int64_t (&live)[kSymbols]) {
  const std::string rows = std::to_string(live[static_cast<std::size_t>(f.symbol[1])]) + " rows";
  return f.is_by_group ? rows + " in " + std::to_string(live[static_cast<std::size_t>(Symbol::g)]) + " groups" : rows;
}

/// Plain scales, whose axes lie as those of their matrix: their extents are the wanted ones, unit axes left out or not.
inline bool bind_scale(const RoleFact& f, const std::int64_t (&want)[3], const TensorView& v, RoleView& out) noexcept {
  const bool swapped = f.from_end[1] < f.from_end[2];  // blocks before rows
  const std::int64_t declared[3] = {want[0], want[swapped ? 2 : 1], want[swapped ? 1 : 2]};
  if (v.rank < 0 || v.rank > kMaxRank || !bind_aux(declared, v, out)) return false;
  if (swapped) {
    std::swap(out.extent[1], out.extent[2]);
    std::swap(out.stride[1], out.stride[2]);
  }
  return true;
}

}  // namespace detail

/// Runs a list of the recipe; answers report's status for the first check that fails, ok when none does.
///
/// Checks of one kind stand together in the list, so that each kind has its loop and few jumps depend on data. What passes is
/// told by as few comparisons as can be; exceptions, such as strides of axes of extent 1, are looked at only after those.
template <class Report>
Status evaluate(const Recipe& r, const Check* list, const Launcher& launcher, const Call& call, Binding& b, Report&& report) {
  using namespace detail;
  constexpr std::int64_t kExtentLimit = std::int64_t{1} << 31;
  const RoleFact* const facts = r.roles.data();
  const OperandFact* const operands = r.operands.data();
  const TensorView* const views = call.buffers.data();
  RoleView* const roles = b.role;
  const Check* c = list;
  const auto fail = [&](auto&& words) { return report(static_cast<int>(c->index), words); };
  const auto more = [&](CheckKind kind) { return (++c)->kind == kind; };
  const auto live_of = [&](const RoleFact& f, std::size_t axis) { return b.live[static_cast<std::size_t>(f.symbol[axis])]; };
  for (;;) {
    if (c->kind > CheckKind::end) __builtin_unreachable();  // lists come from `build`
    switch (c->kind) {
      case CheckKind::end: return Status{};
      case CheckKind::count:
        if (call.buffers.size() != r.operands.size()) [[unlikely]]
          return fail([&] { return Words{std::to_string(call.buffers.size()) + " buffers", std::to_string(r.operands.size())}; });
        ++c;
        break;
      case CheckKind::plan_device: {
        const Device now = launcher.current_device(r.device, b.is_ready);
        if (now != r.device) [[unlikely]]
          return fail([&] { return Words{"current device " + device_text(now), device_text(r.device)}; });
        ++c;
        break;
      }
      case CheckKind::present:
        do {
          const TensorView& v = views[c->role];
          if (v.data == nullptr && !is_empty(v, r, c->role)) [[unlikely]]
            return fail([&] { return Words{"a null address for extents " + extents_text(v), "an address"}; });
        } while (more(CheckKind::present));
        break;
      case CheckKind::writable:
        do {
          if (views[c->role].read_only) [[unlikely]]
            return fail([&] { return Words{"a read-only buffer", "one that can be written"}; });
        } while (more(CheckKind::writable));
        break;
      case CheckKind::rank:
        do {
          const RoleFact& f = facts[c->role];
          const TensorView& v = views[f.operand];
          if (v.rank == 2 || v.rank == 3) [[likely]]
            bind_matrix(f, v, roles[c->role]);
          else if (v.is_bare())
            bind_declared(f, v.data, roles[c->role]);
          else
            return fail([&] {
              return Words{"rank " + std::to_string(v.rank) + " from shape " + extents_text(v),
                           "rank 3, or 2 where the batch is 1"};
            });
        } while (more(CheckKind::rank));
        break;
      case CheckKind::device:
        do {
          const TensorView& v = views[c->role];
          const Device want = operands[c->role].device;
          if (v.device == want) [[likely]]
            continue;
          const bool fits = v.device.type == DeviceType::unknown ||
                            (v.device.type == want.type && (want.type == DeviceType::cpu || v.device.id == want.id));
          if (!fits) return fail([&] { return Words{"memory on " + device_text(v.device), "memory on " + device_text(want)}; });
        } while (more(CheckKind::device));
        break;
      case CheckKind::dtype:
        do {
          const TensorView& v = views[c->role];
          const DataType want = operands[c->role].dtype;
          if (v.dtype != want && !v.is_bare() && !(v.dtype == DataType::uint8 && is_fp8(want))) [[unlikely]]
            return fail([&] { return Words{std::string(name_of(v.dtype)), std::string(name_of(want)) + " as declared"}; });
        } while (more(CheckKind::dtype));
        break;
      case CheckKind::major:
        do {
          const RoleView& v = roles[c->role];
          if (v.stride[c->a] != 1 && v.extent[c->a] > 1 && !is_void(v)) [[unlikely]]
            return fail([&] {
              const RoleFact& f = facts[c->role];
              const TensorView& u = views[f.operand];
              return Words{"stride " + std::to_string(v.stride[c->a]) + " along " + axis_text(f, c->a) + " from shape " +
                               extents_text(u) + " with strides " + strides_text(u),
                           "stride 1 along it, as declared"};
            });
        } while (more(CheckKind::major));
        break;
      case CheckKind::modulus:
        do {
          const RoleView& v = roles[c->role];
          if ((v.extent[c->a] & (c->b - 1)) != 0) [[unlikely]]
            return fail([&] {
              return Words{axis_text(facts[c->role], c->a) + " = " + std::to_string(v.extent[c->a]),
                           "a multiple of " + std::to_string(c->b)};
            });
        } while (more(CheckKind::modulus));
        break;
      case CheckKind::stride_sign:
        do {
          const RoleView& v = roles[c->role];
          if ((v.stride[0] | v.stride[1] | v.stride[2]) >= 0) [[likely]]
            continue;
          for (int i = 0; i < 3; ++i)
            if (v.extent[i] > 1 && v.stride[i] < 0 && !is_void(v))
              return fail([&] { return Words{"strides " + strides_text(views[facts[c->role].operand]), "none below 0"}; });
        } while (more(CheckKind::stride_sign));
        break;
      case CheckKind::pitch:
        do {
          const RoleView& v = roles[c->role];
          const int beside = 3 - c->a;
          if (v.stride[beside] >= v.extent[c->a] || v.extent[beside] <= 1 || is_void(v)) [[likely]]
            continue;
          return fail([&] {
            const RoleFact& f = facts[c->role];
            return Words{"stride " + std::to_string(v.stride[beside]) + " along " + axis_text(f, beside) + " from shape " +
                             extents_text(views[f.operand]),
                         "at least " + axis_text(f, c->a) + " = " + std::to_string(v.extent[c->a])};
          });
        } while (more(CheckKind::pitch));
        break;
      case CheckKind::outer_stride:
        do {
          const RoleView& v = roles[c->role];
          const std::int64_t slot =
              facts[c->role].slot_bytes;  // a power of two, as the multiple is: bits of the sum of strides tell
          const auto bits = static_cast<std::uint64_t>(v.stride[0] | v.stride[3 - c->a]);
          if (((bits * static_cast<std::uint64_t>(slot)) & (c->b - 1U)) == 0 && bits < (std::uint64_t{1} << 36)) [[likely]]
            continue;
          for (int i = 0; i < 3; ++i) {
            if (i == c->a || v.extent[i] <= 1 || is_void(v)) continue;
            std::int64_t bytes = 0;
            if (__builtin_mul_overflow(v.stride[i], slot, &bytes) || (bytes & (c->b - 1)) != 0 ||
                (c->other != 0 && bytes >= (std::int64_t{1} << 40)))
              return fail([&] {
                const bool halves = facts[c->role].is_packed;  // two elements in a byte
                return Words{"a stride of " + std::to_string(v.stride[i]) + " elements of " +
                                 (halves ? std::string("half a byte") : std::to_string(slot) + " bytes") + " along " +
                                 axis_text(facts[c->role], i),
                             "a multiple of " + std::to_string(halves ? c->b / 2 : c->b) +
                                 (c->other != 0 ? " bytes below 2^40" : " bytes")};
              });
          }
        } while (more(CheckKind::outer_stride));
        break;
      case CheckKind::reach:
        do {
          RoleView& v = roles[c->role];
          v.reach = reach_of(v, facts[c->role].slot_bytes);
          if (v.reach < 0) [[unlikely]]
            return fail([&] {
              const TensorView& u = views[facts[c->role].operand];
              return Words{"shape " + extents_text(u) + " with strides " + strides_text(u),
                           "no negative extent and a byte offset below 2^63"};
            });
        } while (more(CheckKind::reach));
        break;
      case CheckKind::vector:
        do {
          const RoleFact& f = facts[c->role];
          const TensorView& v = views[f.operand];
          if (elements_of(f, v) < 0) [[unlikely]]
            return fail([&] {
              const bool has_slots = f.kind == RoleKind::token_score;
              return Words{"shape " + extents_text(v), has_slots ? "(tokens, " + std::to_string(f.extent[2]) + ")"
                                                                 : std::string("one axis, and others of extent 1")};
            });
        } while (more(CheckKind::vector));
        break;
      case CheckKind::live: {
        const RoleView& a = roles[r.first_a];
        const RoleView& m = roles[r.first_b];
        b.live[0] = 1;
        b.live[1] = r.first_l < 0 ? 1 : roles[r.first_l].extent[0];
        b.live[2] = a.extent[1];
        b.live[3] = m.extent[1];
        b.live[4] = a.extent[2];
        b.live[8] = m.extent[1] / 2;
        b.live[9] = r.fixed;
        if ((b.live[1] | b.live[2] | b.live[3] | b.live[4]) >= kExtentLimit) [[unlikely]]
          return fail([&] {
            return Words{"L = " + std::to_string(b.live[1]) + ", M = " + std::to_string(b.live[2]) +
                             ", N = " + std::to_string(b.live[3]) + ", K = " + std::to_string(b.live[4]),
                         "each below 2147483648"};
          });
        ++c;
        break;
      }
      case CheckKind::inner:
        if (b.live[4] == 0) [[unlikely]]
          return fail([] { return Words{"K = 0", "at least 1"}; });
        ++c;
        break;
      case CheckKind::runs:
        if (b.live[3] % (2 * chain::kRun) != 0) [[unlikely]]
          return fail([&] {
            return Words{"N = " + std::to_string(b.live[3]), "a multiple of " + std::to_string(2 * chain::kRun) +
                                                                 ": pairs of runs of " + std::to_string(chain::kRun)};
          });
        ++c;
        break;
      case CheckKind::heads:
        if (b.live[3] % r.head != 0) [[unlikely]]
          return fail([&] {
            return Words{"N = " + std::to_string(b.live[3]), "a multiple of " + std::to_string(r.head) + ": whole heads"};
          });
        ++c;
        break;
      case CheckKind::live_groups: {
        const auto count = [&](int role) { return elements_of(facts[role], views[facts[role].operand]); };
        b.live[5] = count(r.offsets);
        b.live[6] = r.experts < 0 ? 1 : facts[r.experts].kind == RoleKind::b ? roles[r.experts].extent[0] : count(r.experts);
        b.live[7] = roles[r.first_a].extent[1];
        if (r.row_list >= 0) b.live[2] = count(r.row_list);
        if (r.is_by_table) {
          b.live[3] = r.declared[2];
          b.live[4] = r.declared[3];
        }
        const std::int64_t all = b.live[5] | b.live[6] | b.live[2];
        if (all >= kExtentLimit || b.live[5] > r.most_groups) [[unlikely]]
          return fail([&] {
            return Words{std::to_string(b.live[5]) + " groups of " + std::to_string(b.live[2]) + " rows, " +
                             std::to_string(b.live[6]) + " experts",
                         all >= kExtentLimit ? "each below 2147483648" : "at most " + std::to_string(r.most_groups) + " groups"};
          });
        ++c;
        break;
      }
      case CheckKind::batch:
        do {
          const RoleView& v = roles[c->role];
          const std::int64_t want = live_of(facts[c->role], 0);
          if (v.extent[0] != want) [[unlikely]]
            return fail([&] {
              return Words{"batch " + std::to_string(v.extent[0]) + " from shape " + extents_text(views[facts[c->role].operand]),
                           "batch " + std::to_string(want)};
            });
        } while (more(CheckKind::batch));
        break;
      case CheckKind::extents:
        do {
          const RoleView& v = roles[c->role];
          const RoleFact& f = facts[c->role];
          const std::int64_t rest = (v.extent[1] ^ live_of(f, 1)) | (v.extent[2] ^ live_of(f, 2));
          if (rest == 0 && (c->a == 1 || v.extent[0] == live_of(f, 0))) [[likely]]
            continue;
          for (int i = c->a; i < 3; ++i)
            if (v.extent[i] != live_of(f, static_cast<std::size_t>(i)))
              return fail([&] {
                const std::int64_t want[3] = {live_of(f, 0), live_of(f, 1), live_of(f, 2)};
                const TensorView& u = views[f.operand];
                return Words{axis_text(f, i) + " = " + std::to_string(v.extent[i]) + " from shape " + extents_text(u),
                             std::to_string(want[i]) + " as in shape " + extents_text(want, f, u)};
              });
        } while (more(CheckKind::extents));
        break;
      case CheckKind::alignment:
        do {
          const RoleView& v = roles[c->role];
          if ((reinterpret_cast<std::uintptr_t>(v.data) & (c->b - 1U)) != 0 && v.reach > 0) [[unlikely]]
            return fail(
                [&] { return Words{"address " + address_text(v.data), "a multiple of " + std::to_string(c->b) + " bytes"}; });
        } while (more(CheckKind::alignment));
        break;
      case CheckKind::span:
        do {
          const TensorView& u = views[c->other];
          const RoleView& v = roles[c->role];
          // Unsigned, so that −1, which is unknown, is more than any reach.
          if (static_cast<std::uint64_t>(v.reach) > static_cast<std::uint64_t>(u.observed_bytes)) [[unlikely]]
            return fail([&] {
              return Words{"a buffer of " + std::to_string(u.observed_bytes) + " bytes",
                           std::to_string(v.reach) + " bytes for shape " + extents_text(u) + " with strides " + strides_text(u)};
            });
        } while (more(CheckKind::span));
        break;
      case CheckKind::aux:
        do {
          const RoleFact& f = facts[c->role];
          const TensorView& v = views[f.operand];
          const std::int64_t want[3] = {live_of(f, 0), live_of(f, 1), live_of(f, 2)};
          bool fits = true;
          if (v.is_bare()) {
            bind_declared(f, v.data, roles[c->role]);
            for (std::size_t i = 0; i < 3; ++i) fits &= f.extent[i] == want[i];
          } else {
            fits = v.rank >= 0 && v.rank <= kMaxRank && bind_aux(want, v, roles[c->role]);
          }
          if (!fits) [[unlikely]]
            return fail([&] {
              return Words{"shape " + extents_text(v), extents_text(want, f, v) + " or the same without its unit axes"};
            });
        } while (more(CheckKind::aux));
        break;
      case CheckKind::packed:
        do {
          RoleView& v = roles[c->role];
          const bool paired = (v.stride[2] == 1 || v.extent[2] <= 1) && v.extent[2] % 2 == 0 &&
                              (v.extent[0] <= 1 || v.stride[0] % 2 == 0) && (v.extent[1] <= 1 || v.stride[1] % 2 == 0);
          if (!paired && !is_void(v)) [[unlikely]]
            return fail([&] {
              const RoleFact& f = facts[c->role];
              const TensorView& u = views[f.operand];
              return Words{"shape " + extents_text(u) + " with strides " + strides_text(u),
                           "stride 1 along an even " + axis_text(f, 2) + " and even strides along the other axes"};
            });
          v.reach = (v.reach + 1) / 2;
        } while (more(CheckKind::packed));
        break;
      case CheckKind::blocks:
        do {
          const RoleFact& f = facts[c->role];
          const std::int64_t extent = live_of(f, 2);
          if (extent % f.block != 0) [[unlikely]]
            return fail([&] {
              const char* axis = f.symbol[2] == Symbol::m ? "M = " : f.symbol[2] == Symbol::h ? "N / 2 = " : "N = ";
              return Words{axis + std::to_string(extent), "a multiple of " + std::to_string(f.block)};
            });
        } while (more(CheckKind::blocks));
        break;
      case CheckKind::scale:
        do {
          const RoleFact& f = facts[c->role];
          const TensorView& v = views[f.operand];
          RoleView& out = roles[c->role];
          std::int64_t want[3];
          scale_extents(f, b.live, want);
          bool fits = true;
          if (f.is_interleaved) {
            out.data = static_cast<char*>(v.data);
            for (std::size_t i = 0; i < 3; ++i) {
              out.extent[i] = want[i];
              out.stride[i] = 0;
            }
            fits = v.is_bare() || dense_elements(v) >= 0;
          } else if (v.is_bare()) {
            bind_declared(f, v.data, out);
            for (std::size_t i = 0; i < 3; ++i) fits &= f.extent[i] == want[i];
          } else {
            fits = bind_scale(f, want, v, out);
          }
          if (!fits) [[unlikely]]
            return fail([&] {
              if (f.is_interleaved)
                return Words{"shape " + extents_text(v) + " with strides " + strides_text(v), "a dense run of rank 1 or more"};
              const bool swapped = f.from_end[1] < f.from_end[2];
              const std::int64_t declared[3] = {want[0], want[swapped ? 2 : 1], want[swapped ? 1 : 2]};
              return Words{"shape " + extents_text(v),
                           extents_text(declared, f, v) + " for blocks of " + std::to_string(f.block)};
            });
        } while (more(CheckKind::scale));
        break;
      case CheckKind::scale_size:
        do {
          const TensorView& u = views[facts[c->role].operand];
          RoleView& v = roles[c->role];
          v.reach = numeric::scale_blob_bytes({.batches = v.extent[0], .rows = v.extent[1], .columns = v.extent[2]});
          if (!u.is_bare() && dense_elements(u) < v.reach) [[unlikely]]
            return fail([&] {
              return Words{std::to_string(dense_elements(u)) + " bytes in shape " + extents_text(u),
                           std::to_string(v.reach) + " bytes: " + std::to_string(v.reach / numeric::kScaleAtomBytes) +
                               " atoms of 128 by 4 for " + rows_text(facts[c->role], b.live) + " of " +
                               std::to_string(v.extent[2]) + " scales"};
            });
        } while (more(CheckKind::scale_size));
        break;
      case CheckKind::overlap:
        do {
          // All pairs of one role stand together: its bytes are held while the others pass by.
          const std::uint8_t role = c->role;
          const RoleView& x = roles[role];
          const auto begin = reinterpret_cast<std::uintptr_t>(x.data), end = begin + static_cast<std::uintptr_t>(x.reach);
          do {
            const RoleView& y = roles[c->other];
            const auto first = reinterpret_cast<std::uintptr_t>(y.data), last = first + static_cast<std::uintptr_t>(y.reach);
            if ((end <= first) | (last <= begin)) [[likely]]
              continue;
            if (!disjoint(x, y) && !interleaved(facts[role], x, facts[c->other], y)) [[unlikely]]
              return fail([&] {
                return Words{"bytes " + address_text(x.data) + " to " + address_text(x.data + x.reach) + ", which meet " +
                                 address_text(y.data) + " to " + address_text(y.data + y.reach) + " of the other operand",
                             "memory of its own"};
              });
          } while (more(CheckKind::overlap) && c->role == role);
        } while (c->kind == CheckKind::overlap);
        break;
      case CheckKind::injective:
        do {
          if (roles[c->role].reach > 0 && !is_injective(roles[c->role])) [[unlikely]]
            return fail([&] {
              const TensorView& u = views[facts[c->role].operand];
              return Words{"shape " + extents_text(u) + " with strides " + strides_text(u),
                           "strides that put no two elements in one place"};
            });
        } while (more(CheckKind::injective));
        break;
      case CheckKind::data: {
        const std::uint32_t faults = launcher.data_faults();
        if (faults != 0) [[unlikely]]
          return fail([&] {
            return Words{text_of_faults(faults) + " in a call before this one", "data that fit: check() reads and forgets this"};
          });
        ++c;
        break;
      }
      case CheckKind::grid: {
        // Each extent is below 2^31 here. Where fewer elements than 2^31 are asked for, no division is needed.
        const std::int64_t l = b.live[1], m = b.live[2], n = b.live[3];
        if (m * n >= kExtentLimit || m * n * l >= kExtentLimit) [[unlikely]] {
          const std::int64_t of_matrix = (m + r.tiles.m - 1) / r.tiles.m * ((n + r.tiles.n - 1) / r.tiles.n);
          if (l > 0 && of_matrix >= (kExtentLimit + l - 1) / l)
            return fail([&] {
              return Words{"L = " + std::to_string(l) + ", M = " + std::to_string(m) + ", N = " + std::to_string(n) +
                               " in tiles of " + std::to_string(r.tiles.m) + " x " + std::to_string(r.tiles.n),
                           "fewer than 2147483648 tiles"};
            });
        }
        ++c;
        break;
      }
      case CheckKind::workspace: {
        const Workspace& w = call.workspace;
        const bool aligned =
            (reinterpret_cast<std::uintptr_t>(w.data) & static_cast<std::uintptr_t>(r.workspace.alignment - 1)) == 0;
        if (w.data == nullptr || !aligned || (w.bytes >= 0 && w.bytes < r.workspace.bytes)) [[unlikely]]
          return fail([&] {
            return Words{std::to_string(w.bytes) + " bytes at " + address_text(w.data),
                         std::to_string(r.workspace.bytes) + " bytes at a multiple of " + std::to_string(r.workspace.alignment)};
          });
        ++c;
        break;
      }
    }
  }
}

}  // namespace verglas::recipe
