#include <fmt/format.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/variant.h>
#include <nanobind/stl/vector.h>

#include <cmath>
#include <string>
#include <utility>
#include <variant>

#include "base/rules.hpp"
#include "dtypes.hpp"
#include "graph.hpp"

namespace verglas::python {
namespace {

namespace nb = nanobind;
using Mode = PointwiseMode;
using Type = DataTypeLike;

NodeAttributes attributes_of(const Type& compute, std::string& name) {
  return {.name = std::move(name), .compute_data_type = compute.get()};
}

std::string doc_of(std::string_view formula, std::string_view more = {}) {
  return std::string(formula) +
         ", element by element.\n\nOperands broadcast as in NumPy; the result is rounded to its own type, which is the graph's "
         "intermediate\ntype unless it is stored or told otherwise." +
         (more.empty() ? "" : "\n\n" + std::string(more));
}

void unary(GraphClass& c, const char* method, Mode mode, std::string_view formula) {
  c.def(
      method,
      [mode](Lifecycle& g, const Tensor& input, const Type& compute, std::string name) {
        return g.graph().pointwise(mode, {input}, {}, attributes_of(compute, name));
      },
      nb::arg("input"), nb::arg("compute_data_type") = Type(), nb::arg("name") = "", doc_of(formula).c_str());
}

void binary(GraphClass& c, const char* method, Mode mode, const char* first, const char* second, std::string_view formula) {
  c.def(
      method,
      [mode](Lifecycle& g, const Tensor& x, const Tensor& y, const Type& compute, std::string name) {
        return g.graph().pointwise(mode, {x, y}, {}, attributes_of(compute, name));
      },
      nb::arg(first), nb::arg(second), nb::arg("compute_data_type") = Type(), nb::arg("name") = "", doc_of(formula).c_str());
}

using MaybeFloat = std::optional<double>;

/// A parameter as fp32, in which nodes compute. What would become infinite on the way is refused, as in a graph file.
float narrowed(double value, const char* parameter) {
  if (std::isfinite(value) && std::abs(value) >= 0x1.ffffffp127)
    throw broken(Rule::graph_parameters, parameter, fmt::format("{}", value), "a number that fp32 holds");
  return static_cast<float>(value);
}
std::optional<float> narrowed(MaybeFloat value, const char* parameter) {
  return value ? std::optional(narrowed(*value, parameter)) : std::nullopt;
}

/// alpha or beta, under the name that cuDNN gives it.
enum class Parameter : std::uint8_t { alpha, beta };

PointwiseParameters with(Parameter which, MaybeFloat value, const char* parameter) {
  PointwiseParameters p;
  if (value) (which == Parameter::alpha ? p.alpha : p.beta) = narrowed(*value, parameter);
  return p;
}

void unary_with(GraphClass& c, const char* method, Mode mode, Parameter which, const char* parameter, std::string_view formula) {
  c.def(
      method,
      [mode, which, parameter](Lifecycle& g, const Tensor& input, MaybeFloat value, const Type& compute, std::string name) {
        return g.graph().pointwise(mode, {input}, with(which, value, parameter), attributes_of(compute, name));
      },
      nb::arg("input"), nb::arg(parameter).none() = nb::none(), nb::arg("compute_data_type") = Type(), nb::arg("name") = "",
      doc_of(formula, std::string(parameter) + " is 1 when not given.").c_str());
}

void backward_with(GraphClass& c, const char* method, Mode mode, Parameter which, const char* parameter,
                   std::string_view formula) {
  c.def(
      method,
      [mode, which, parameter](Lifecycle& g, const Tensor& loss, const Tensor& input, MaybeFloat value, const Type& compute,
                               std::string name) {
        return g.graph().pointwise(mode, {loss, input}, with(which, value, parameter), attributes_of(compute, name));
      },
      nb::arg("loss"), nb::arg("input"), nb::arg(parameter).none() = nb::none(), nb::arg("compute_data_type") = Type(),
      nb::arg("name") = "",
      doc_of(formula, std::string("``input`` is x before the activation. ") + parameter + " is 1 when not given.").c_str());
}

PointwiseParameters relu_parameters(MaybeFloat slope, MaybeFloat lower, MaybeFloat upper) {
  PointwiseParameters p;
  p.negative_slope = narrowed(slope, "negative_slope");
  p.lower_clip = narrowed(lower, "lower_clip");
  p.upper_clip = narrowed(upper, "upper_clip");
  return p;
}

void bind_relus(GraphClass& c) {
  const auto no_slope = nb::arg("negative_slope").none() = nb::none();
  const auto no_lower = nb::arg("lower_clip").none() = nb::none();
  const auto no_upper = nb::arg("upper_clip").none() = nb::none();
  const auto compute = nb::arg("compute_data_type") = Type();
  const auto name = nb::arg("name") = "";
  c.def(
      "relu",
      [](Lifecycle& g, const Tensor& input, MaybeFloat slope, MaybeFloat lower, MaybeFloat upper, const Type& type,
         std::string n) {
        return g.graph().pointwise(Mode::relu, {input}, relu_parameters(slope, lower, upper), attributes_of(type, n));
      },
      nb::arg("input"), no_slope, no_lower, no_upper, compute, name,
      doc_of("min(max(x, lower_clip or 0), upper_clip); with a slope s: max(x, 0) + s·min(x, 0), then the clips that are given",
             "NaN stays NaN. There is no upper clip unless one is given.")
          .c_str());
  c.def(
      "relu_backward",
      [](Lifecycle& g, const Tensor& loss, const Tensor& input, MaybeFloat slope, MaybeFloat lower, MaybeFloat upper,
         const Type& type, std::string n) {
        return g.graph().pointwise(Mode::relu_bwd, {loss, input}, relu_parameters(slope, lower, upper), attributes_of(type, n));
      },
      nb::arg("loss"), nb::arg("input"), no_slope, no_lower, no_upper, compute, name,
      doc_of("loss where lower_clip < x < upper_clip, else 0; at or below lower_clip loss·s with a slope s",
             "``input`` is x before the activation.")
          .c_str());
  c.def(
      "leaky_relu",
      [](Lifecycle& g, const Tensor& input, double slope, const Type& type, std::string n) {
        return g.graph().pointwise(Mode::leaky_relu, {input}, relu_parameters(slope, {}, {}), attributes_of(type, n));
      },
      nb::arg("input"), nb::arg("negative_slope"), compute, name, doc_of("max(x, 0) + negative_slope·min(x, 0)").c_str());
  c.def(
      "leaky_relu_backward",
      [](Lifecycle& g, const Tensor& loss, const Tensor& input, double slope, const Type& type, std::string n) {
        return g.graph().pointwise(Mode::leaky_relu_bwd, {loss, input}, relu_parameters(slope, {}, {}), attributes_of(type, n));
      },
      nb::arg("loss"), nb::arg("input"), nb::arg("negative_slope"), compute, name,
      doc_of("loss where x > 0, else loss·negative_slope", "``input`` is x before the activation.").c_str());
}

void bind_specials(GraphClass& c) {
  const auto compute = nb::arg("compute_data_type") = Type();
  const auto name = nb::arg("name") = "";
  c.def(
      "binary_select",
      [](Lifecycle& g, const Tensor& x, const Tensor& y, const Tensor& mask, const Type& type, std::string n) {
        return g.graph().pointwise(Mode::binary_select, {x, y, mask}, {}, attributes_of(type, n));
      },
      nb::arg("input0"), nb::arg("input1"), nb::arg("mask"), compute, name,
      doc_of("input0 where mask ≠ 0, else input1", "A true choice: what is not chosen never shows, NaN and infinities included.")
          .c_str());
  c.def(
      "gen_index",
      [](Lifecycle& g, const Tensor& input, int axis, const Type& type, std::string n) {
        PointwiseParameters p;
        p.axis = axis;
        return g.graph().pointwise(Mode::gen_index, {input}, p, attributes_of(type, n));
      },
      nb::arg("input"), nb::arg("axis"), compute, name,
      doc_of("the coordinate along that axis of input, whose values do not matter").c_str());
  c.def(
      "pointwise",
      [](Lifecycle& g, PointwiseMode mode, const std::vector<Tensor>& inputs, MaybeFloat lower, MaybeFloat upper,
         MaybeFloat slope, MaybeFloat alpha, MaybeFloat beta, std::optional<int> axis, const Type& type, std::string n) {
        PointwiseParameters p = relu_parameters(slope, lower, upper);
        p.alpha = narrowed(alpha, "alpha").value_or(p.alpha);
        p.beta = narrowed(beta, "beta").value_or(p.beta);
        p.axis = axis.value_or(p.axis);
        return g.graph().pointwise(mode, inputs, p, attributes_of(type, n));
      },
      nb::arg("mode"), nb::arg("inputs"), nb::kw_only(), nb::arg("lower_clip").none() = nb::none(),
      nb::arg("upper_clip").none() = nb::none(), nb::arg("negative_slope").none() = nb::none(),
      nb::arg("alpha").none() = nb::none(), nb::arg("beta").none() = nb::none(), nb::arg("axis").none() = nb::none(), compute,
      name, "Any elementwise node by its mode; the methods named after the modes are the usual way.");
}

}  // namespace

void bind_products(GraphClass& c) {
  c.def(
       "matmul",
       [](Lifecycle& g, const Tensor& a, const Tensor& b, const Type& compute, double padding, std::string name, bool fast) {
         return g.graph().matmul(a, b, attributes_of(compute, name), padding, fast);
       },
       nb::arg("A"), nb::arg("B"), nb::arg("compute_data_type") = Type(), nb::arg("padding") = 0.0, nb::arg("name") = "",
       nb::kw_only(), nb::arg("fast_accumulation") = false,
       R"(The product C = A · B.

Parameters
----------
A : Tensor
    (L, M, K) or (M, K).
B : Tensor
    (L, K, N) or (K, N), whatever its strides; a batch of 1 on either side broadcasts.
compute_data_type : data_type or str
    Type of the sums; the graph's when not set. INT32 for int8 operands; TF32 for fp32 ones where less precision will do.
fast_accumulation : bool
    Of fp8: an engine may sum all of K with what a tensor core keeps, instead of 128 products at a time.

Returns
-------
Tensor
    (L, M, N) or (M, N), virtual until ``set_output(True)``.
)")
      .def(
          "reduction",
          [](Lifecycle& g, const Tensor& input, ReductionMode mode, const Type& compute, std::string name,
             const Tensor* group_offset) {
            return g.graph().reduction(input, mode, attributes_of(compute, name), group_offset ? *group_offset : Tensor());
          },
          nb::arg("input"), nb::arg("mode"), nb::arg("compute_data_type") = Type(), nb::arg("name") = "",
          nb::arg("group_offset").none() = nb::none(),
          R"(Combines the elements along some axes.

The output's dim says along which: set it, with the rank of the input, each extent 1 (combined) or the full one (kept). The
output is stored, in fp32, or in int32 for the modes that have an integer form. Of no elements the mode's identity remains.

``group_offset``, the offsets of the grouped product before it, asks for a result for each group: dim (groups, 1, 1) or
(groups, 1, N).
)");
}

static void bind_block_scales(GraphClass& c) {
  c.def(
       "block_scale_dequantize",
       [](Lifecycle& g, const Tensor& input, const Tensor& descale,
          const std::variant<std::int64_t, std::vector<std::int64_t>>& size, bool is_negative, const Type& compute,
          std::string name) {
         const auto* one = std::get_if<std::int64_t>(&size);
         auto sizes = one ? std::vector<std::int64_t>{*one} : std::get<std::vector<std::int64_t>>(size);
         return g.graph().block_scale_dequantize(input, descale, std::move(sizes), attributes_of(compute, name), is_negative);
       },
       nb::arg("input"), nb::arg("descale"), nb::arg("block_size"), nb::arg("is_negative_scale") = false,
       nb::arg("compute_data_type") = Type(), nb::arg("name") = "",
       R"(A stored matrix times the scales of its blocks: an operand of `matmul`.

Parameters
----------
input : Tensor
    FP8_E4M3, FP8_E5M2 or FP4_E2M1, (L, M, K) or (L, K, N).
descale : Tensor
    One FP8_E8M0 or FP8_E4M3 for each block: (L, M, ⌈K/v⌉) or (L, ⌈K/v⌉, N), or reordered to F8_128x4.
block_size : int or sequence of int
    ``[1, v]`` for the A of a product, ``[v, 1]`` for its B, or v alone: MXFP8 32, NVFP4 16, MXFP4 32.

Returns
-------
Tensor
    The same extents, virtual.
)")
      .def(
          "block_scale_quantize",
          [](Lifecycle& g, const Tensor& input, std::int64_t block_size, std::optional<int> axis, bool transpose,
             const Type& compute, std::string name, double vmax) {
            const auto both =
                g.graph().block_scale_quantize(input, block_size, axis, attributes_of(compute, name), transpose, vmax);
            return std::pair(both[0], both[1]);
          },
          nb::arg("input"), nb::arg("block_size"), nb::arg("axis").none() = nb::none(), nb::arg("transpose") = false,
          nb::arg("compute_data_type") = Type(), nb::arg("name") = "", nb::arg("vmax") = 0.0,
          R"(Blocks of a result become narrow elements and one scale each.

Parameters
----------
input : Tensor
    A result of a product or of nodes behind one.
block_size : int
    16 or 32.
axis : int
    Along which blocks lie: the last one when not given, or that of M.
transpose : bool
    True is the axis of M; the data are not transposed.
vmax : float
    What the largest magnitude of a block is brought to, a number of fp8 from 2 on; 0 is the largest number of the type.

Returns
-------
tuple of Tensor
    Data (FP8_E4M3, FP8_E5M2 or FP4_E2M1) and scales (FP8_E8M0 or FP8_E4M3): set both types and mark both as outputs.
)");
}

static void bind_runs(GraphClass& c) {
  c.def(
      "take_runs",
      [](Lifecycle& g, const Tensor& input, std::int64_t length, bool second, const Type& compute, std::string name) {
        return g.graph().take_runs(input, length, second, attributes_of(compute, name));
      },
      nb::arg("input"), nb::arg("length"), nb::arg("second") = false, nb::arg("compute_data_type") = Type(), nb::arg("name") = "",
      R"(Every second run of columns: of N columns that come in runs of two kinds by turns, all of one kind.

Parameters
----------
input : Tensor
    A result of a product or of nodes behind one, (L, M, N).
length : int
    Columns of a run: 32.
second : bool
    The runs from the second one on.

Returns
-------
Tensor
    (L, M, N / 2).
)");
}

static void bind_rope(GraphClass& c) {
  c.def(
      "rope",
      [](Lifecycle& g, const Tensor& input, const Tensor& cos, const Tensor& sin, std::int64_t head, const Type& compute,
         std::string name) { return g.graph().rope(input, cos, sin, head, attributes_of(compute, name)); },
      nb::arg("input"), nb::arg("cos"), nb::arg("sin"), nb::arg("head"), nb::arg("compute_data_type") = Type(),
      nb::arg("name") = "",
      R"(Rotary embedding of the last columns of each head: pairs of neighbours become two halves.

Parameters
----------
input : Tensor
    A result of a product or of nodes behind one, (L, M, N).
cos, sin : Tensor
    Inputs of the graph, (L or 1, M or 1, R): R columns of each head are rotated.
head : int
    Columns of a head, of which N has a whole number.

Returns
-------
Tensor
    (L, M, N): of each R columns first even * cos - odd * sin, then odd * cos + even * sin, with a table's column j for the result's.
)");
}

void bind_pointwise(GraphClass& c) {
  bind_block_scales(c);
  bind_runs(c);
  bind_rope(c);
  unary(c, "identity", Mode::identity, "x, which is a cast when the result has another type");
  binary(c, "add", Mode::add, "a", "b", "a + b");
  binary(c, "bias", Mode::add, "input", "bias", "input + bias");
  binary(c, "sub", Mode::sub, "a", "b", "a − b");
  binary(c, "mul", Mode::mul, "a", "b", "a · b");
  binary(c, "scale", Mode::mul, "input", "scale", "input · scale");
  binary(c, "div", Mode::div, "a", "b", "a / b");
  binary(c, "max", Mode::max, "input0", "input1", "the greater of both; NaN when one is NaN");
  binary(c, "min", Mode::min, "input0", "input1", "the smaller of both; NaN when one is NaN");
  binary(c, "pow", Mode::pow, "input0", "input1", "input0 to the power of input1");
  binary(c, "mod", Mode::mod, "input0", "input1", "input0 − input1·trunc(input0 / input1), exactly");
  binary(c, "add_square", Mode::add_square, "a", "b", "a + b²");
  unary(c, "abs", Mode::abs, "|x|");
  unary(c, "neg", Mode::neg, "−x");
  unary(c, "ceil", Mode::ceil, "the smallest integer not below x");
  unary(c, "floor", Mode::floor, "the greatest integer not above x");
  unary(c, "sqrt", Mode::sqrt, "√x");
  unary(c, "rsqrt", Mode::rsqrt, "1 / √x");
  unary(c, "reciprocal", Mode::reciprocal, "1 / x");
  unary(c, "exp", Mode::exp, "eˣ");
  unary(c, "log", Mode::log, "the natural logarithm of x");
  unary(c, "sin", Mode::sin, "the sine of x");
  unary(c, "cos", Mode::cos, "the cosine of x");
  unary(c, "tan", Mode::tan, "the tangent of x");
  unary(c, "erf", Mode::erf, "the error function of x");
  bind_relus(c);
  unary_with(c, "elu", Mode::elu, Parameter::alpha, "elu_alpha", "x where x > 0, else elu_alpha·(eˣ − 1)");
  unary(c, "gelu", Mode::gelu, "½·x·(1 + erf(x / √2))");
  unary(c, "gelu_approx_tanh", Mode::gelu_approx_tanh, "½·x·(1 + tanh(√(2/π)·(x + 0.044715·x³)))");
  unary(c, "sigmoid", Mode::sigmoid, "1 / (1 + e⁻ˣ)");
  unary_with(c, "swish", Mode::swish, Parameter::beta, "swish_beta", "x · sigmoid(swish_beta·x)");
  unary_with(c, "softplus", Mode::softplus, Parameter::beta, "softplus_beta", "log(1 + e^(softplus_beta·x)) / softplus_beta");
  unary(c, "tanh", Mode::tanh, "the hyperbolic tangent of x");
  binary(c, "cmp_eq", Mode::cmp_eq, "input", "comparison", "1 where input = comparison, else 0");
  binary(c, "cmp_neq", Mode::cmp_neq, "input", "comparison", "1 where input ≠ comparison, else 0");
  binary(c, "cmp_gt", Mode::cmp_gt, "input", "comparison", "1 where input > comparison, else 0");
  binary(c, "cmp_ge", Mode::cmp_ge, "input", "comparison", "1 where input ≥ comparison, else 0");
  binary(c, "cmp_lt", Mode::cmp_lt, "input", "comparison", "1 where input < comparison, else 0");
  binary(c, "cmp_le", Mode::cmp_le, "input", "comparison", "1 where input ≤ comparison, else 0");
  binary(c, "logical_and", Mode::logical_and, "a", "b", "1 where a ≠ 0 and b ≠ 0, else 0");
  binary(c, "logical_or", Mode::logical_or, "a", "b", "1 where a ≠ 0 or b ≠ 0, else 0");
  unary(c, "logical_not", Mode::logical_not, "1 where x = 0, else 0");
  bind_specials(c);
  binary(c, "sigmoid_backward", Mode::sigmoid_bwd, "loss", "input", "loss · σ(x)·(1 − σ(x)), x before the activation");
  binary(c, "tanh_backward", Mode::tanh_bwd, "loss", "input", "loss · (1 − tanh²x), x before the activation");
  backward_with(c, "elu_backward", Mode::elu_bwd, Parameter::alpha, "elu_alpha", "loss where x > 0, else loss · elu_alpha·eˣ");
  binary(c, "gelu_backward", Mode::gelu_bwd, "loss", "input", "loss times the derivative of gelu, x before the activation");
  binary(c, "gelu_approx_tanh_backward", Mode::gelu_approx_tanh_bwd, "loss", "input",
         "loss times the derivative of gelu_approx_tanh, x before the activation");
  backward_with(c, "softplus_backward", Mode::softplus_bwd, Parameter::beta, "softplus_beta", "loss · σ(softplus_beta·x)");
  backward_with(c, "swish_backward", Mode::swish_bwd, Parameter::beta, "swish_beta", "loss times the derivative of swish");
}

}  // namespace verglas::python
