#include "support/grouped_atoms.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "oracle/bound.hpp"
#include "oracle/memory.hpp"

namespace support {
namespace {

using namespace verglas;
using Bytes = std::vector<std::uint8_t>;
using Dims = std::vector<std::int64_t>;

constexpr std::int64_t kRows = 704, kGroups = 5, kN = 96, kK = 160;  // of the description
constexpr std::uint8_t kUntouched = 0xEE;

oracle::Format format(DataType t) { return static_cast<oracle::Format>(t); }
std::int64_t up(std::int64_t v, std::int64_t unit) { return (v + unit - 1) / unit; }
Dims packed(const Dims& dim) {
  Dims s(dim.size(), 1);
  for (std::size_t i = dim.size(); i-- > 1;) s[i - 1] = s[i] * dim[i];
  return s;
}

struct Types {
  DataType token, scale, made, made_scale;
  std::int64_t block, made_block;
};
Types types_of(const AtomsKind& k) {
  return {!k.has_token_scales ? DataType::bf16
          : k.is_fp4          ? DataType::fp4_e2m1
                              : DataType::fp8_e4m3,
          k.is_fp4 ? DataType::fp8_e4m3 : DataType::fp8_e8m0,
          k.to_fp4 ? DataType::fp4_e2m1 : DataType::fp8_e4m3,
          k.to_fp4 ? DataType::fp8_e4m3 : DataType::fp8_e8m0,
          k.is_fp4 ? 16 : 32,
          k.to_fp4 ? 16 : 32};
}

/// Byte of a scale whose row lies `atom` atoms down: 32 lanes of 16 bytes, of each four rows of four columns.
std::int64_t place(std::int64_t atom, std::int64_t row, std::int64_t column, std::int64_t columns) {
  const std::int64_t first = (atom + row / 128) * up(columns, 4) + column / 4;
  return first * 512 + row % 32 * 16 + row / 32 % 4 * 4 + column % 4;
}

/// The most atoms down that any groups take: one each for as many as there are rows, then one for each 128 rows more.
std::int64_t most_atoms(std::int64_t rows, std::int64_t groups) {
  const std::int64_t some = std::min(rows, groups);
  return some == 0 ? 0 : some + (rows - some) / 128;
}

struct Drawn {
  std::int64_t rows = 0, tokens = 0, groups = 0, experts = 0, n = 0, k = 0;
  std::vector<std::int64_t> bound;  ///< groups + 1
};

class Call {
 public:
  Call(const AtomsKind& kind, Random& random) : k_(kind), t_(types_of(kind)), r_(random) {}

  std::vector<AtomsOperand> draw() {
    draw_groups();
    draw_routing();
    const std::vector<double> x = matrix("x", {1, d_.tokens, d_.k}, d_.tokens, false);
    std::vector<double> w = matrix("w", {d_.experts, d_.k, d_.n}, d_.experts * d_.n, true);
    std::vector<double> second =
        k_.pairs ? matrix("v", {d_.experts, d_.k, d_.n}, d_.experts * d_.n, true) : std::vector<double>();
    multiply(x, w, second);
    columns_ = d_.n;
    if (k_.has_bias) add_bias();
    if (k_.runs) take_runs();
    finish();
    return std::move(all_);
  }

 private:
  void add(std::string name, DataType dtype, Dims dim, Bytes bytes, Dims stride = {}) {
    if (stride.empty()) stride = packed(dim);
    all_.push_back({std::move(name), dtype, std::move(dim), std::move(stride), std::move(bytes), {}});
  }

