#include "support/grouped_generator.hpp"

#include <algorithm>
#include <utility>

namespace support {
namespace {

using oracle::Format;
using oracle::Routing;
using verglas::DataType;
using Dims = std::vector<std::int64_t>;

DataType library(Format f) { return static_cast<DataType>(f); }
constexpr std::size_t at(Axis a) { return static_cast<std::size_t>(a); }

class Generator {
 public:
  explicit Generator(std::uint64_t seed) : r_(seed * 0x9E3779B97F4A7C15ULL + 5) { c_.seed = seed; }

  Case run() {
    c_.graph = verglas::Graph({.io_data_type = DataType::fp32});
    c_.data = r_.chance(75) ? Data::small_integers : Data::normal;
    draw_shape();
    draw_products();
    const std::int64_t steps = accumulates_ ? 0 : r_.between(0, 4);
    for (std::int64_t i = 0; i < steps; ++i) draw_step();
    if (!accumulates_) draw_reductions();
    if (!accumulates_ && !is_integer_ && extent(Axis::n) % 32 == 0 && !is_gradient_) draw_quantised();
    output(value_);
    return std::move(c_);
  }

 private:
  bool combines() const { return routing_ == Routing::combine; }
  std::int64_t extent(Axis a) const { return c_.declared[at(a)]; }
  oracle::Tensor& tensor(int i) { return c_.reference.tensors[static_cast<std::size_t>(i)]; }
  verglas::Tensor& handle(int i) { return handles_[static_cast<std::size_t>(i)]; }

  void draw_shape() {
    is_gradient_ = r_.chance(25);
    accumulates_ = is_gradient_ && r_.chance(40);
    routing_ = is_gradient_ ? Routing::plain
                            : r_.pick({Routing::plain, Routing::plain, Routing::gather, Routing::scatter, Routing::combine});
    are_ends_ = r_.chance(40);
    zero_fill_ = !is_gradient_ && r_.chance(30);
    is_integer_ = r_.chance(35);
    c_.declared = {1, 1, r_.between(2, 60), r_.between(2, 24), r_.between(2, 40), r_.between(1, 6), 1, r_.between(2, 30)};
    if (r_.chance(6)) c_.declared[at(Axis::n)] = r_.pick({32, 64});
    if (r_.chance(6)) c_.declared[at(Axis::g)] = r_.between(7, 60);
    c_.declared[at(Axis::e)] = r_.chance(50) ? extent(Axis::g) : r_.between(1, extent(Axis::g) + 1);
    if (is_gradient_) std::swap(c_.declared[at(Axis::m)], c_.declared[at(Axis::k)]);  // the depth is that of the rows
    top_k_ = routing_ == Routing::scatter ? r_.between(1, 3) : combines() ? r_.between(1, 8) : 1;
    c_.declared[at(Axis::s)] = top_k_;
  }

  int input(const std::string& name, Format format, std::vector<Axis> axes, Duty duty, bool is_b = false) {
    oracle::Tensor t;
    t.name = name;
    t.format = format;
    for (const Axis a : axes) t.dims.push_back(extent(a));
    t.strides = r_.chance(70) || (duty != Duty::none && duty != Duty::token) ? oracle::packed_strides(t.dims)
                                                                             : draw_input_layout(t.dims, r_);
    if (is_b && r_.chance(50)) {  // K before N in memory
      const Dims turned = oracle::packed_strides({t.dims[0], t.dims[2], t.dims[1]});
      t.strides = {turned[0], turned[2], turned[1]};
    }
    handles_.push_back(c_.graph.tensor({.name = name, .dim = t.dims, .stride = t.strides, .data_type = library(format)}));
    if (duty == Duty::table) {
      t.is_table = true;
      handles_.back().set_by_pointers(true);
    }
    const int i = c_.reference.add(std::move(t));
    handles_.back().set_uid(tensor(i).uid);
    CaseOperand o;
    o.tensor = i;
    o.axes = std::move(axes);
    o.duty = duty;
    o.is_only_b = is_b && duty == Duty::none;
    c_.operands.push_back(std::move(o));
    return i;
  }

  /// Tensor that a node just made, in both forms.
  int track(int i, verglas::Tensor h) {
    h.set_name(tensor(i).name).set_uid(tensor(i).uid).set_data_type(library(tensor(i).format));
    handles_.push_back(std::move(h));
    tensor(i).is_virtual = true;
    return i;
  }

  oracle::Tensor computed(Format format, Dims dims) {
    oracle::Tensor t;
    t.name = "v" + std::to_string(c_.reference.tensors.size());
    t.format = format;
    t.dims = std::move(dims);
    return t;
  }

