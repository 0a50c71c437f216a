#include "support/graph_generator.hpp"

#include <algorithm>
#include <optional>
#include <utility>

#include "oracle/block_scale.hpp"
#include "oracle/pointwise.hpp"

namespace support {
namespace {

using oracle::Format;
using verglas::DataType;
using Dims = std::vector<std::int64_t>;

DataType library(Format f) { return static_cast<DataType>(f); }

verglas::ReductionMode library(oracle::Reduction r) {
  using R = verglas::ReductionMode;
  switch (r) {
    case oracle::Reduction::add: return R::add;
    case oracle::Reduction::norm1: return R::norm1;
    case oracle::Reduction::amax: return R::amax;
    case oracle::Reduction::max: return R::max;
    case oracle::Reduction::min: return R::min;
    case oracle::Reduction::avg: return R::avg;
    case oracle::Reduction::mul: return R::mul;
    case oracle::Reduction::mul_no_zeros: return R::mul_no_zeros;
    case oracle::Reduction::norm2: return R::norm2;
  }
  return R::add;
}

bool all_ones(const Dims& dims) {
  return std::all_of(dims.begin(), dims.end(), [](std::int64_t d) { return d == 1; });
}

/// The reference gives more modes a meaning in int32 than the library, which serves arithmetic only.
bool is_served_in_int32(oracle::Pointwise mode) {
  using oracle::Pointwise;
  return oracle::defined_in_int32(mode) && mode != Pointwise::leaky_relu && mode != Pointwise::ceil && mode != Pointwise::floor &&
         mode < Pointwise::relu_backward;
}

/// What enters a product, and in what it is summed.
struct ProductTypes {
  Format operand, compute;
};

class Generator {
 public:
  Generator(std::uint64_t seed, const GeneratorOptions& options) : r_(seed * 2654435761ULL + 17), options_(options) {
    c_.seed = seed;
  }

  Case run() {
    draw_attributes();
    if (options_.block_scaled) draw_blocks();
    draw_shape();
    options_.block_scaled ? draw_scaled_products() : draw_products();
    const std::int64_t steps = r_.between(0, options_.most_steps);
    for (std::int64_t i = 0; i < steps; ++i) draw_step();
    draw_reductions();
    if (options_.block_scaled) draw_quantised();
    draw_outputs();
    return std::move(c_);
  }

 private:
  oracle::Tensor& tensor(int i) { return c_.reference.tensors[static_cast<std::size_t>(i)]; }
  verglas::Tensor& handle(int i) { return handles_[static_cast<std::size_t>(i)]; }
  std::string fresh(const char* stem) { return stem + std::to_string(c_.reference.tensors.size()); }

  void draw_attributes() {
    io_ = r_.pick({Format::not_set, Format::bf16, Format::fp16, Format::fp32});
    intermediate_ = r_.pick({Format::not_set, Format::not_set, Format::fp32, Format::bf16});
    compute_ = r_.pick({Format::not_set, Format::fp32});
    c_.graph = verglas::Graph({.name = "case " + std::to_string(c_.seed),
                               .io_data_type = library(io_),
                               .intermediate_data_type = library(intermediate_),
                               .compute_data_type = library(compute_)});
    if (io_ == Format::not_set) io_ = Format::bf16;
    if (intermediate_ == Format::not_set) intermediate_ = Format::fp32;
    c_.data = r_.chance(60) ? Data::small_integers : r_.chance(80) ? Data::normal : Data::wild;
    if (!options_.for_device) return;
    // Sums of blocks that are multiplied by their scales leave fp32's range elsewhere than elements that are.
    if (options_.block_scaled && c_.data == Data::wild) c_.data = Data::normal;
    c_.is_for_device = true;
    c_.has_kernel_types = options_.kernel_types;
    c_.most_live = options_.largest;
    c_.most_work = options_.most_work;
    pitch_unit_ = r_.pick({1, 1, 2, 4, 8, 8, 8, 8, 8, 8});
  }

  std::int64_t draw_extent() {
    const std::int64_t dice = r_.between(0, 99);
    if (options_.for_device) return dice < 2 ? 0 : dice < 8 ? 1 : r_.between(2, options_.largest);
    const std::int64_t drawn = dice < 3    ? 0
                               : dice < 15 ? 1
                               : dice < 55 ? r_.between(2, 9)
                               : dice < 85 ? r_.between(10, 33)
                                           : r_.between(34, options_.block_scaled ? 290 : 80);
    return std::min(drawn, options_.largest);
  }
  std::int64_t draw_extent(Axis a) {
    const std::int64_t unit = c_.unit[static_cast<std::size_t>(a)], drawn = draw_extent();
    return unit == 1 ? drawn : (drawn + unit - 1) / unit * unit;
  }

