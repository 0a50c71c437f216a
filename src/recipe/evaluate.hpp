#pragma once
#include <algorithm>

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
inline void bind_matrix(const RoleFact& f, const TensorView& v, RoleView& out) noexcept {
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

/// Bytes from the first element to the end of the last; −1 when that does not fit.
inline std::int64_t reach_of(const RoleView& v, std::int64_t slot_bytes) noexcept {
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

/// Sorted by stride, each stride passes the reach of the smaller ones.
inline bool is_injective(const RoleView& v) noexcept {
  std::int64_t s[3], e[3];
  int n = 0;
  for (int i = 0; i < 3; ++i) {
    if (v.extent[i] <= 1) continue;
    int at = n++;
    for (; at > 0 && s[at - 1] > v.stride[i]; --at) {
      s[at] = s[at - 1];
      e[at] = e[at - 1];
    }
    s[at] = v.stride[i];
    e[at] = v.extent[i];
  }
  std::int64_t reach = 0;
  for (int i = 0; i < n; ++i) {
    if (s[i] <= reach) return false;
    reach += (e[i] - 1) * s[i];
  }
  return true;
}

inline bool disjoint(const RoleView& x, const RoleView& y) noexcept {
  if (x.reach == 0 || y.reach == 0) return true;
  const auto a = reinterpret_cast<std::uintptr_t>(x.data);
  const auto b = reinterpret_cast<std::uintptr_t>(y.data);
  return a + static_cast<std::uintptr_t>(x.reach) <= b || b + static_cast<std::uintptr_t>(y.reach) <= a;
}

}  // namespace detail

/// Runs the list; answers report's status for the first check that fails, ok when none does.
template <class Report>
Status evaluate(const Recipe& r, const Launcher& launcher, const Call& call, Binding& b, Report&& report) {
  using namespace detail;
  constexpr std::int64_t kExtentLimit = std::int64_t{1} << 31;
  const int count = static_cast<int>(r.checks.size());
  for (int index = 0; index < count; ++index) {
    const Check& c = r.checks[static_cast<std::size_t>(index)];
    const auto fail = [&](auto&& words) { return report(index, words); };
    switch (c.kind) {
      case CheckKind::count:
        if (call.buffers.size() != r.operands.size())
          return fail([&] { return Words{std::to_string(call.buffers.size()) + " buffers", std::to_string(r.operands.size())}; });
        break;
      case CheckKind::plan_device: {
        const Device now = launcher.current_device(r.device);
        if (now != r.device) return fail([&] { return Words{"current device " + device_text(now), device_text(r.device)}; });
        break;
      }
      case CheckKind::present: {
        const TensorView& v = call.buffers[c.role];
        if (v.data == nullptr && !is_empty(v, r, c.role))
          return fail([&] { return Words{"a null address for extents " + extents_text(v), "an address"}; });
        break;
      }
      case CheckKind::writable:
        if (call.buffers[c.role].read_only) return fail([&] { return Words{"a read-only buffer", "one that can be written"}; });
        break;
      case CheckKind::rank: {
        const RoleFact& f = r.roles[c.role];
        const TensorView& v = call.buffers[f.operand];
        if (v.is_bare()) {
          bind_declared(f, v.data, b.role[c.role]);
          break;
        }
        if (v.rank != 2 && v.rank != 3)
          return fail([&] {
            return Words{"rank " + std::to_string(v.rank) + " from shape " + extents_text(v),
                         "rank 3, or 2 where the batch is 1"};
          });
        bind_matrix(f, v, b.role[c.role]);
        break;
      }
      case CheckKind::device: {
        const TensorView& v = call.buffers[c.role];
        const Device want = r.operands[c.role].is_host_scalar ? Device{DeviceType::cpu, 0} : r.device;
        const bool fits = v.device.type == DeviceType::unknown ||
                          (v.device.type == want.type && (want.type == DeviceType::cpu || v.device.id == want.id));
        if (!fits) return fail([&] { return Words{"memory on " + device_text(v.device), "memory on " + device_text(want)}; });
        break;
      }
      case CheckKind::dtype: {
        const TensorView& v = call.buffers[c.role];
        const DataType want = r.operands[c.role].dtype;
        if (v.dtype != want && !v.is_bare())
          return fail([&] { return Words{std::string(name_of(v.dtype)), std::string(name_of(want)) + " as declared"}; });
        break;
      }
      case CheckKind::major: {
        const RoleView& v = b.role[c.role];
        if (v.extent[c.a] > 1 && v.stride[c.a] != 1 && !is_void(v))
          return fail([&] {
            const RoleFact& f = r.roles[c.role];
            const TensorView& u = call.buffers[f.operand];
            return Words{"stride " + std::to_string(v.stride[c.a]) + " along " + axis_text(f, c.a) + " from shape " +
                             extents_text(u) + " with strides " + strides_text(u),
                         "stride 1 along it, as declared"};
          });
        break;
      }
      case CheckKind::modulus: {
        const RoleView& v = b.role[c.role];
        if ((v.extent[c.a] & (c.b - 1)) != 0)
          return fail([&] {
            return Words{axis_text(r.roles[c.role], c.a) + " = " + std::to_string(v.extent[c.a]),
                         "a multiple of " + std::to_string(c.b)};
          });
        break;
      }
      case CheckKind::stride_sign: {
        const RoleView& v = b.role[c.role];
        for (int i = 0; i < 3; ++i)
          if (v.extent[i] > 1 && v.stride[i] < 0 && !is_void(v))
            return fail([&] { return Words{"strides " + strides_text(call.buffers[r.roles[c.role].operand]), "none below 0"}; });
        break;
      }
      case CheckKind::outer_stride: {
        const RoleView& v = b.role[c.role];
        const std::int64_t slot = r.roles[c.role].slot_bytes;
        for (int i = 0; i < 3; ++i) {
          if (i == c.a || v.extent[i] <= 1 || is_void(v)) continue;
          std::int64_t bytes = 0;
          if (__builtin_mul_overflow(v.stride[i], slot, &bytes) || (bytes & (c.b - 1)) != 0 || bytes >= (std::int64_t{1} << 40))
            return fail([&] {
              return Words{"a stride of " + std::to_string(v.stride[i]) + " elements of " + std::to_string(slot) +
                               " bytes along " + axis_text(r.roles[c.role], i),
                           "a multiple of " + std::to_string(c.b) + " bytes below 2^40"};
            });
        }
        break;
      }
      case CheckKind::reach: {
        RoleView& v = b.role[c.role];
        const bool negative = v.extent[0] < 0 || v.extent[1] < 0 || v.extent[2] < 0;
        v.reach = negative ? -1 : reach_of(v, r.roles[c.role].slot_bytes);
        if (v.reach < 0) {
          return fail([&] {
            const TensorView& u = call.buffers[r.roles[c.role].operand];
            return Words{"shape " + extents_text(u) + " with strides " + strides_text(u),
                         "no negative extent and a byte offset below 2^63"};
          });
        }
        break;
      }
      case CheckKind::live: {
        const RoleView& a = b.role[r.first_a];
        const RoleView& m = b.role[r.first_b];
        b.live[0] = 1;
        b.live[1] = r.first_l < 0 ? 1 : b.role[r.first_l].extent[0];
        b.live[2] = a.extent[1];
        b.live[3] = m.extent[1];
        b.live[4] = a.extent[2];
        if ((b.live[1] | b.live[2] | b.live[3] | b.live[4]) >= kExtentLimit)
          return fail([&] {
            return Words{"L = " + std::to_string(b.live[1]) + ", M = " + std::to_string(b.live[2]) +
                             ", N = " + std::to_string(b.live[3]) + ", K = " + std::to_string(b.live[4]),
                         "each below 2147483648"};
          });
        break;
      }
      case CheckKind::batch: {
        const RoleView& v = b.role[c.role];
        const std::int64_t want = b.live[static_cast<int>(r.roles[c.role].symbol[0])];
        if (v.extent[0] != want)
          return fail([&] {
            return Words{
                "batch " + std::to_string(v.extent[0]) + " from shape " + extents_text(call.buffers[r.roles[c.role].operand]),
                "batch " + std::to_string(want)};
          });
        break;
      }
      case CheckKind::extents: {
        const RoleView& v = b.role[c.role];
        const RoleFact& f = r.roles[c.role];
        for (int i = c.a; i < 3; ++i)
          if (v.extent[i] != b.live[static_cast<int>(f.symbol[static_cast<std::size_t>(i)])])
            return fail([&] {
              std::int64_t want[3];
              for (int j = 0; j < 3; ++j) want[j] = b.live[static_cast<int>(f.symbol[static_cast<std::size_t>(j)])];
              const TensorView& u = call.buffers[f.operand];
              return Words{axis_text(f, i) + " = " + std::to_string(v.extent[i]) + " from shape " + extents_text(u),
                           std::to_string(want[i]) + " as in shape " + extents_text(want, f, u)};
            });
        break;
      }
      case CheckKind::alignment: {
        const RoleView& v = b.role[c.role];
        if (v.reach > 0 && (reinterpret_cast<std::uintptr_t>(v.data) & (c.b - 1U)) != 0)
          return fail(
              [&] { return Words{"address " + address_text(v.data), "a multiple of " + std::to_string(c.b) + " bytes"}; });
        break;
      }
      case CheckKind::span: {
        const TensorView& u = call.buffers[r.roles[c.role].operand];
        const RoleView& v = b.role[c.role];
        if (u.observed_bytes >= 0 && v.reach > u.observed_bytes)
          return fail([&] {
            return Words{"a buffer of " + std::to_string(u.observed_bytes) + " bytes",
                         std::to_string(v.reach) + " bytes for shape " + extents_text(u) + " with strides " + strides_text(u)};
          });
        break;
      }
      case CheckKind::aux: {
        const RoleFact& f = r.roles[c.role];
        const TensorView& v = call.buffers[f.operand];
        std::int64_t want[3];
        for (int i = 0; i < 3; ++i) want[i] = b.live[static_cast<int>(f.symbol[static_cast<std::size_t>(i)])];
        bool fits = true;
        if (v.is_bare()) {
          bind_declared(f, v.data, b.role[c.role]);
          for (int i = 0; i < 3; ++i) fits &= f.extent[static_cast<std::size_t>(i)] == want[i];
        } else {
          fits = v.rank >= 0 && v.rank <= kMaxRank && bind_aux(want, v, b.role[c.role]);
        }
        if (!fits)
          return fail(
              [&] { return Words{"shape " + extents_text(v), extents_text(want, f, v) + " or the same without its unit axes"}; });
        break;
      }
      case CheckKind::overlap:
        if (!disjoint(b.role[c.role], b.role[c.other]))
          return fail([&] {
            const RoleView& x = b.role[c.role];
            const RoleView& y = b.role[c.other];
            return Words{"bytes " + address_text(x.data) + " to " + address_text(x.data + x.reach) + ", which meet " +
                             address_text(y.data) + " to " + address_text(y.data + y.reach) + " of the other operand",
                         "memory of its own"};
          });
        break;
      case CheckKind::injective:
        if (b.role[c.role].reach > 0 && !is_injective(b.role[c.role]))
          return fail([&] {
            const TensorView& u = call.buffers[r.roles[c.role].operand];
            return Words{"shape " + extents_text(u) + " with strides " + strides_text(u),
                         "strides that put no two elements in one place"};
          });
        break;
      case CheckKind::workspace: {
        const Workspace& w = call.workspace;
        const bool aligned = reinterpret_cast<std::uintptr_t>(w.data) % static_cast<std::uintptr_t>(r.workspace.alignment) == 0;
        if (w.data == nullptr || !aligned || (w.bytes >= 0 && w.bytes < r.workspace.bytes))
          return fail([&] {
            return Words{std::to_string(w.bytes) + " bytes at " + address_text(w.data),
                         std::to_string(r.workspace.bytes) + " bytes at a multiple of " + std::to_string(r.workspace.alignment)};
          });
        break;
      }
    }
  }
  return Status{};
}

}  // namespace verglas::recipe