  void draw_groups() {
    d_.groups = r_.chance(10) ? r_.between(20, 60) : r_.between(1, 9);
    d_.experts = r_.chance(60) ? d_.groups : r_.between(1, d_.groups);
    d_.n = k_.runs ? 64 * r_.between(1, 3) : 32 * r_.between(1, 5);
    d_.k = k_.is_fp4 ? 32 * r_.between(1, 7) : 16 * r_.between(1, 14);
    // Of blocks along M groups begin between them, and between atoms of their scales.
    const std::int64_t block = k_.along_m ? t_.made_block : 1, unit = k_.along_m && !k_.is_plain ? 4 * block : block;
    const auto whole = [&](std::int64_t rows) { return up(rows, unit) * unit; };
    const std::int64_t before = k_.are_ends ? 0 : whole(r_.pick({0, 0, 1, 5, 130}));
    const std::int64_t behind = k_.are_ends ? up(r_.pick({0, 0, 7, 129}), block) * block : 0;
    d_.bound.push_back(before);
    const bool no_rows = r_.chance(4);
    for (std::int64_t g = 0; g < d_.groups; ++g) {
      const std::int64_t most = d_.groups > 9 ? 40 : 300;
      const std::int64_t size = no_rows || r_.chance(25) ? 0
                                : r_.chance(25)          ? std::min<std::int64_t>(most, r_.pick({1, 64, 127, 128, 129, 256}))
                                                         : r_.between(1, most);
      const bool is_last = g + 1 == d_.groups && behind == 0;
      d_.bound.push_back(d_.bound.back() + (is_last ? up(size, block) * block : whole(size)));
    }
    d_.rows = d_.bound.back() + behind;
    std::vector<std::int64_t> told(d_.bound.begin() + (k_.are_ends ? 1 : 0), d_.bound.end() - (k_.are_ends ? 0 : 1));
    Bytes bytes;
    for (const std::int64_t o : told)
      for (int i = 0; i < (k_.has_wide_offsets ? 8 : 4); ++i) bytes.push_back(static_cast<std::uint8_t>(o >> 8 * i));
    add("o", k_.has_wide_offsets ? DataType::int64 : DataType::int32, {d_.groups}, std::move(bytes));
  }

  /// Where each row comes from and goes to; −1 where it has no token.
  void draw_routing() {
    d_.tokens = k_.mode == MoeMode::gather ? r_.between(1, 200) : d_.rows;
    from_.resize(static_cast<std::size_t>(d_.rows));
    for (std::size_t r = 0; r < from_.size(); ++r) from_[r] = static_cast<std::int64_t>(r);
    to_ = from_;
    if (k_.mode == MoeMode::none) return;
    std::vector<std::int64_t> index = from_;
    if (k_.mode == MoeMode::gather)
      for (std::int64_t& i : index) i = r_.between(0, d_.tokens - 1);
    else
      r_.shuffle(index);
    for (std::int64_t& i : index)
      if (r_.chance(10)) i = -1;
    (k_.mode == MoeMode::gather ? from_ : to_) = index;
    for (std::size_t r = 0; r < index.size(); ++r)
      if (index[r] < 0) from_[r] = to_[r] = -1;
    const auto list = [&](const char* name, const std::vector<std::int64_t>& values) {
      Bytes bytes;
      for (const std::int64_t v : values)
        for (int i = 0; i < 4; ++i) bytes.push_back(static_cast<std::uint8_t>(v >> 8 * i));
      add(name, DataType::int32, {1, d_.rows, 1}, std::move(bytes));
    };
    list("index", index);
    if (k_.mode == MoeMode::scatter) list("slot", std::vector<std::int64_t>(index.size(), 0));
  }

  /// Lines along K of small integers, with scales where there are some; what they are together.
  std::vector<double> matrix(const std::string& name, Dims dim, std::int64_t lines, bool is_weight) {
    std::vector<double> v(static_cast<std::size_t>(lines * d_.k));
    for (double& x : v) x = static_cast<double>(r_.between(-1, 1));
    const std::int64_t bits = t_.token == DataType::bf16 ? 16 : t_.token == DataType::fp4_e2m1 ? 4 : 8;
    Bytes bytes(static_cast<std::size_t>(up(lines * d_.k * bits, 8)));
    for (std::size_t i = 0; i < v.size(); ++i) oracle::put_at(format(t_.token), bytes.data(), static_cast<std::int64_t>(i), v[i]);
    add(name, t_.token, dim, std::move(bytes), is_weight ? Dims{d_.k * d_.n, 1, d_.k} : Dims{});
    if (!k_.has_token_scales) return v;
    const std::int64_t blocks = up(d_.k, t_.block), batch = is_weight ? d_.experts : 1,
                       rows = lines / std::max<std::int64_t>(batch, 1);
    const std::int64_t down = is_weight ? batch * up(rows, 128) : most_atoms(d_.rows, d_.groups);
    Bytes blob(static_cast<std::size_t>(down * up(blocks, 4) * 512),
               static_cast<std::uint8_t>(r_.pick({0x00, 0x7F, 0xFF, 0xEE})));
    const auto put = [&](std::int64_t atom, std::int64_t row, std::int64_t line) {
      for (std::int64_t b = 0; b < blocks; ++b) {
        const double s = std::ldexp(1.0, static_cast<int>(r_.between(-1, 1)));
        blob[static_cast<std::size_t>(place(atom, row, b, blocks))] =
            static_cast<std::uint8_t>(oracle::encode(format(t_.scale), s));
        for (std::int64_t k = b * t_.block; k < std::min(d_.k, (b + 1) * t_.block); ++k)
          v[static_cast<std::size_t>(line * d_.k + k)] *= s;
      }
    };
    if (is_weight)
      for (std::int64_t l = 0; l < lines; ++l) put(l / rows * up(rows, 128), l % rows, l);
    else
      each_row([&](std::int64_t g, std::int64_t r) { put(atom_of(g), r - d_.bound[static_cast<std::size_t>(g)], r); });
    const auto size = static_cast<std::int64_t>(blob.size());
    add(name + "_scale", t_.scale, {size}, std::move(blob));
    return v;
  }