  void draw_shape() {
    rank_ = r_.chance(70) ? 3 : 2;
    const std::int64_t l = rank_ == 2 || r_.chance(40) ? 1 : r_.chance(4) ? 0 : r_.between(2, 4);
    c_.is_tied = !options_.block_scaled && r_.chance(8);
    do {
      const std::int64_t m = draw_extent(Axis::m);
      c_.declared = c_.is_tied ? Extents{1, l, m, m, m} : Extents{1, l, m, draw_extent(Axis::n), draw_extent(Axis::k)};
    } while (l * c_.declared[2] * c_.declared[3] * c_.declared[4] > options_.most_work);
    broadcast_a_ = l > 1 && !c_.is_tied && r_.chance(20);
    broadcast_b_ = l > 1 && !c_.is_tied && !broadcast_a_ && r_.chance(25);
  }

  std::int64_t extent(Axis a) const { return c_.declared[static_cast<std::size_t>(a)]; }

  // ---- tensors

  /// Declares a graph input in both forms and lists it as an operand.
  int input(const char* stem, std::vector<Axis> axes, Dims dims, Format format, Dims strides) {
    const std::string name = fresh(stem);
    verglas::TensorAttributes a{.name = name, .dim = dims, .stride = strides};
    if (!(format == io_ && r_.chance(50))) a.data_type = library(format);
    oracle::Tensor t;
    t.name = name;
    t.dims = std::move(dims);
    t.strides = std::move(strides);
    t.format = format;
    const int at = add(std::move(t), c_.graph.tensor(std::move(a)));
    CaseOperand operand;
    operand.tensor = at;
    operand.axes = std::move(axes);
    operand.is_only_b = *stem == 'b' && !c_.is_tied;
    c_.operands.push_back(std::move(operand));
    return at;
  }

  int add(oracle::Tensor t, verglas::Tensor h) {
    const int at = c_.reference.add(std::move(t));
    track(at, std::move(h), false);
    return at;
  }

  void track(int at, verglas::Tensor h, bool after) {
    tensor(at).uid = 1000 + at;
    h.set_uid(1000 + at);
    handles_.push_back(std::move(h));
    after_.push_back(after);
    read_.push_back(false);
  }

  /// A computed tensor as the reference declares it; the library's handle is told its type unless that is the default.
  oracle::Tensor computed(const char* stem, Dims dims, Format format) {
    oracle::Tensor t;
    t.name = fresh(stem);
    t.dims = std::move(dims);
    t.format = format;
    t.is_virtual = true;
    return t;
  }
  void declare(verglas::Tensor& h, const oracle::Tensor& t) {
    h.set_name(t.name);
    if (!(t.format == intermediate_ && r_.chance(50))) h.set_data_type(library(t.format));
  }
  void read(int i) { read_[static_cast<std::size_t>(i)] = true; }

  // ---- products

  ProductTypes draw_types() {
    if (options_.kernel_types && r_.chance(55)) return {r_.pick({Format::bf16, Format::fp16}), Format::fp32};
    if (options_.kernel_types)
      return r_.pick({ProductTypes{Format::fp32, Format::tf32}, ProductTypes{Format::e4m3, Format::fp32},
                      ProductTypes{Format::e5m2, Format::fp32}, ProductTypes{Format::int8, Format::int32}});
    const std::int64_t dice = r_.between(0, 9);
    if (dice < 3) return {Format::bf16, Format::fp32};
    if (dice < 5) return {Format::fp16, Format::fp32};
    if (dice < 7) return {Format::fp32, Format::fp32};
    if (dice < 8) return {Format::fp32, Format::tf32};
    if (dice < 9) return {r_.pick({Format::e4m3, Format::e5m2}), Format::fp32};
    return {Format::int8, Format::int32};
  }

  Dims input_layout(const Dims& dims) {
    Dims s = draw_layout(dims, r_, pitch_unit_);
    if (dims.size() == 3 && r_.chance(10)) s[0] = 0;
    if (r_.chance(3)) s[static_cast<std::size_t>(r_.between(0, static_cast<std::int64_t>(dims.size()) - 1))] = r_.between(0, 2);
    return s;
  }

