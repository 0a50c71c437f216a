#include "support/feature_graph.hpp"

#include <algorithm>
#include <utility>

#include "support/random.hpp"

namespace support {
namespace {

using namespace verglas;
using enum DataType;
using Dims = std::vector<std::int64_t>;

std::int64_t round_up(std::int64_t x, std::int64_t to) { return (x + to - 1) / to * to; }

/// "name.3.200.5": what filling an operand needs to know beside its declaration.
std::string numbered(const std::string& name, std::initializer_list<std::int64_t> numbers) {
  std::string s = name;
  for (const std::int64_t n : numbers) s += '.' + std::to_string(n);
  return s;
}
/// How a matrix enters: as it is, converted on its way, or with scales of blocks.
enum class Way : std::uint8_t { plain, cast, factor, scaled };
struct Entry {
  Way way = Way::plain;
  DataType stored = bf16, enters = bf16;
  std::int64_t block = 0;
  DataType scale = fp8_e8m0;
  bool interleaved = false;
};
/// What a product is made of.
struct Product {
  Entry a, b;
  DataType compute = not_set;
  bool fast = false;
};

class Drawer {
 public:
  Drawer(std::uint64_t seed, int call, Graph& g)
      : r_(seed * 0x2545F4914F6CDD1DULL + 99),
        live_(seed * 64 + 7 + static_cast<std::uint64_t>(call)),
        call_(call),
        is_large_(call % 3 == 2),
        g_(g) {}

  void run() {
    const std::int64_t dice = r_.between(0, 99);
    kind_ = dice < 50 ? Kind::dense : dice < 62 ? Kind::runs : dice < 70 ? Kind::rope : dice < 94 ? Kind::rows : Kind::gradient;
    draw_product_kind();
    draw_extents();
    draw_products();
    if (kind_ == Kind::rope) return finish_rope();
    if (kind_ == Kind::runs) take_runs();
    for (std::int64_t steps = accumulates_ ? 0 : r_.pick({0, 0, 1, 1, 2, 3}); steps > 0; --steps) step();
    finish();
  }
  std::pair<std::size_t, DataType> weights() const {
    return {static_cast<std::size_t>(4 * round_up(k_, 16) * round_up(n_, 16)), product_.b.stored};
  }
  std::pair<std::size_t, DataType> scales() const {
    return {static_cast<std::size_t>(round_up(k_, 64) * round_up(n_, 128)), product_.b.scale};
  }

 private:
  enum class Kind : std::uint8_t { dense, runs, rope, rows, gradient };

  bool grouped() const { return kind_ == Kind::rows || kind_ == Kind::gradient; }

  Entry scaled_entry(DataType stored, std::int64_t block, DataType scale, bool interleaved) const {
    return {Way::scaled, stored, fp32, block, scale, interleaved};
  }