  Dims result_dims() const { return {is_gradient_ ? extent(Axis::g) : 1, extent(Axis::m), extent(Axis::n)}; }
  std::vector<Axis> result_axes() const { return {is_gradient_ ? Axis::g : Axis::one, Axis::m, Axis::n}; }

  void draw_products() {
    const Format wide = r_.chance(40) ? Format::int64 : Format::int32;
    const bool flat = r_.chance(50);
    offsets_ = input("offsets", wide, flat ? std::vector{Axis::g} : std::vector{Axis::g, Axis::one, Axis::one}, Duty::offsets);
    const bool has_tokens = routing_ == Routing::gather || combines();
    const Axis listed = combines() ? Axis::t : Axis::m;
    const std::vector<Axis> list = flat ? std::vector{listed} : std::vector{Axis::one, listed, Axis::one};
    if (routing_ != Routing::plain) index_ = input("index", Format::int32, list, Duty::index);
    if (routing_ == Routing::scatter || combines()) slot_ = input("slot", Format::int32, list, Duty::slot);
    if (combines())
      scores_ = input("xs", r_.pick({Format::fp32, Format::bf16, Format::fp16}),
                      r_.pick({std::vector{Axis::m, Axis::s}, {Axis::one, Axis::m, Axis::s}, {Axis::m, Axis::s, Axis::one}}),
                      Duty::none);
    const Format type = is_integer_ ? Format::int8 : r_.pick({Format::fp32, Format::bf16, Format::fp16});
    const Axis rows = is_gradient_ ? Axis::k : has_tokens ? Axis::t : Axis::m;
    const int a = input("a0", type, {Axis::one, rows, is_gradient_ ? Axis::m : Axis::k}, Duty::token);
    const bool is_table = !is_gradient_ && r_.chance(20);
    const std::int64_t products = accumulates_ || r_.chance(75) ? 1 : 2;
    for (std::int64_t p = 0; p < products; ++p) {
      const std::string name = "b" + std::to_string(p);
      const int b = is_gradient_ ? input(name, type, {Axis::one, Axis::k, Axis::n}, Duty::token)
                                 : input(name, type, {Axis::e, Axis::k, Axis::n}, is_table ? Duty::table : Duty::none, !is_table);
      const int made = product(
          p == 1 && r_.chance(30) ? input("a1", type, {Axis::one, rows, is_gradient_ ? Axis::m : Axis::k}, Duty::token) : a, b);
      value_ = p == 0 ? made : step(r_.pick({oracle::Pointwise::mul, oracle::Pointwise::add}), {value_, made});
    }
  }

  int product(int a, int b) {
    oracle::Node node;
    node.kind = is_gradient_ ? oracle::NodeKind::grouped_gradient : oracle::NodeKind::grouped;
    node.inputs = {a, b, offsets_};
    if (index_ >= 0) node.inputs.push_back(index_);
    if (slot_ >= 0) node.inputs.push_back(slot_);
    if (scores_ >= 0) node.inputs.push_back(scores_);
    node.routing = routing_;
    node.are_ends = are_ends_;
    node.top_k = top_k_;
    node.zero_fill = zero_fill_;
    node.accumulate = accumulates_;
    node.compute = is_integer_ ? Format::int32 : Format::fp32;
    const auto offsets = are_ends_ ? verglas::MoeOffsets::end : verglas::MoeOffsets::first_token;
    verglas::Tensor h;
    if (is_gradient_)
      h = c_.graph.moe_grouped_matmul_bwd(
          handle(a), handle(b), handle(offsets_),
          {.compute_data_type = library(node.compute), .offsets = offsets, .accumulate = accumulates_});
    else
      h = c_.graph.moe_grouped_matmul(handle(a), handle(b), handle(offsets_),
                                      {.compute_data_type = library(node.compute),
                                       .mode = static_cast<verglas::MoeMode>(routing_),
                                       .top_k = top_k_,
                                       .offsets = offsets,
                                       .zero_fill = zero_fill_},
                                      index_ < 0 ? verglas::Tensor() : handle(index_),
                                      slot_ < 0 ? verglas::Tensor() : handle(slot_),
                                      scores_ < 0 ? verglas::Tensor() : handle(scores_));
    // What is added to is of any of these types: fractions stay where sums of integers come to them.
    const Format added_to = accumulates_ && r_.chance(50) ? Format::bf16 : Format::fp32;
    node.output =
        c_.reference.add(computed(is_integer_ && (!accumulates_ || r_.chance(50)) ? Format::int32 : added_to, result_dims()));
    const int out = node.output;
    c_.reference.nodes.push_back(std::move(node));
    return track(out, std::move(h));
  }