  struct Axes {
    std::vector<Axis> axes;
    Dims dims;
  };
  /// Those of a matrix; its batch may be broadcast.
  Axes draw_axes(bool is_a) {
    const bool broadcast = (is_a ? broadcast_a_ : broadcast_b_) && r_.chance(70);
    Axes a{is_a ? std::vector{Axis::m, Axis::k} : std::vector{Axis::k, Axis::n}, {}};
    a.dims = {extent(a.axes[0]), extent(a.axes[1])};
    if (rank_ == 3) {
      const bool is_live = !broadcast && extent(Axis::l) != 1;
      a.axes.insert(a.axes.begin(), is_live ? Axis::l : Axis::one);
      a.dims.insert(a.dims.begin(), is_live ? extent(Axis::l) : 1);
    }
    return a;
  }

  /// A matrix with whatever is computed on its way into the product; answers the tensor that enters.
  int draw_matrix(bool is_a, Format entering) {
    auto [axes, dims] = draw_axes(is_a);
    const std::int64_t steps = c_.is_tied || !r_.chance(22) ? 0 : r_.between(1, 3);
    Format root = entering;
    if (steps > 0 && r_.chance(70)) root = r_.pick(kStored);
    Dims strides = input_layout(dims);
    int at = input(is_a ? "a" : "b", axes, dims, root, std::move(strides));
    for (std::int64_t i = 0; i < steps; ++i) at = draw_prologue_step(at, i + 1 == steps ? entering : draw_format());
    return at;
  }

  // ---- blocks

  /// Types and sizes of blocks, and what they ask of the extents.
  void draw_blocks() {
    scale_ = r_.chance(60) ? Format::e8m0 : Format::e4m3;
    block_ = r_.pick({16, 32});
    const bool only_fp8 = scale_ == Format::e8m0 && block_ == 32 && r_.chance(40);
    const bool only_fp4 = scale_ == Format::e4m3 || block_ == 16;
    c_.unit = {1, 1, r_.pick({1, 1, 16, 32}), r_.pick({1, 1, 16, 32}), only_fp8 ? 1 : 2};
    if (only_fp8) scaled_formats_ = {Format::e4m3, Format::e5m2};
    if (only_fp4) scaled_formats_ = {Format::e2m1};
  }

  /// Extents of the scales of data, as one of the ways in which a graph may declare them.
  Dims scale_dims(const Dims& data, std::size_t axis, int block, bool interleaved, bool is_output) {
    Dims plain = data;
    plain[axis] = (data[axis] + block - 1) / block;
    if (!interleaved || (!is_output && r_.chance(30))) return plain;
    bool swapped = false;
    const Dims e = oracle::atom_extents(plain, axis, swapped);
    const Dims whole{e[0], (e[1] + 127) / 128 * 128, (e[2] + 3) / 4 * 4};
    if (!is_output && r_.chance(30)) return {whole[0] * whole[1] * whole[2]};
    Dims dims = is_output || !swapped ? whole : Dims{whole[0], whole[2], whole[1]};
    if (data.size() == 2 && (is_output || r_.chance(50))) dims.erase(dims.begin());
    return dims;
  }

  /// Data with the scales of its blocks along K; answers the tensor that enters the product.
  int draw_scaled(bool is_a) {
    auto [axes, dims] = draw_axes(is_a);
    const std::size_t k = dims.size() - (is_a ? 1 : 2);
    const Format format = r_.pick(scaled_formats_);
    const bool fp4 = format == Format::e2m1;
    const int data =
        input(is_a ? "a" : "b", axes, dims, format, fp4 ? draw_packed_layout(dims, static_cast<int>(k), r_) : input_layout(dims));
    if (fp4) c_.operands.back().packed_axis = static_cast<int>(k);
    const bool interleaved = r_.chance(65);
    const Dims of_scales = scale_dims(dims, k, block_, interleaved, false);
    const int scale =
        input("f", axes, of_scales, scale_, interleaved ? oracle::packed_strides(of_scales) : draw_layout(of_scales, r_));
    c_.operands.back().block = block_;
    c_.operands.back().block_axis = k;
    tensor(scale).is_interleaved = interleaved;
    if (interleaved) handle(scale).set_reordering_type(verglas::TensorReordering::f8_128x4);
    Dims size = is_a ? Dims{1, block_} : Dims{block_, 1};
    if (r_.chance(30)) size = {block_};
    verglas::Tensor h = c_.graph.block_scale_dequantize(handle(data), handle(scale), std::move(size));
    oracle::Tensor t = computed("d", dims, r_.chance(75) ? Format::fp32 : r_.pick({Format::bf16, Format::fp16}));
    declare(h, t);
    read(data);
    read(scale);
    const int at = c_.reference.dequantize(data, scale, std::move(t), block_, k);
    track(at, std::move(h), false);
    return at;
  }