  void draw_product_kind() {
    Product& p = product_;
    const bool interleaved = kind_ != Kind::rows && r_.chance(50);
    const auto wide = [&](DataType t) { return Entry{Way::plain, t, t}; };
    const auto converted = [&](DataType to) {
      const DataType from = r_.pick({fp32, bf16, fp16, int8, fp8_e4m3});
      return Entry{r_.chance(50) || from == to ? Way::factor : Way::cast, from, to};
    };
    const DataType half = r_.pick({bf16, bf16, fp16});
    const bool swaps = r_.chance(50);
    switch (r_.between(0, kind_ == Kind::gradient ? 6 : 11)) {
      case 0: p.a = p.b = wide(half); break;
      case 1: p.a = p.b = wide(fp32), p.compute = tf32; break;
      case 2: p.a = p.b = wide(int8), p.compute = int32; break;
      case 3: p.a = wide(r_.pick({fp8_e4m3, fp8_e5m2})), p.b = wide(r_.pick({fp8_e4m3, fp8_e5m2})), p.fast = r_.chance(40); break;
      case 4:  // in registers, where all else fits
        p.a = {Way::cast, r_.pick({int8, uint8, fp8_e4m3, fp8_e5m2}), half};
        p.b = r_.chance(70) ? wide(half) : p.a;
        break;
      case 5: p.a = converted(half), p.b = r_.chance(60) ? wide(half) : converted(half); break;
      case 6: p.a = converted(fp8_e4m3), p.b = wide(r_.pick({fp8_e4m3, fp8_e5m2})), p.fast = r_.chance(40); break;
      case 7:
        p.a = scaled_entry(r_.pick({fp8_e4m3, fp8_e5m2}), 32, fp8_e8m0, interleaved);
        p.b = scaled_entry(r_.pick({fp8_e4m3, fp8_e5m2}), 32, fp8_e8m0,
                           r_.chance(80) || kind_ == Kind::rows ? interleaved : !interleaved);
        break;
      case 8:
        p.a = p.b = r_.chance(60) ? scaled_entry(fp4_e2m1, 16, fp8_e4m3, interleaved)
                                  : scaled_entry(fp4_e2m1, r_.pick({16, 32}), fp8_e8m0, interleaved);
        break;
      case 9:
        p.a = scaled_entry(fp4_e2m1, 32, fp8_e8m0, interleaved);
        p.b = scaled_entry(r_.pick({fp8_e4m3, fp8_e5m2}), 32, fp8_e8m0, interleaved);
        break;
      default:
        p.a = r_.chance(50) ? scaled_entry(fp4_e2m1, 16, fp8_e4m3, interleaved)
                            : scaled_entry(r_.pick({fp4_e2m1, fp8_e4m3}), 32, fp8_e8m0, interleaved);
        p.b = r_.chance(75) ? wide(p.a.block == 16 ? half : bf16) : converted(bf16);
        break;
    }
    if (swaps) std::swap(p.a, p.b);
    is_scaled_ = p.a.way == Way::scaled || p.b.way == Way::scaled;
  }