  template <class F>
  void each_row(F&& f) const {
    for (std::int64_t g = 0; g < d_.groups; ++g)
      for (std::int64_t r = d_.bound[static_cast<std::size_t>(g)]; r < d_.bound[static_cast<std::size_t>(g) + 1]; ++r) f(g, r);
  }
  std::int64_t atom_of(std::int64_t group) const {
    std::int64_t atom = 0;
    for (std::int64_t g = 0; g < group; ++g)
      atom += up(d_.bound[static_cast<std::size_t>(g) + 1] - d_.bound[static_cast<std::size_t>(g)], 128);
    return atom;
  }

  void multiply(const std::vector<double>& x, const std::vector<double>& w, const std::vector<double>& second) {
    sums_.assign(static_cast<std::size_t>(d_.rows * d_.n), 0.0);
    each_row([&](std::int64_t g, std::int64_t r) {
      const std::int64_t from = from_[static_cast<std::size_t>(r)];
      if (from < 0) return;
      for (std::int64_t n = 0; n < d_.n; ++n) {
        const auto product = [&](const std::vector<double>& b) {
          double s = 0;
          const double* const a = &x[static_cast<std::size_t>(from * d_.k)];
          const double* const line = &b[static_cast<std::size_t>((g % d_.experts * d_.n + n) * d_.k)];
          for (std::int64_t k = 0; k < d_.k; ++k) s += a[k] * line[k];
          return s;
        };
        sums_[static_cast<std::size_t>(r * d_.n + n)] = product(w) - (second.empty() ? 0.0 : 2 * product(second));
      }
    });
  }

  void add_bias() {
    Bytes bytes(static_cast<std::size_t>(d_.groups * d_.n * 4));
    std::vector<double> bias(static_cast<std::size_t>(d_.groups * d_.n));
    for (std::size_t i = 0; i < bias.size(); ++i) {
      bias[i] = static_cast<double>(r_.between(-40, 40));
      oracle::put_at(oracle::Format::fp32, bytes.data(), static_cast<std::int64_t>(i), bias[i]);
    }
    add("bias", DataType::fp32, {d_.groups, 1, d_.n}, std::move(bytes));
    each_row([&](std::int64_t g, std::int64_t r) {
      for (std::int64_t n = 0; n < d_.n; ++n)
        sums_[static_cast<std::size_t>(r * d_.n + n)] += bias[static_cast<std::size_t>(g * d_.n + n)];
    });
  }

  /// Also stores what they are taken of, and the largest magnitude of each group.
  void take_runs() {
    if (!k_.is_alone) store("all");
    columns_ = d_.n / 2;
    std::vector<double> both;
    std::swap(both, sums_);
    for (std::int64_t i = 0; i < d_.rows * columns_; ++i) {
      const std::int64_t column = i % columns_, first = i / columns_ * d_.n + column / 32 * 64 + column % 32;
      sums_.push_back(both[static_cast<std::size_t>(first)] * std::max(0.0, both[static_cast<std::size_t>(first + 32)]));
    }
    std::vector<double> most(static_cast<std::size_t>(d_.groups), 0.0);
    each_row([&](std::int64_t g, std::int64_t r) {
      for (std::int64_t n = 0; n < columns_ && to_[static_cast<std::size_t>(r)] >= 0; ++n)
        most[static_cast<std::size_t>(g)] =
            std::max(most[static_cast<std::size_t>(g)], std::fabs(sums_[static_cast<std::size_t>(r * columns_ + n)]));
    });
    add("amax", DataType::fp32, {d_.groups, 1, 1}, untouched(d_.groups * 4));
    all_.back().want = all_.back().bytes;
    for (std::int64_t g = 0; g < d_.groups; ++g)
      oracle::put_at(oracle::Format::fp32, all_.back().want.data(), g, most[static_cast<std::size_t>(g)]);
  }