  void draw_scaled_products() {
    std::vector<int> as, bs;
    for (std::int64_t count = r_.chance(65) ? 1 : r_.between(2, 3); count > 0; --count) {
      const std::int64_t dice = r_.between(0, 99);
      const auto choose = [&](std::vector<int>& pool, bool is_a, bool scaled) {
        if (!scaled) return draw_matrix(is_a, r_.pick({Format::bf16, Format::fp16, Format::e4m3, Format::e5m2, Format::fp32}));
        if (!pool.empty() && r_.chance(45)) return r_.pick(pool);
        pool.push_back(draw_scaled(is_a));
        return pool.back();
      };
      const int a = choose(as, true, dice < 80);
      const int b = choose(bs, false, dice >= 80 || dice < 60);
      draw_product(a, b, Format::fp32);
    }
  }

  void draw_quantised() {
    for (std::int64_t count = r_.chance(45) ? 0 : r_.between(1, 2); count > 0; --count) {
      const int source = r_.chance(60) ? results_.back() : r_.pick(results_);
      const Dims dims = tensor(source).dims;
      if (dims.back() % 2 == 0 && c_.unit[3] % 2 == 0 && r_.chance(15)) {
        draw_pairs(source);
        continue;
      }
      const bool along_m = r_.chance(40);
      const int block = r_.pick({16, 32});
      const std::size_t axis = dims.size() - (along_m ? 2 : 1);
      if (dims[axis] % block != 0 || c_.unit[along_m ? 2 : 3] % block != 0) continue;
      Format format = r_.pick({Format::e4m3, Format::e5m2, Format::e2m1});
      if (format == Format::e2m1 && c_.unit[3] % 2 != 0) format = Format::e4m3;
      const Format of_scales = r_.pick({Format::e8m0, Format::e4m3});
      const double vmax = format == Format::e5m2 ? r_.pick({0.0, 128.0, 7168.0}) : 0.0;
      const bool transpose = along_m && r_.chance(30);
      std::optional<int> named;
      if (!transpose && (along_m || r_.chance(50))) named = along_m || r_.chance(50) ? static_cast<int>(axis) : -1;
      auto [data, scale] = c_.graph.block_scale_quantize(handle(source), block, named, {}, transpose, vmax);
      const bool interleaved = r_.chance(60);
      if (interleaved) scale.set_reordering_type(verglas::TensorReordering::f8_128x4);
      oracle::Tensor q = computed("q", dims, format),
                     s = computed("g", scale_dims(dims, axis, block, interleaved, true), of_scales);
      q.name = "q" + std::to_string(c_.reference.tensors.size());
      s.name = "g" + std::to_string(c_.reference.tensors.size());
      data.set_name(q.name);
      scale.set_name(s.name).set_data_type(library(of_scales)).set_output(true);
      s.is_interleaved = interleaved;
      s.is_virtual = false;
      s.is_output = true;
      if (r_.chance(50)) scale.set_dim(s.dims);
      read(source);
      const int at = c_.reference.quantize(source, std::move(q), std::move(s), block, axis, vmax);
      track(at, std::move(data), true);
      track(at + 1, std::move(scale), true);
      std::vector<Axis> axes{Axis::m, Axis::n};
      if (dims.size() == 3) axes.insert(axes.begin(), extent(Axis::l) == 1 ? Axis::one : Axis::l);
      make_output(at, axes);
      if (format == Format::e2m1) lay_in_pairs(at);
      if (!interleaved && r_.chance(50)) {
        tensor(at + 1).strides = draw_layout(tensor(at + 1).dims, r_);
        handle(at + 1).set_stride(tensor(at + 1).strides);
      }
      CaseOperand operand;
      operand.tensor = at + 1;
      operand.axes = std::move(axes);
      operand.is_output = true;
      operand.block = block;
      operand.block_axis = axis;
      c_.operands.push_back(std::move(operand));
    }
  }

  /// An output in fp4 as it is.
  void draw_pairs(int source) {
    const Dims dims = tensor(source).dims;
    const int at = apply("f", oracle::Pointwise::identity, {source}, dims, Format::e2m1, Format::fp32, true);
    std::vector<Axis> axes{Axis::m, Axis::n};
    if (dims.size() == 3) axes.insert(axes.begin(), extent(Axis::l) == 1 ? Axis::one : Axis::l);
    make_output(at, std::move(axes));
    lay_in_pairs(at);
  }