  void draw_extents() {
    const auto side = [&] {
      const std::int64_t dice = r_.between(0, 99);
      return dice < 15   ? r_.between(1, 32)
             : dice < 25 ? r_.between(33, 64)
             : dice < 88 ? r_.between(65, 300)
                         : r_.between(500, 1100);
    };
    m_ = side(), n_ = side(), k_ = r_.between(1, 300);
    const std::int64_t unit = r_.pick({1, 2, 8, 16, 16, 32, 32});
    m_ = round_up(m_, r_.pick({std::int64_t{1}, unit})), n_ = round_up(n_, unit),
    k_ = round_up(k_, r_.pick({std::int64_t{1}, unit, unit}));
    if (is_scaled_) k_ = round_up(k_, r_.pick({2, 32}));
    if (kind_ == Kind::runs) n_ = round_up(n_, 64);
    if (kind_ == Kind::rope) head_ = r_.pick({64, 128, 192}), n_ = round_up(n_, head_), m_ = round_up(m_, r_.pick({1, 32}));
    if (m_ * n_ > 300'000) k_ = round_up(std::min<std::int64_t>(k_, 64), 32);
    l_ = grouped() ? 1 : r_.pick({1, 1, 2, 3});
    if (l_ > 1 && r_.chance(30)) (r_.chance(50) ? broadcast_a_ : broadcast_b_) = true;
    groups_ = r_.between(1, 9), experts_ = r_.chance(50) ? groups_ : r_.between(1, groups_);
    mode_ = kind_ == Kind::rows ? r_.pick({MoeMode::none, MoeMode::none, MoeMode::gather, MoeMode::scatter}) : MoeMode::none;
    top_k_ = mode_ == MoeMode::scatter ? 2 : 1;
    if (mode_ == MoeMode::scatter) m_ = round_up(m_, 2);
    tokens_ = mode_ == MoeMode::gather ? r_.between(1, 200) : m_;
    pitch_ = r_.pick({1, 1, 2, 4, 8, 16, 16, 16, 16});
    by_address_ = kind_ == Kind::rows && r_.chance(40);
    scales_by_address_ = by_address_ && r_.chance(50);
    unit_m_ = unit_of(m_), unit_n_ = std::max(unit_of(n_), kind_ == Kind::rope ? head_ : 1);
    if (call_ != 0) draw_live();
  }

  /// The largest power of two up to 64 that divides it.
  static std::int64_t unit_of(std::int64_t extent) {
    std::int64_t unit = 1;
    while (unit < 64 && extent % (2 * unit) == 0) unit *= 2;
    return unit;
  }
  /// Of a call: what is 1 or tells of an alignment stays so.
  void draw_live() {
    const auto draw = [&](std::int64_t& extent, std::int64_t unit, std::int64_t most) {
      if (extent > 1) extent = unit * live_.between(1, std::max<std::int64_t>(1, most / unit));
    };
    // Many tiles of little depth, a block after the other; or few of any.
    const std::int64_t most = is_large_ ? 2600 : 400, unit_k = unit_of(k_);
    draw(m_, unit_m_, most);
    if (!by_address_) draw(n_, unit_n_, most), draw(k_, unit_k, is_large_ ? 96 : 260);
    if (l_ > 1) l_ = live_.between(1, is_large_ ? 2 : 4);
    if (groups_ > 1) groups_ = live_.between(1, 12);
    if (mode_ == MoeMode::gather && tokens_ > 1) tokens_ = live_.between(1, 200);
    if (mode_ != MoeMode::gather) tokens_ = m_;
  }

  /// A matrix of a batch; lines along the last axis or the one before, a few elements apart where `gap` says so.
  Tensor matrix(const std::string& name, Dims dim, bool along_last, DataType type, std::int64_t pitch) {
    Dims stride(3, 1);
    const std::size_t inner = along_last ? 2 : 1, outer = along_last ? 1 : 2;
    stride[inner] = 1;
    stride[outer] = round_up(dim[inner], pitch);
    stride[0] = stride[outer] * dim[outer];
    if (pitch == 1 && r_.chance(30)) stride[0] += type == fp4_e2m1 ? 2 : 1;
    return g_.tensor({.name = name, .dim = std::move(dim), .stride = std::move(stride), .data_type = type});
  }
  std::string fresh(const char* stem) { return stem + std::to_string(count_++); }

  /// (batch, rows, depth), or with the last two exchanged for B.
  Tensor enter(bool is_a, std::int64_t batch, std::int64_t rows, const Entry& e) {
    const bool along_k = e.stored == fp4_e2m1 || r_.chance(65);
    const std::int64_t pitch = e.stored == fp4_e2m1 ? std::max<std::int64_t>(pitch_, 2) : pitch_;
    const Dims dim = is_a ? Dims{batch, rows, k_} : Dims{batch, k_, rows};
    Tensor x = matrix(fresh(is_a ? "a" : "b"), dim, along_k == is_a, e.stored, pitch);
    const bool by_address = !is_a && by_address_ && (addressed_++ == 0 || r_.chance(60));
    if (by_address) x.set_by_pointers(true);
    if (e.way == Way::scaled) {
      const std::int64_t blocks = (k_ + e.block - 1) / e.block;
      const std::int64_t r = e.interleaved ? round_up(rows, 128) : rows, c = e.interleaved ? round_up(blocks, 4) : blocks;
      const Dims of_scales = is_a ? Dims{batch, r, c} : Dims{batch, c, r};
      const Dims stride = {r * c, is_a ? c : 1, is_a ? 1 : c};
      Tensor s = g_.tensor({.name = numbered(fresh(e.interleaved ? "atoms" : "scales"), {batch, rows, blocks}),
                            .dim = of_scales,
                            .stride = stride,
                            .data_type = e.scale,
                            .reordering = e.interleaved ? TensorReordering::f8_128x4 : TensorReordering::none});
      s.set_by_pointers(by_address && scales_by_address_);
      return g_.block_scale_dequantize(x, s, is_a ? Dims{1, 1, e.block} : Dims{1, e.block, 1});
    }
    if (e.way == Way::cast) x = g_.pointwise(PointwiseMode::identity, {x}).set_data_type(e.enters);
    if (e.way == Way::factor)
      x = g_.mul(x, g_.tensor({.name = fresh("factor"), .dim = {1, 1, 1}, .stride = {1, 1, 1}, .data_type = fp32}))
              .set_data_type(e.enters);
    return x;
  }

  Tensor multiply(const Tensor& a, const Tensor& b) {
    const NodeAttributes computes{.compute_data_type = product_.compute};
    Tensor y;
    if (kind_ == Kind::gradient)
      y = g_.moe_grouped_matmul_bwd(a, b, offsets_,
                                    {.compute_data_type = product_.compute, .offsets = ends_, .accumulate = accumulates_});
    else if (kind_ == Kind::rows)
      y = g_.moe_grouped_matmul(
          a, b, offsets_,
          {.compute_data_type = product_.compute, .mode = mode_, .top_k = top_k_, .offsets = ends_, .zero_fill = zero_fill_},
          index_, slot_);
    else
      y = g_.matmul(a, b, computes, 0.0, product_.fast);
    y.set_data_type(product_.compute == int32 ? r_.pick({int32, fp32})
                    : kind_ == Kind::rope     ? bf16
                                              : r_.pick({fp32, fp32, bf16}));
    return y;
  }

  void draw_products() {
    std::int64_t a_batch = broadcast_a_ ? 1 : l_, b_batch = broadcast_b_ ? 1 : l_, a_rows = m_;
    if (grouped()) {
      ends_ = r_.chance(40) ? MoeOffsets::end : MoeOffsets::first_token;
      const std::int64_t rows = kind_ == Kind::gradient ? k_ : m_;
      offsets_ =
          g_.tensor({.name = numbered("offsets", {rows}), .dim = {groups_}, .stride = {1}, .data_type = r_.pick({int32, int64})});
      const auto list = [&](const std::string& name) {
        return g_.tensor({.name = name, .dim = {1, m_, 1}, .stride = {m_, 1, 1}, .data_type = int32});
      };
      if (mode_ == MoeMode::gather) index_ = list(numbered("gathered", {tokens_}));
      if (mode_ == MoeMode::scatter) index_ = list("scattered"), slot_ = list("slots");
      a_rows = mode_ == MoeMode::gather ? tokens_ : m_;
      b_batch = kind_ == Kind::gradient ? 1 : experts_;
      zero_fill_ = kind_ == Kind::rows && mode_ != MoeMode::scatter && r_.chance(25);
      accumulates_ = kind_ == Kind::gradient && r_.chance(40);
    }
    // (1, depth, M) and (1, depth, N) are what a gradient reads.
    const auto enter_gradient = [&](bool is_a, const Entry& e) {
      Tensor x = matrix(fresh(is_a ? "a" : "b"), {1, k_, is_a ? m_ : n_}, r_.chance(75), e.stored, pitch_);
      if (e.way == Way::cast) x = g_.pointwise(PointwiseMode::identity, {x}).set_data_type(e.enters);
      if (e.way == Way::factor)
        x = g_.mul(x, g_.tensor({.name = fresh("factor"), .dim = {1, 1, 1}, .stride = {1, 1, 1}, .data_type = fp32}))
                .set_data_type(e.enters);
      return x;
    };
    const auto a = [&] {
      return kind_ == Kind::gradient ? enter_gradient(true, product_.a) : enter(true, a_batch, a_rows, product_.a);
    };
    const auto b = [&] {
      return kind_ == Kind::gradient ? enter_gradient(false, product_.b) : enter(false, b_batch, n_, product_.b);
    };
    const Tensor first_a = a(), first_b = b();
    value_ = multiply(first_a, first_b);
    results_.push_back(value_);
    if ((kind_ == Kind::dense || kind_ == Kind::rows) && r_.chance(20)) {
      const bool other_a = r_.chance(30), other_b = !other_a || r_.chance(30);
      const Tensor second = multiply(other_a ? a() : first_a, other_b ? b() : first_b);
      value_ = g_.pointwise(r_.pick({PointwiseMode::add, PointwiseMode::sub, PointwiseMode::max}), {value_, second});
      value_.set_data_type(fp32);
      results_.push_back(value_);
    }
    batch_ = kind_ == Kind::gradient ? groups_ : l_;
  }

  void take_runs() {
    if (r_.chance(50)) step();
    const Tensor up = g_.take_runs(value_, 32, false), gate = g_.take_runs(value_, 32, true);
    if (r_.chance(80)) whole_.push_back(value_);
    value_ = g_.pointwise(PointwiseMode::add, {up, g_.relu(gate)}).set_data_type(r_.pick({fp32, bf16}));
    results_ = {value_};
    columns_ = n_ / 2;
  }

  // ---- behind the product

  std::int64_t columns() const { return columns_ == 0 ? n_ : columns_; }
  /// What lies along the first axis of an operand of the epilogue.
  std::int64_t first_axis() const { return grouped() ? groups_ : l_; }

  Tensor operand() {
    const std::int64_t dice = r_.between(0, 6);
    const DataType type = r_.pick({fp32, bf16, bf16, fp16, int8});
    const auto narrow = [&](const char* stem, Dims dim) {
      Dims stride(3, 1);
      stride[1] = dim[2] == 1 ? 1 : dim[2], stride[0] = dim[1] * dim[2] + (r_.chance(20) ? 1 : 0);
      return g_.tensor({.name = fresh(stem), .dim = std::move(dim), .stride = std::move(stride), .data_type = type});
    };
    const std::int64_t batch = r_.chance(60) ? first_axis() : 1;
    switch (dice) {
      case 0:
        return g_.tensor(
            {.name = fresh("host"), .dim = {1, 1, 1}, .stride = {1, 1, 1}, .data_type = fp32, .pass_by_value = true});
      case 1: return narrow("x", {batch, 1, 1});
      case 2: return narrow("x", {batch, 1, columns_ == 0 ? n_ : 1});
      case 3:
        // Rows of tokens have no group of their own.
        return narrow("x", {kind_ == Kind::rows ? 1 : batch, m_, 1});
      case 4: return g_.scalar(r_.pick({0.5, -1.0, 2.0}));
      default:
        if (columns_ != 0 || kind_ == Kind::runs) return narrow("x", {batch, m_, 1});
        return matrix(fresh("x"), {kind_ == Kind::rows ? 1 : batch, m_, n_}, r_.chance(75), r_.pick({fp32, bf16, bf16, fp16}),
                      pitch_);
    }
  }

  void step() {
    const DataType type = r_.pick({fp32, fp32, bf16, fp16});
    if (r_.chance(25)) {
      value_ = g_.pointwise(r_.pick({PointwiseMode::relu, PointwiseMode::abs, PointwiseMode::neg}), {value_});
    } else {
      const Tensor x = operand();
      const PointwiseMode mode = r_.pick({PointwiseMode::add, PointwiseMode::add, PointwiseMode::sub, PointwiseMode::mul,
                                          PointwiseMode::max, PointwiseMode::min});
      value_ = r_.chance(70) ? g_.pointwise(mode, {value_, x}) : g_.pointwise(mode, {x, value_});
    }
    value_.set_data_type(type);
    results_.push_back(value_);
  }

  void store(Tensor x, std::int64_t columns, bool along_n) {
    x.set_output(true);
    const std::int64_t inner = along_n ? columns : m_, pitch = round_up(inner, pitch_);
    x.set_stride({pitch * (along_n ? m_ : columns), along_n ? pitch : 1, along_n ? 1 : pitch});
  }

  void reduce() {
    const bool exact_sums = !is_scaled_;
    const auto mode =
        exact_sums
            ? r_.pick({ReductionMode::add, ReductionMode::norm1, ReductionMode::amax, ReductionMode::max, ReductionMode::min})
            : r_.pick({ReductionMode::amax, ReductionMode::max, ReductionMode::min});
    Dims dim{batch_, m_, columns()};
    const std::int64_t dice = r_.between(0, 2);
    if (dice != 1 || kind_ == Kind::runs) dim[1] = 1;
    if (dice != 0 || kind_ == Kind::runs) dim[2] = 1;
    bool by_groups = false;
    if (kind_ == Kind::rows && dim[1] == 1) dim[0] = (by_groups = r_.chance(50)) ? groups_ : 1;
    if (kind_ != Kind::rows && r_.chance(40)) dim[0] = 1;
    Tensor y = g_.reduction(value_, mode, {}, by_groups ? offsets_ : Tensor());
    y.set_dim(dim).set_output(true).set_data_type(fp32);
  }

  void quantise(Tensor x, bool may_be_along_m) {
    const bool along_m = may_be_along_m && r_.chance(45);
    const std::int64_t block = kind_ == Kind::rope ? 32 : r_.pick({16, 32, 32});
    if ((along_m ? unit_m_ : columns_ == 0 ? unit_n_ : unit_n_ / 2) % block != 0) return;
    DataType data = r_.pick({fp8_e4m3, fp8_e5m2, fp4_e2m1});
    if (kind_ == Kind::rope) data = r_.pick({fp8_e4m3, fp8_e5m2});
    if (data == fp4_e2m1 && !along_m && r_.chance(30)) {
      g_.pointwise(PointwiseMode::identity, {x}).set_data_type(data).set_output(true);
      return;
    }
    const bool transposes = along_m && r_.chance(30);
    auto [y, s] =
        transposes ? g_.block_scale_quantize(x, block, {}, {}, true) : g_.block_scale_quantize(x, block, along_m ? 1 : 2);
    y.set_data_type(data).set_output(true);
    s.set_data_type(r_.pick({fp8_e8m0, fp8_e4m3})).set_output(true);
    if (kind_ != Kind::rows && r_.chance(60)) s.set_reordering_type(TensorReordering::f8_128x4);
  }

  void finish_rope() {
    const std::int64_t lines = r_.chance(25) ? 1 : m_, batches = r_.chance(60) ? 1 : l_;
    const auto table = [&](const char* name) {
      return g_.tensor({.name = name, .dim = {batches, lines, 64}, .stride = {lines * 64, 64, 1}, .data_type = bf16});
    };
    const Tensor z = g_.rope(value_, table("cos"), table("sin"), head_);
    quantise(z, r_.chance(50) && unit_m_ % 32 == 0);
    if (r_.chance(50)) quantise(z, true);
  }

  void finish() {
    const bool quantises = !accumulates_ && r_.chance(30), reduces = !accumulates_ && r_.chance(35);
    const bool has_d = kind_ == Kind::runs || !reduces || r_.chance(70);
    const bool along_n = r_.chance(75);
    const DataType type = product_.compute == int32 && r_.chance(40) ? int32 : r_.pick({fp32, bf16, bf16, fp16, fp8_e4m3, int8});
    if (quantises)
      for (std::int64_t i = r_.pick({1, 1, 2}); i > 0; --i) quantise(value_, kind_ != Kind::rows && kind_ != Kind::runs);
    if (reduces)
      for (std::int64_t i = r_.pick({1, 1, 2}); i > 0; --i) reduce();
    for (Tensor& x : whole_) {
      x.set_data_type(r_.pick({fp32, bf16}));
      store(x, n_, along_n);
    }
    if (has_d && !accumulates_) {
      // A copy in the type that is stored, so that what else reads the value has it unrounded.
      Tensor d = quantises || reduces || r_.chance(50) ? g_.pointwise(PointwiseMode::identity, {value_}) : value_;
      d.set_data_type(type);
      store(d, columns(), along_n);
      if (results_.size() > 1 && r_.chance(35)) {
        Tensor other = g_.pointwise(PointwiseMode::identity, {results_[results_.size() - 2]})
                           .set_data_type(r_.pick({fp32, bf16, fp16, fp8_e4m3}));
        store(other, columns(), r_.chance(85) ? along_n : !along_n);
      }
    } else if (accumulates_) {
      value_.set_data_type(r_.pick({fp32, bf16}));
      value_.set_output(true);
    }
  }

  Random r_, live_;  ///< what is declared, and extents of a call
  int call_;
  bool is_large_;
  Graph& g_;
  Kind kind_ = Kind::dense;
  Product product_;
  bool is_scaled_ = false, broadcast_a_ = false, broadcast_b_ = false, by_address_ = false, scales_by_address_ = false,
       zero_fill_ = false, accumulates_ = false;
  std::int64_t l_ = 1, m_ = 1, n_ = 1, k_ = 1, head_ = 64, groups_ = 1, experts_ = 1, tokens_ = 1, top_k_ = 1, pitch_ = 1,
               unit_m_ = 1, unit_n_ = 1;
  std::int64_t batch_ = 1, columns_ = 0;
  MoeMode mode_ = MoeMode::none;
  MoeOffsets ends_ = MoeOffsets::first_token;
  Tensor offsets_, index_, slot_, value_;
  std::vector<Tensor> results_, whole_;
  int count_ = 0, addressed_ = 0;
};

}  // namespace

void FeatureGraph::describe(Graph& g) const { Drawer(seed_, call_, g).run(); }

FeatureGraph::ByAddress FeatureGraph::by_address() const {
  Graph g;
  Drawer drawer(seed_, call_, g);
  drawer.run();
  return {drawer.weights(), drawer.scales()};
}

}  // namespace support