  /// Rows that have no token, in an output of so many bits an element.
  void fill(Bytes& of, std::int64_t bits) const {
    if (!k_.zero_fill) return;
    std::vector<bool> has_token(static_cast<std::size_t>(d_.rows), false);
    each_row(
        [&](std::int64_t, std::int64_t r) { has_token[static_cast<std::size_t>(r)] = from_[static_cast<std::size_t>(r)] >= 0; });
    for (std::int64_t r = 0; r < d_.rows; ++r)
      if (!has_token[static_cast<std::size_t>(r)])
        std::fill_n(of.begin() + r * columns_ * bits / 8, columns_ * bits / 8, std::uint8_t{0});
  }

  static Bytes untouched(std::int64_t bytes) { return Bytes(static_cast<std::size_t>(bytes), kUntouched); }
  void store(const char* name) {
    add(name, DataType::fp32, {1, d_.rows, columns_}, untouched(d_.rows * columns_ * 4));
    AtomsOperand& y = all_.back();
    y.want = y.bytes;
    fill(y.want, 32);
    each_row([&](std::int64_t, std::int64_t r) {
      if (to_[static_cast<std::size_t>(r)] < 0) return;
      for (std::int64_t n = 0; n < columns_; ++n)
        oracle::put_at(oracle::Format::fp32, y.want.data(), to_[static_cast<std::size_t>(r)] * columns_ + n,
                       sums_[static_cast<std::size_t>(r * columns_ + n)]);
    });
  }

  void finish() {
    if (!k_.is_alone) store("y");
    if (!k_.quantises) return;
    if (k_.along_m) return finish_columns();
    const std::int64_t blocks = columns_ / t_.made_block, bits = k_.to_fp4 ? 4 : 8;
    add("q", t_.made, {1, d_.rows, columns_}, untouched(d_.rows * columns_ * bits / 8));
    const std::int64_t down = most_atoms(d_.rows, d_.groups), spare = r_.pick({0, 0, 512});
    const std::int64_t bytes = down * up(blocks, 4) * 512 + spare;
    add("q_scale", t_.made_scale, {bytes}, untouched(bytes));
    AtomsOperand &q = all_[all_.size() - 2], &s = all_.back();
    q.want = q.bytes;
    fill(q.want, bits);
    s.want = s.bytes;
    std::fill_n(s.want.begin(), atom_of(d_.groups) * up(blocks, 4) * 512, std::uint8_t{0});
    each_row([&](std::int64_t g, std::int64_t r) {
      if (from_[static_cast<std::size_t>(r)] < 0) return;
      for (std::int64_t b = 0; b < blocks; ++b) {
        const double* const v = &sums_[static_cast<std::size_t>(r * columns_ + b * t_.made_block)];
        double most = 0;
        for (std::int64_t i = 0; i < t_.made_block; ++i) most = std::max(most, std::fabs(v[i]));
        const double wanted = oracle::fl32(most / (k_.to_fp4 ? 6 : 448));
        const std::int64_t at = place(atom_of(g), r - d_.bound[static_cast<std::size_t>(g)], b, blocks);
        s.want[static_cast<std::size_t>(at)] = static_cast<std::uint8_t>(oracle::encode(format(t_.made_scale), wanted));
        const double held = oracle::round_to(format(t_.made_scale), wanted), factor = held == 0 ? 0 : oracle::fl32(1 / held);
        for (std::int64_t i = 0; i < t_.made_block; ++i)
          oracle::put_at(format(t_.made), q.want.data(), r * columns_ + b * t_.made_block + i, oracle::fl32(v[i] * factor));
      }
    });
  }