  /// Of the operand that came last.
  void lay_in_pairs(int at) {
    const int last = static_cast<int>(tensor(at).dims.size()) - 1;
    c_.operands.back().packed_axis = last;
    tensor(at).strides = draw_packed_layout(tensor(at).dims, last, r_);
    handle(at).set_stride(tensor(at).strides);
  }

  int draw_prologue_step(int x, Format format) {
    const Dims dims = tensor(x).dims;
    const Format compute = r_.chance(12) ? Format::int32 : Format::fp32;
    const auto mode = draw_mode(
        compute, [](oracle::Pointwise m) { return m != oracle::Pointwise::gen_index && m != oracle::Pointwise::binary_select; });
    std::vector<int> inputs{x};
    if (oracle::arity_of(mode) == 2) {
      const int scalar = draw_scalar(static_cast<int>(dims.size()));
      // Where the matrix is one element too, the first operand is the matrix.
      inputs.insert(all_ones(dims) || r_.chance(60) ? inputs.end() : inputs.begin(), scalar);
    }
    return apply("p", mode, std::move(inputs), dims, format, compute, false);
  }

  void draw_products() {
    const std::int64_t count = c_.is_tied ? r_.between(1, 2) : r_.chance(65) ? 1 : r_.between(2, options_.kernel_types ? 2 : 3);
    ProductTypes types = draw_types();
    std::vector<std::pair<int, Format>> as, bs;
    for (std::int64_t i = 0; i < count; ++i) {
      if (i > 0 && !options_.kernel_types && r_.chance(15)) types = draw_types();
      const auto choose = [&](std::vector<std::pair<int, Format>>& pool, bool is_a) {
        const bool is_fp8 = types.operand == Format::e4m3 || types.operand == Format::e5m2;
        if (is_fp8 && !c_.is_tied) types.operand = r_.pick({Format::e4m3, Format::e5m2});  // the two meet in any way
        std::vector<int> fitting;
        for (const auto& [t, f] : pool)
          if (f == types.operand) fitting.push_back(t);
        if (!fitting.empty() && r_.chance(45)) return r_.pick(fitting);
        pool.emplace_back(draw_matrix(is_a, types.operand), types.operand);
        return pool.back().first;
      };
      const int a = choose(as, true);
      const int b = c_.is_tied && i == 0 && r_.chance(60) ? a : choose(bs, false);
      if (c_.is_tied) tied_ = a;
      draw_product(a, b, types.compute);
    }
  }

  void draw_product(int a, int b, Format compute) {
    Dims dims{extent(Axis::m), extent(Axis::n)};
    if (rank_ == 3) dims.insert(dims.begin(), extent(Axis::l));
    const Format format = r_.chance(80)
                              ? (compute == Format::int32 ? r_.pick({Format::int32, Format::int32, Format::fp32})
                                                          : r_.pick({Format::fp32, Format::fp32, Format::bf16, Format::fp16}))
                              : draw_format();
    const bool silent = compute == Format::fp32 && r_.chance(50);
    verglas::Tensor h =
        c_.graph.matmul(handle(a), handle(b), {.compute_data_type = silent ? DataType::not_set : library(compute)});
    oracle::Tensor t = computed("c", dims, format);
    declare(h, t);
    read(a);
    read(b);
    const int at = c_.reference.product(a, b, std::move(t), compute);
    track(at, std::move(h), true);
    results_.push_back(at);
  }

  // ---- pointwise

  Format draw_format() {
    return options_.kernel_types || r_.chance(55) ? r_.pick({Format::fp32, Format::bf16, Format::fp16}) : r_.pick(kStored);
  }

  Format draw_compute(int percent_int32) {
    return !options_.kernel_types && r_.chance(percent_int32) ? Format::int32 : Format::fp32;
  }

  template <class Filter>
  oracle::Pointwise draw_mode(Format compute, Filter&& fits) {
    using oracle::Pointwise;
    while (true) {
      const Pointwise mode = r_.chance(35)
                                 ? r_.pick({Pointwise::add, Pointwise::mul, Pointwise::relu, Pointwise::sub, Pointwise::max})
                                 : static_cast<Pointwise>(r_.between(0, oracle::kPointwiseCount - 1));
      if (fits(mode) && (compute != Format::int32 || is_served_in_int32(mode))) return mode;
    }
  }