  int step(oracle::Pointwise mode, std::vector<int> inputs) {
    std::vector<verglas::Tensor> handles;
    for (const int i : inputs) handles.push_back(handle(i));
    verglas::Tensor h =
        c_.graph.pointwise(static_cast<verglas::PointwiseMode>(*verglas::pointwise_from_name(oracle::name_of(mode))), handles);
    const Format format = is_integer_ || r_.chance(80) ? Format::fp32 : Format::bf16;
    return track(c_.reference.apply(mode, std::move(inputs), computed(format, result_dims())), std::move(h));
  }

  void draw_step() {
    using oracle::Pointwise;
    if (r_.chance(25)) {
      value_ = step(r_.pick({Pointwise::relu, Pointwise::abs, Pointwise::neg}), {value_});
      return;
    }
    std::vector<Axis> axes = {Axis::one, Axis::one, Axis::one};
    switch (r_.between(combines() ? 2 : 0, 4)) {
      case 0: axes = {Axis::g, Axis::one, Axis::n}; break;    // bias of each group
      case 1: axes = {Axis::g, Axis::one, Axis::one}; break;  // alpha of each group
      case 2: axes[1] = Axis::m; break;                       // probability of each row
      case 3: axes[2] = Axis::n; break;
      default: axes = result_axes(); break;
    }
    const int aux =
        input("x" + std::to_string(c_.reference.tensors.size()), r_.pick({Format::fp32, Format::bf16}), axes, Duty::none);
    const Pointwise mode = r_.pick({Pointwise::add, Pointwise::mul, Pointwise::sub, Pointwise::max});
    value_ = r_.chance(50) ? step(mode, {value_, aux}) : step(mode, {aux, value_});
  }

  void draw_reductions() {
    using R = oracle::Reduction;
    for (std::int64_t n = r_.chance(45) ? r_.between(1, 2) : 0; n > 0; --n) {
      const R mode = r_.pick({R::add, R::amax, R::max, R::min, R::avg, R::norm1});
      std::vector<Axis> axes = {Axis::one, Axis::one, Axis::one};
      bool by_groups = false;
      switch (r_.between(0, combines() ? 2 : 3)) {
        case 0: break;
        case 1: axes[2] = Axis::n; break;
        case 2: axes[1] = Axis::m; break;
        default:
          axes[0] = Axis::g;
          if (r_.chance(50)) axes[2] = Axis::n;
          by_groups = !is_gradient_;
      }
      Dims dims;
      for (const Axis a : axes) dims.push_back(extent(a));
      const Format format = Format::fp32;
      verglas::Tensor h = c_.graph.reduction(handle(value_), *verglas::reduction_from_name(oracle::name_of(mode)), {},
                                             by_groups ? handle(offsets_) : verglas::Tensor());
      h.set_dim(dims);
      const int made = c_.reference.reduce(mode, value_, computed(format, dims), format);
      if (by_groups) c_.reference.nodes.back().inputs.push_back(offsets_);
      track(made, std::move(h));
      output(made, axes);
    }
  }

  void draw_quantised() {
    const auto both = c_.graph.block_scale_quantize(handle(value_), 32);
    Dims dims = result_dims();
    Dims blocks = dims;
    blocks[2] /= 32;
    const int data = c_.reference.quantize(value_, computed(Format::e4m3, dims), computed(Format::e8m0, blocks), 32, 2);
    tensor(data + 1).name = "s" + std::to_string(data + 1);
    track(data, both[0]);
    track(data + 1, both[1]);
    output(data);
    output(data + 1);
    c_.operands.back().block = 32;
    c_.operands.back().block_axis = 2;
    c_.unit[at(Axis::n)] = 32;
  }

  void output(int i) { output(i, result_axes()); }
  void output(int i, std::vector<Axis> axes) {
    tensor(i).is_virtual = false;
    tensor(i).is_output = true;
    handle(i).set_output(true);
    CaseOperand o;
    o.tensor = i;
    o.axes = std::move(axes);
    o.is_output = true;
    c_.operands.push_back(std::move(o));
  }

  Random r_;
  Case c_;
  bool is_gradient_ = false, accumulates_ = false, are_ends_ = false, zero_fill_ = false, is_integer_ = false;
  Routing routing_ = Routing::plain;
  std::int64_t top_k_ = 1;
  int offsets_ = -1, index_ = -1, slot_ = -1, scores_ = -1, value_ = -1;
  std::vector<verglas::Tensor> handles_;
};

}  // namespace

Case draw_grouped_case(std::uint64_t seed) { return Generator(seed).run(); }

}  // namespace support