  /// Blocks along M. Scales of a group begin a quarter of its blocks down, times the atoms of all columns.
  void finish_columns() {
    const std::int64_t block = t_.made_block, all = d_.rows / block, bits = k_.to_fp4 ? 4 : 8;
    const std::int64_t bytes = k_.is_plain ? all * columns_ : up(columns_, 128) * up(all, 4) * 512;
    add("q", t_.made, {1, d_.rows, columns_}, Bytes(static_cast<std::size_t>(d_.rows * columns_ * bits / 8), kUntouched));
    add("q_scale", t_.made_scale, k_.is_plain ? Dims{1, all, columns_} : Dims{bytes},
        Bytes(static_cast<std::size_t>(bytes), kUntouched));
    AtomsOperand &q = all_[all_.size() - 2], &s = all_.back();
    q.want = q.bytes;
    fill(q.want, bits);
    s.want = s.bytes;
    if (k_.zero_fill && k_.is_plain)
      for (std::int64_t r = 0; r < d_.rows; ++r)
        if (r < d_.bound.front() || r >= d_.bound.back())
          std::fill_n(s.want.begin() + r / block * columns_, columns_, std::uint8_t{0});
    for (std::int64_t g = 0; g < d_.groups; ++g) {
      const std::int64_t first = d_.bound[static_cast<std::size_t>(g)];
      const std::int64_t own = (d_.bound[static_cast<std::size_t>(g) + 1] - first) / block;
      const std::int64_t base = first / (4 * block) * up(columns_, 128) * 512;
      if (!k_.is_plain) std::fill_n(s.want.begin() + base, up(own, 4) * up(columns_, 128) * 512, std::uint8_t{0});
      for (std::int64_t b = 0; b < own; ++b)
        for (std::int64_t n = 0; n < columns_; ++n) {
          const auto at = [&](std::int64_t i) { return (first + b * block + i) * columns_ + n; };
          double most = 0;
          for (std::int64_t i = 0; i < block; ++i) most = std::max(most, std::fabs(sums_[static_cast<std::size_t>(at(i))]));
          const double wanted = oracle::fl32(most / (k_.to_fp4 ? 6 : 448));
          const std::int64_t to = k_.is_plain ? (first / block + b) * columns_ + n : base + place(0, n, b, own);
          s.want[static_cast<std::size_t>(to)] = static_cast<std::uint8_t>(oracle::encode(format(t_.made_scale), wanted));
          const double held = oracle::round_to(format(t_.made_scale), wanted), factor = held == 0 ? 0 : oracle::fl32(1 / held);
          for (std::int64_t i = 0; i < block; ++i)
            oracle::put_at(format(t_.made), q.want.data(), at(i), oracle::fl32(sums_[static_cast<std::size_t>(at(i))] * factor));
        }
    }
  }