  int apply(const char* stem, oracle::Pointwise mode, std::vector<int> inputs, Dims dims, Format format, Format compute,
            bool after) {
    using oracle::Pointwise;
    verglas::PointwiseParameters p;
    const bool is_relu = mode == Pointwise::relu || mode == Pointwise::relu_backward;
    if (is_relu && compute != Format::int32) {
      if (r_.chance(25)) p.lower_clip = r_.pick({-1.0F, 0.0F, 0.5F, 2.0F});
      if (r_.chance(25)) p.upper_clip = r_.pick({1.0F, 6.0F, 3.5F});
      if (r_.chance(25)) p.negative_slope = r_.pick({0.25F, 0.1F, -0.5F, 0.0F});
    }
    if (mode == Pointwise::leaky_relu || mode == Pointwise::leaky_relu_backward)
      p.negative_slope = r_.pick({0.25F, 0.01F, -0.5F, 1.5F});
    if (mode == Pointwise::elu || mode == Pointwise::elu_backward) p.alpha = r_.pick({1.0F, 0.5F, 2.0F});
    if (mode == Pointwise::swish || mode == Pointwise::swish_backward || mode == Pointwise::softplus ||
        mode == Pointwise::softplus_backward)
      p.beta = r_.pick({1.0F, 1.0F, 0.5F, 2.0F, -1.0F});
    if (mode == Pointwise::gen_index) p.axis = static_cast<int>(r_.between(0, static_cast<std::int64_t>(dims.size()) - 1));
    oracle::Attributes a;
    if (p.lower_clip) a.relu_lower = *p.lower_clip;
    if (p.upper_clip) a.relu_upper = *p.upper_clip;
    if (p.negative_slope) a.slope = *p.negative_slope;
    a.alpha = p.alpha;
    a.beta = p.beta;
    a.axis = std::max(p.axis, 0);
    std::vector<verglas::Tensor> operands;
    for (const int i : inputs) {
      operands.push_back(handle(i));
      read(i);
    }
    const bool silent = compute == Format::fp32 && r_.chance(50);
    verglas::Tensor h = c_.graph.pointwise(static_cast<verglas::PointwiseMode>(mode), operands, p,
                                           {.compute_data_type = silent ? DataType::not_set : library(compute)});
    oracle::Tensor t = computed(stem, std::move(dims), format);
    declare(h, t);
    const int at = c_.reference.apply(mode, std::move(inputs), std::move(t), a, compute);
    track(at, std::move(h), after);
    return at;
  }

  static Dims broadcast(const Dims& x, const Dims& y) {
    Dims out(std::max(x.size(), y.size()), 1);
    for (const Dims* d : {&x, &y})
      for (std::size_t i = 0; i < d->size(); ++i) {
        std::int64_t& e = out[out.size() - d->size() + i];
        if (e == 1) e = (*d)[i];
      }
    return out;
  }

  /// One number: inside the graph, handed over at each call, or in memory.
  int draw_scalar(int most_rank) {
    const Format format = draw_format();
    const Dims dims(static_cast<std::size_t>(r_.between(1, most_rank)), 1);
    const std::vector<Axis> axes(dims.size(), Axis::one);
    const std::int64_t dice = r_.between(0, 2);
    if (dice == 0) return input("s", axes, dims, format, Dims(dims.size(), r_.between(0, 9)));
    const std::string name = fresh(dice == 1 ? "v" : "h");
    verglas::Tensor h =
        c_.graph.tensor({.name = name, .dim = dims, .stride = dims, .data_type = library(format), .pass_by_value = true});
    oracle::Tensor t;
    t.name = name;
    t.dims = dims;
    t.format = format;
    t.is_host_scalar = dice == 2;
    if (dice == 1) {
      const bool whole = oracle::is_integer(format) || format == Format::boolean;
      t.value = format == Format::boolean ? double(r_.between(0, 1))
                : format == Format::uint8 ? double(r_.between(0, 9))
                : whole                   ? double(r_.between(-5, 5))
                                          : r_.pick({0.5, -2.0, 1.0, 0.1, 3.0});
      h.set_value(*t.value);
    }
    const int at = add(std::move(t), std::move(h));
    if (dice == 2) {
      CaseOperand operand;
      operand.tensor = at;
      operand.axes = axes;
      operand.is_host_scalar = true;
      c_.operands.push_back(std::move(operand));
    }
    return at;
  }

  /// A bias, a residual, a mask …: any subset of the axes, of any rank.
  int draw_aux() {
    if (!aux_.empty() && r_.chance(20)) return r_.pick(aux_);
    if (tied_ >= 0 && r_.chance(40)) return tied_;
    if (r_.chance(20)) return draw_scalar(3);
    const auto rank = static_cast<std::size_t>(r_.between(1, 3));
    Dims dims;
    std::vector<Axis> axes;
    for (std::size_t i = 3 - rank; i < 3; ++i) {
      const auto full = static_cast<Axis>(i + 1);
      const bool kept = r_.chance(60);
      dims.push_back(kept ? extent(full) : 1);
      // Declared as long as the products: follows the call; but a batch of 1 stays 1.
      const bool live = dims.back() == extent(full) && !(full == Axis::l && extent(full) == 1);
      axes.push_back(live ? full : Axis::one);
    }
    if (all_ones(dims)) axes.assign(rank, Axis::one);
    Dims strides = draw_layout(dims, r_, pitch_unit_);
    for (std::int64_t& s : strides)
      if (r_.chance(8)) s = 0;
    aux_.push_back(input("x", std::move(axes), std::move(dims), draw_format(), std::move(strides)));
    return aux_.back();
  }

  /// A result of inputs alone.
  int draw_aux_step() {
    int x = draw_aux();
    for (std::int64_t steps = r_.between(1, 2); steps > 0; --steps) {
      const Format compute = draw_compute(15);
      const auto mode = draw_mode(compute, [](oracle::Pointwise) { return true; });
      std::vector<int> inputs{x};
      Dims dims = tensor(x).dims;
      while (static_cast<int>(inputs.size()) < oracle::arity_of(mode)) {
        const int y = draw_aux();
        inputs.insert(r_.chance(50) ? inputs.end() : inputs.begin(), y);
        dims = broadcast(dims, tensor(y).dims);
      }
      x = apply("u", mode, std::move(inputs), std::move(dims), draw_format(), compute, false);
    }
    return x;
  }

  void draw_step() {
    const int main = r_.chance(70) ? results_.back() : r_.pick(results_);
    const bool integer = oracle::is_integer(tensor(main).format);
    const Format compute = draw_compute(integer ? 40 : 5);
    const auto mode = draw_mode(compute, [](oracle::Pointwise) { return true; });
    std::vector<int> inputs{main};
    Dims dims = tensor(main).dims;
    while (static_cast<int>(inputs.size()) < oracle::arity_of(mode)) {
      const std::int64_t dice = r_.between(0, 99);
      const int y = dice < 30 ? r_.pick(results_) : dice < 85 ? draw_aux() : draw_aux_step();
      inputs.insert(r_.chance(50) ? inputs.end() : inputs.begin(), y);
      dims = broadcast(dims, tensor(y).dims);
    }
    const Format format = compute == Format::int32 && r_.chance(60) ? Format::int32 : draw_format();
    results_.push_back(apply("t", mode, std::move(inputs), std::move(dims), format, compute, true));
  }

  // ---- what is stored

  void draw_reductions() {
    for (std::int64_t count = r_.chance(50) ? 0 : r_.between(1, 3); count > 0; --count) {
      const int source = r_.pick(results_);
      const bool integer = draw_compute(oracle::is_integer(tensor(source).format) ? 50 : 10) == Format::int32;
      using oracle::Reduction;
      const auto mode = integer ? r_.pick({Reduction::add, Reduction::max, Reduction::min, Reduction::amax, Reduction::norm1})
                                : static_cast<Reduction>(r_.between(0, oracle::kReductionCount - 1));
      const Format format = integer ? Format::int32 : Format::fp32;
      const Dims full = tensor(source).dims;
      Dims dims = full;
      std::vector<Axis> axes;
      bool reduces = false;
      for (std::size_t i = 0; i < full.size(); ++i) {
        if (r_.chance(50) || (i + 1 == full.size() && !reduces)) dims[i] = 1;
        const auto axis = static_cast<Axis>(i + 4 - full.size());
        reduces |= dims[i] == 1 && !(axis == Axis::l && full[i] == 1);
        axes.push_back(dims[i] == 1 ? Axis::one : axis);
      }
      verglas::Tensor h = c_.graph.reduction(handle(source), library(mode), {.compute_data_type = library(format)});
      read(source);
      oracle::Tensor t = computed("r", dims, format);
      h.set_dim(dims).set_data_type(library(format)).set_name(t.name);
      const int at = c_.reference.reduce(mode, source, std::move(t), format);
      track(at, std::move(h), true);
      make_output(at, std::move(axes));
    }
  }