  const AtomsKind& k_;
  const Types t_;
  Random& r_;
  Drawn d_;
  std::int64_t columns_ = 0;  ///< of what the product ends in
  std::vector<std::int64_t> from_, to_;
  std::vector<double> sums_;
  std::vector<AtomsOperand> all_;
};

}  // namespace

std::vector<AtomsKind> atoms_kinds() {
  return {
      {.name = "Mxfp8"},
      {.name = "Mxfp8Ends", .are_ends = true, .has_wide_offsets = true},
      {.name = "Mxfp8Pairs", .pairs = true, .has_wide_offsets = true},
      {.name = "Nvfp4", .is_fp4 = true},
      {.name = "Mxfp8Scattered", .mode = MoeMode::scatter},
      {.name = "Nvfp4ScatteredEnds", .is_fp4 = true, .mode = MoeMode::scatter, .are_ends = true},
      {.name = "Mxfp8ToMxfp8", .quantises = true},
      {.name = "Mxfp8ToNvfp4Ends", .quantises = true, .to_fp4 = true, .are_ends = true},
      {.name = "PlainToMxfp8", .has_token_scales = false, .quantises = true, .has_wide_offsets = true},
      {.name = "Mxfp8ToMxfp8ZeroFill", .quantises = true, .are_ends = true, .zero_fill = true},
      {.name = "GatheredToMxfp8ZeroFill",
       .has_token_scales = false,
       .quantises = true,
       .mode = MoeMode::gather,
       .zero_fill = true},
      {.name = "ColumnsToMxfp8", .quantises = true, .along_m = true, .has_wide_offsets = true},
      {.name = "ColumnsToNvfp4Ends",
       .has_token_scales = false,
       .quantises = true,
       .to_fp4 = true,
       .along_m = true,
       .are_ends = true},
      {.name = "ColumnsPlain", .has_token_scales = false, .quantises = true, .along_m = true, .is_plain = true},
      {.name = "ColumnsPlainZeroFill", .quantises = true, .along_m = true, .is_plain = true, .are_ends = true, .zero_fill = true},
      {.name = "Runs", .has_token_scales = false, .runs = true, .has_wide_offsets = true},
      {.name = "RunsZeroFill", .has_token_scales = false, .runs = true, .are_ends = true, .zero_fill = true},
      {.name = "RunsGathered", .has_token_scales = false, .runs = true, .mode = MoeMode::gather},
      {.name = "RunsGatheredZeroFill", .has_token_scales = false, .runs = true, .mode = MoeMode::gather, .zero_fill = true},
      {.name = "RunsScattered", .has_token_scales = false, .runs = true, .mode = MoeMode::scatter},
      {.name = "RunsOfMxfp8ToMxfp8", .quantises = true, .runs = true},
      {.name = "RunsOfNvfp4ToMxfp8ZeroFill",
       .is_fp4 = true,
       .quantises = true,
       .runs = true,
       .are_ends = true,
       .zero_fill = true},
      {.name = "RunsBias", .has_token_scales = false, .runs = true, .has_bias = true},
      {.name = "RunsOfMxfp8BiasToMxfp8", .quantises = true, .runs = true, .has_bias = true, .are_ends = true},
      {.name = "RunsOfMxfp8ToMxfp8Alone", .quantises = true, .runs = true, .is_alone = true, .zero_fill = true},
      {.name = "GatheredBiasToMxfp8", .has_token_scales = false, .quantises = true, .has_bias = true, .mode = MoeMode::gather},
      {.name = "RunsToNvfp4", .has_token_scales = false, .quantises = true, .to_fp4 = true, .runs = true},
      {.name = "PairsToMxfp8", .has_token_scales = false, .quantises = true, .pairs = true},
      {.name = "GatheredToMxfp8", .has_token_scales = false, .quantises = true, .mode = MoeMode::gather},
      {.name = "GatheredToNvfp4", .has_token_scales = false, .quantises = true, .to_fp4 = true, .mode = MoeMode::gather},
  };
}

Graph atoms_graph(const AtomsKind& kind) {
  const Types t = types_of(kind);
  Graph g({.io_data_type = DataType::fp32});
  const auto tensor = [&](const std::string& name, const Dims& dim, DataType type, Dims stride = {}) {
    return g.tensor({.name = name, .dim = dim, .stride = stride.empty() ? packed(dim) : std::move(stride), .data_type = type});
  };
  const auto operand = [&](const std::string& name, const Dims& dim, Dims stride, bool is_weight) {
    const Tensor x = tensor(name, dim, t.token, std::move(stride));
    if (!kind.has_token_scales) return x;
    Dims blocks = dim;
    std::int64_t& along = blocks[is_weight ? 1 : 2];
    along = up(along, t.block);
    Tensor s = tensor(name + "_scale", blocks, t.scale);
    s.set_reordering_type(TensorReordering::f8_128x4);
    const auto block = static_cast<std::int32_t>(t.block);
    return g.block_scale_dequantize(x, s, is_weight ? std::vector<std::int64_t>{block, 1} : std::vector<std::int64_t>{1, block});
  };
  const Tensor o = tensor("o", {kGroups}, kind.has_wide_offsets ? DataType::int64 : DataType::int32);
  const Tensor index = kind.mode == MoeMode::none ? Tensor() : tensor("index", {1, kRows, 1}, DataType::int32);
  const Tensor slot = kind.mode == MoeMode::scatter ? tensor("slot", {1, kRows, 1}, DataType::int32) : Tensor();
  const Tensor x = operand("x", {1, kind.mode == MoeMode::gather ? 150 : kRows, kK}, {}, false);
  const auto product = [&](const char* weights) {
    const std::int64_t n = kind.runs ? 128 : kN;
    const Tensor w = operand(weights, {kGroups, kK, n}, {kK * n, 1, kK}, true);
    return g.moe_grouped_matmul(
        x, w, o,
        {.mode = kind.mode, .offsets = kind.are_ends ? MoeOffsets::end : MoeOffsets::first_token, .zero_fill = kind.zero_fill},
        index, slot);
  };
  Tensor y = product("w");
  if (kind.pairs) {
    const Tensor second = product("v");
    y = g.pointwise(PointwiseMode::sub, {y, g.add(second, second)});
  }
  if (kind.has_bias) y = g.add(y, tensor("bias", {kGroups, 1, kind.runs ? 128 : kN}, DataType::fp32));
  if (kind.runs) {
    if (!kind.is_alone) y.set_name("all").set_output(true);
    y = g.mul(g.take_runs(y, 32, false), g.relu(g.take_runs(y, 32, true)));
    g.reduction(y, ReductionMode::amax, {}, o).set_dim({kGroups, 1, 1}).set_name("amax").set_output(true);
  }
  if (kind.quantises) {
    const auto both = g.block_scale_quantize(y, t.made_block, kind.along_m ? std::optional<int>(1) : std::nullopt);
    if (!kind.is_plain) Tensor(both[1]).set_reordering_type(TensorReordering::f8_128x4);
    Tensor(both[0]).set_name("q").set_data_type(t.made).set_output(true);
    Tensor(both[1]).set_name("q_scale").set_data_type(t.made_scale).set_output(true);
  }
  if (!kind.is_alone) y.set_name("y").set_output(true);
  return g;
}

Graph blocks_graph(DataType type, std::int64_t columns, std::int64_t depth, bool in_atoms) {
  Graph g({.io_data_type = type});
  const Tensor x = g.tensor({.name = "x", .dim = {1, kRowsOfBlocks, depth}, .stride = {kRowsOfBlocks * depth, depth, 1}});
  const Tensor w = g.tensor({.name = "w", .dim = {2, depth, columns}, .stride = {depth * columns, 1, depth}});
  const Tensor o = g.tensor({.name = "o", .dim = {2}, .stride = {1}, .data_type = DataType::int32});
  const auto both = g.block_scale_quantize(g.moe_grouped_matmul(x, w, o), 32, 1);
  Tensor(both[0]).set_data_type(DataType::fp8_e4m3).set_output(true);
  Tensor(both[1]).set_data_type(DataType::fp8_e8m0).set_output(true);
  if (in_atoms) Tensor(both[1]).set_reordering_type(TensorReordering::f8_128x4);
  return g;
}

void expect_held_bounds(const CompiledPlan& plan, bool in_atoms, const std::function<Bytes(std::int32_t)>& call) {
  const std::int32_t whole = in_atoms ? 128 : 160;
  const Bytes want = call(whole);
  EXPECT_NO_THROW(plan.check());
  EXPECT_EQ(call(whole + 7), want);
  try {
    plan.check();
    ADD_FAILURE() << "nothing was told";
  } catch (const Error& e) {
    EXPECT_EQ(e.rule(), "call.data");
    EXPECT_NE(std::string(e.what()).find("offsets within blocks of rows"), std::string::npos) << e.what();
  }
}

std::vector<AtomsOperand> draw_atoms_call(const AtomsKind& kind, Random& random) { return Call(kind, random).draw(); }

TensorView view_of(const AtomsOperand& operand, void* data, Device device) {
  TensorView v = TensorView::dense(data, operand.dtype, {}, device);
  v.rank = static_cast<std::int8_t>(operand.dim.size());
  std::copy(operand.dim.begin(), operand.dim.end(), v.extent.begin());
  std::copy(operand.stride.begin(), operand.stride.end(), v.stride.begin());
  return v;
}

std::string atoms_fault(const AtomsOperand& operand, const Bytes& got) {
  const auto at = std::mismatch(got.begin(), got.end(), operand.want.begin()).first - got.begin();
  if (got == operand.want) return {};
  const auto i = static_cast<std::size_t>(at);
  std::string extents;
  for (const std::int64_t e : operand.dim) extents += " " + std::to_string(e);
  return operand.name + " of extents" + extents + ": byte " + std::to_string(at) + " is " + std::to_string(got[i]) + ", wanted " +
         std::to_string(operand.want[i]);
}

}  // namespace support