  void draw_outputs() {
    const bool bare_product = results_.size() == 1 && !read_[static_cast<std::size_t>(results_[0])] && r_.chance(20);
    for (const int i : results_) {
      const bool must = !read_[static_cast<std::size_t>(i)];
      if (!must && !r_.chance(15)) continue;
      std::vector<Axis> axes{Axis::m, Axis::n};
      if (tensor(i).dims.size() == 3) axes.insert(axes.begin(), extent(Axis::l) == 1 ? Axis::one : Axis::l);
      make_output(i, std::move(axes), !bare_product);
    }
  }

  void make_output(int i, std::vector<Axis> axes, bool mark = true) {
    oracle::Tensor& t = tensor(i);
    t.is_virtual = false;
    t.is_output = true;
    // A type that was left to the default of virtual tensors would now follow the io type.
    handle(i).set_data_type(t.format == io_ && mark && r_.chance(50) ? DataType::not_set : library(t.format));
    if (mark) handle(i).set_output(true);
    if (r_.chance(options_.for_device ? 80 : 50)) {
      t.strides = draw_layout(t.dims, r_, pitch_unit_);
      handle(i).set_stride(t.strides);
    }
    CaseOperand operand;
    operand.tensor = i;
    operand.axes = std::move(axes);
    operand.is_output = true;
    c_.operands.push_back(std::move(operand));
  }

  inline static const std::vector<Format> kStored = {Format::fp32, Format::fp16, Format::bf16,  Format::e4m3,  Format::e5m2,
                                                     Format::e8m0, Format::int8, Format::uint8, Format::int32, Format::boolean};

  Random r_;
  GeneratorOptions options_;
  Case c_;
  Format io_{}, intermediate_{}, compute_{};
  int rank_ = 3;
  std::int64_t pitch_unit_ = 1;
  Format scale_ = Format::e8m0;
  int block_ = 32;
  std::vector<Format> scaled_formats_ = {Format::e4m3, Format::e5m2, Format::e2m1};
  bool broadcast_a_ = false, broadcast_b_ = false;
  int tied_ = -1;
  std::vector<verglas::Tensor> handles_;  // by tensor of the reference
  std::vector<bool> after_, read_;        // by tensor
  std::vector<int> results_, aux_;
};

std::string text_of(const Dims& v) {
  std::string s = "(";
  for (std::size_t i = 0; i < v.size(); ++i) s += (i ? "," : "") + std::to_string(v[i]);
  return s + ")";
}

}  // namespace

Case draw_case(std::uint64_t seed, const GeneratorOptions& options) { return Generator(seed, options).run(); }

std::string Case::line() const {
  std::string s = "VERGLAS_CASE=" + std::to_string(seed) + ": ";
  for (const CaseOperand& o : operands) {
    const oracle::Tensor& t = reference.tensors[static_cast<std::size_t>(o.tensor)];
    if (!o.is_output) s += t.name + text_of(t.dims) + "/" + text_of(t.strides) + " " + name_of(t.format) + "; ";
  }
  for (const oracle::Node& n : reference.nodes) {
    const oracle::Tensor& t = reference.tensors[static_cast<std::size_t>(n.output)];
    s += t.name + (t.is_output ? "!" : "") + " = ";
    s += n.kind == oracle::NodeKind::matmul      ? "matmul"
         : n.kind == oracle::NodeKind::reduction ? name_of(n.reduction)
         : n.kind == oracle::NodeKind::grouped   ? "grouped" + std::to_string(static_cast<int>(n.routing)) +
                                                     (n.are_ends ? " by ends" : "") + (n.zero_fill ? " zero fill" : "")
         : n.kind == oracle::NodeKind::grouped_gradient
             ? std::string("gradient") + (n.accumulate ? " added" : "") + (n.are_ends ? " by ends" : "")
         : n.kind == oracle::NodeKind::dequantize ? "dequantize blocks of " + std::to_string(n.block)
         : n.kind == oracle::NodeKind::quantize
             ? "quantize axis " + std::to_string(n.block_axis) + " blocks of " + std::to_string(n.block)
             : name_of(n.mode);
    s += "(";
    for (std::size_t k = 0; k < n.inputs.size(); ++k) {
      const oracle::Tensor& x = reference.tensors[static_cast<std::size_t>(n.inputs[k])];
      s += (k == 0 ? "" : ", ") + (x.value ? std::to_string(*x.value) + " " + name_of(x.format) : x.name);
    }
    s += ") in " + name_of(n.compute) + " -> " + name_of(t.format) + " " + text_of(t.dims) + "; ";
  }
  return s;
}

}  // namespace support
