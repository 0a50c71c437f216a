#include <nanobind/stl/array.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <span>

#include "base/rules.hpp"
#include "bindings.hpp"
#include "buffers.hpp"
#include "dlpack.hpp"
#include "dtypes.hpp"
#include "exchange.hpp"
#include "graph.hpp"
#include "operations.hpp"
#include "pack.hpp"
#include "unlocked.hpp"
#include "verglas/ops/operation.hpp"

namespace verglas::python {
namespace {

using ops::Operation;
using ops::Options;
using ops::Prepared;

TensorSpec make_spec(const std::vector<std::int64_t>& shape, const DataTypeLike& type,
                     const std::optional<std::vector<std::int64_t>>& stride, std::string_view device) {
  TensorSpec s;
  if (shape.size() > kMaxRank || (stride && stride->size() != shape.size()))
    throw broken(Rule::op_rank, "TensorSpec", std::to_string(shape.size()) + " extents", "8 at most, and as many strides");
  s.view = {.dtype = type.get(), .rank = static_cast<std::int8_t>(shape.size()), .device = device_from_text(device)};
  std::int64_t run = 1;
  for (std::size_t i = shape.size(); i-- > 0;) {
    s.view.extent[i] = shape[i];
    s.view.stride[i] = stride ? (*stride)[i] : run;
    run *= shape[i];
  }
  return s;
}

std::string device_text(const TensorSpec& s) {
  return s.view.device.type == DeviceType::cuda ? "cuda:" + std::to_string(s.view.device.id) : "cpu";
}

/// What an option or scalar was given, where it cannot be that.
std::string text_of(nb::handle value) {
  constexpr std::size_t kMost = 60;
  std::string text = nb::cast<std::string>(nb::repr(value));
  return text.size() > kMost ? "an object of type " + type_name_of(value) : text;
}

template <class T>
T option_of(const char* name, nb::handle value, const char* want) {
  T made{};
  if (!nb::try_cast(value, made)) throw broken(Rule::op_option, name, text_of(value), want);
  return made;
}

DataType type_of(const char* name, nb::handle value) {
  DataTypeLike type;
  const bool is_known = nb::try_cast(value, type);
  if (!is_known || !type.unknown.empty())
    throw broken(Rule::op_dtype, name, is_known ? type.unknown : text_of(value), "a type of verglas.data_type, or its name");
  return type.type;
}

std::array<int, 2> pair_of(const char* name, nb::handle value) {
  return value.is_none() ? std::array{0, 0} : option_of<std::array<int, 2>>(name, value, "two numbers");
}

Options make_options(nb::handle ab12, nb::handle c, nb::handle d, nb::handle acc, nb::handle major, nb::handle sf_vec_size,
                     nb::handle tile, nb::handle cluster, nb::handle w_out_in, nb::handle head_dim) {
  const bool is_n = nb::isinstance<nb::str>(major) && nb::cast<std::string_view>(major) == "n";
  if (!is_n && !(nb::isinstance<nb::str>(major) && nb::cast<std::string_view>(major) == "m"))
    throw broken(Rule::op_option, "major", text_of(major), "'n' or 'm'");
  Options o;
  o.ab12_dtype = type_of("ab12_dtype", ab12);
  o.c_dtype = type_of("c_dtype", c);
  o.d_dtype = type_of("d_dtype", d);
  if (const DataType sum = type_of("acc_dtype", acc); sum != DataType::not_set) o.acc_dtype = sum;
  o.major = is_n ? ops::Major::n : ops::Major::m;
  o.sf_vec_size = option_of<int>("sf_vec_size", sf_vec_size, "16 or 32");
  o.w_out_in = option_of<bool>("w_out_in", w_out_in, "True or False");
  o.head_dim = option_of<int>("head_dim", head_dim, "a number of features");
  o.mma_tiler_mn = pair_of("mma_tiler_mn", tile);
  o.cluster_shape_mn = pair_of("cluster_shape_mn", cluster);
  return o;
}

using Pair = std::array<int, 2>;
using SpecState = std::tuple<std::vector<std::int64_t>, DataType, std::vector<std::int64_t>, std::string, std::int64_t>;
using OptionsState = std::tuple<std::array<DataType, 4>, bool, int, bool, Pair, Pair, int>;
using PreparedState = std::tuple<Operation, std::vector<std::optional<TensorSpec>>, Options, float, bool>;

SpecState state_of(const TensorSpec& s) {
  return {s.list(s.view.extent), s.view.dtype, s.list(s.view.stride), device_text(s), s.view.observed_bytes};
}
TensorSpec spec_from(const SpecState& state) {
  const auto& [shape, type, stride, device, bytes] = state;
  TensorSpec s = make_spec(shape, DataTypeLike{.type = type, .unknown = {}}, stride, device);
  s.view.observed_bytes = bytes;
  return s;
}

OptionsState state_of(const Options& o) {
  return {{o.ab12_dtype, o.c_dtype, o.d_dtype, o.acc_dtype},
          o.major == ops::Major::n,
          o.sf_vec_size,
          o.w_out_in,
          o.mma_tiler_mn,
          o.cluster_shape_mn,
          o.head_dim};
}
Options options_from(const OptionsState& state) {
  const auto& [types, is_n, sf_vec_size, w_out_in, tile, cluster, head_dim] = state;
  return {.ab12_dtype = types[0],
          .c_dtype = types[1],
          .d_dtype = types[2],
          .acc_dtype = types[3],
          .major = is_n ? ops::Major::n : ops::Major::m,
          .sf_vec_size = sf_vec_size,
          .w_out_in = w_out_in,
          .mma_tiler_mn = tile,
          .cluster_shape_mn = cluster,
          .head_dim = head_dim};
}

PreparedState state_of(const Prepared& p) {
  std::vector<std::optional<TensorSpec>> samples;
  for (const TensorView& v : p.samples())
    samples.push_back(v.dtype == DataType::not_set ? std::nullopt : std::optional(TensorSpec{v}));
  return {p.operation(), std::move(samples), p.options(), p.alpha(), p.is_compiled()};
}
/// Compiled as the original was, where that is possible: on a machine without its device `compile` will say why not.
Prepared prepared_from(const PreparedState& state) {
  const auto& [operation, samples, options, alpha, is_compiled] = state;
  std::vector<TensorView> views;
  for (const auto& s : samples) views.push_back(s ? s->view : TensorView{});
  Prepared made(operation, views, options, alpha);
  try {
    if (is_compiled) made.compile();
  } catch (const Error&) {
  }
  return made;
}

/// Copies and pickles of objects that are what their state says.
template <class T, class State>
void add_state(nb::class_<T>& c, T (*from)(const State&)) {
  c.def("__getstate__", [](const T& self) { return state_of(self); });
  c.def("__setstate__", [from](T& self, const State& state) { new (&self) T(from(state)); });
}

}  // namespace

float alpha_of(const Operation& op, nb::handle value) {
  float alpha = 0;
  if (!nb::try_cast(value, alpha)) throw broken(Rule::op_option, std::string(op.name()) + ", alpha", text_of(value), "a number");
  return alpha;
}

std::span<const OperandInfo> infos_of(const Operation& op) {
  static std::array<std::vector<OperandInfo>, 16> all;  // by the operation's place in the list of names; under the GIL
  const auto names = Operation::names();
  const auto i = static_cast<std::size_t>(std::find(names.begin(), names.end(), op.name()) - names.begin());
  std::vector<OperandInfo>& infos = all.at(i);
  if (infos.empty())
    for (const ops::TensorInfo& t : op.tensors())
      infos.push_back(not_an_operand(std::string(t.name), t.is_output, std::string(op.name()) + ", "));
  return infos;
}

void Given::add(std::span<const OperandInfo> infos, PyObject* object) {
  objects_[count_] = object;
  TensorView& view = *new (views_ + count_++) TensorView;
  if (object == Py_None) return;
  static const PyTypeObject* const spec_type = reinterpret_cast<PyTypeObject*>(nb::type<TensorSpec>().ptr());
  if (Py_TYPE(object) == spec_type)
    view = nb::inst_ptr<TensorSpec>(object)->view;
  else
    read_buffer(object, infos[std::min(count_, infos.size()) - 1], view, keep_);
}

Given::Given(const Operation& op, const nb::sequence& tensors, nb::handle stream) {
  keep_.stream = stream;
  keep_.pairs_axis = kPairsAxis;
  if (const std::size_t count = nb::len(tensors); count > objects_.size())
    throw broken(Rule::op_missing, std::string(op.name()), std::to_string(count) + " tensors",
                 std::to_string(op.tensors().size()) + " places");
  for (nb::handle object : tensors) add(infos_of(op), object.ptr());
}

Given::Given(std::span<const OperandInfo> infos, std::span<PyObject* const> objects, nb::handle stream) {
  keep_.stream = stream;
  keep_.pairs_axis = kPairsAxis;
  for (PyObject* object : objects) add(infos, object);
}

Stream Given::stream(nb::handle named) const {
  if (!named.is_none()) return stream_of(named);
  for (std::size_t i = 0; i < count_; ++i)
    if (views_[i].device.type == DeviceType::cuda)
      if (const ExchangeType* type = exchange_of(objects_[i])) {
        const Stream now = current_stream(*type, views_[i].device);
        if (keep_.asked && now.handle) tell_stream({objects_.data(), count_}, now);
        return now;
      }
  return {};
}

void bind_operations(nb::module_& m) {
  using OptionalStride = std::optional<std::vector<std::int64_t>>;
  const DataTypeLike unset;

  nb::class_<TensorSpec> spec(m, "TensorSpec", "A tensor without memory: extents, strides in elements, type and device.");
  spec.def(
          "__init__",
          [](TensorSpec* self, const std::vector<std::int64_t>& shape, const DataTypeLike& type, const OptionalStride& stride,
             std::string_view device) { new (self) TensorSpec(make_spec(shape, type, stride, device)); },
          nb::arg("shape"), nb::arg("data_type"), nb::arg("stride").none() = nb::none(), nb::arg("device") = "cpu")
      .def_prop_ro("shape", [](const TensorSpec& s) { return s.list(s.view.extent); })
      .def_prop_ro("stride", [](const TensorSpec& s) { return s.list(s.view.stride); })
      .def_prop_ro("data_type", [](const TensorSpec& s) { return s.view.dtype; })
      .def_prop_ro("device", device_text);
  add_state(spec, spec_from);

  nb::class_<Options> options(m, "OperationOptions", "What the kernel of an operation depends on besides its tensors.");
  options.def(
      "__init__",
      [](Options* self, nb::handle ab12, nb::handle c, nb::handle d, nb::handle acc, nb::handle major, nb::handle sf_vec_size,
         nb::handle tile, nb::handle cluster, nb::handle w_out_in, nb::handle head_dim) {
        new (self) Options(make_options(ab12, c, d, acc, major, sf_vec_size, tile, cluster, w_out_in, head_dim));
      },
      nb::kw_only(), nb::arg("ab12_dtype").none() = nb::none(), nb::arg("c_dtype").none() = nb::none(),
      nb::arg("d_dtype").none() = nb::none(), nb::arg("acc_dtype").none() = nb::none(), nb::arg("major").none() = "n",
      nb::arg("sf_vec_size").none() = 0, nb::arg("mma_tiler_mn").none() = nb::none(),
      nb::arg("cluster_shape_mn").none() = nb::none(), nb::arg("w_out_in").none() = true, nb::arg("head_dim").none() = 192,
      nb::sig(
          "def __init__(self, *, ab12_dtype: data_type | str | typing.Any | None = None, "
          "c_dtype: data_type | str | typing.Any | None = None, d_dtype: data_type | str | typing.Any | None = None, "
          "acc_dtype: data_type | str | typing.Any | None = None, major: str = 'n', sf_vec_size: int = 0, "
          "mma_tiler_mn: collections.abc.Sequence[int] | None = None, "
          "cluster_shape_mn: collections.abc.Sequence[int] | None = None, w_out_in: bool = True, head_dim: int = 192) -> None"));
  add_state(options, options_from);

  nb::class_<Operation> operation(m, "Operation",
                                  R"(A ready-made fusion, by its name; `verglas.ops` has a function and a class for each.

Tensors are passed as a sequence with a place for each of `tensors`: an array, a `TensorSpec` or ``None``.)");
  operation
      .def(
          "__init__", [](Operation* self, std::string_view name) { new (self) Operation(Operation::named(name)); },
          nb::arg("name"))
      .def_prop_ro("name", &Operation::name)
      .def_prop_ro(
          "tensors",
          [](const Operation& op) {
            std::vector<std::tuple<std::string, bool, bool>> all;
            for (const ops::TensorInfo& t : op.tensors()) all.emplace_back(std::string(t.name), t.is_output, t.is_optional);
            return all;
          },
          "(name, is output, is optional) of each place.")
      .def(
          "outputs",
          [](const Operation& op, const nb::sequence& tensors, const Options& options) {
            const Given given(op, tensors);
            nb::list all;
            for (const TensorView& v : op.outputs(given.views(), options))
              all.append(v.dtype == DataType::not_set ? nb::none() : nb::cast(TensorSpec{v}));
            return all;
          },
          nb::arg("tensors"), nb::arg("options") = Options(),
          "A `TensorSpec` at the place of each output that these inputs ask for; checks everything but addresses.")
      .def(
          "run",
          [](const Operation& op, const nb::sequence& tensors, const Options& options, nb::handle alpha, nb::handle stream) {
            const float factor = alpha_of(op, alpha);
            const Given given(op, tensors, stream);
            const Stream s = given.stream(stream);
            const Unlocked unlocked;
            op.run(given.views(), options, factor, s);
          },
          nb::arg("tensors"), nb::arg("options") = Options(), nb::arg("alpha").none() = 1.0F,
          nb::arg("stream").none() = nb::none(),
          nb::sig("def run(self, tensors: collections.abc.Sequence, options: OperationOptions = ..., alpha: float = 1.0, "
                  "stream: object | None = None) -> None"),
          "Checks everything, then launches a plan from the cache; nothing is written for a call that is refused.")
      .def("__getstate__", [](const Operation& op) { return std::string(op.name()); })
      .def("__setstate__", [](Operation& self, std::string_view name) { new (&self) Operation(Operation::named(name)); })
      .def("__repr__", [](const Operation& op) { return "<verglas.Operation " + std::string(op.name()) + ">"; });

  nb::class_<Prepared> prepared(m, "Prepared",
                                "An operation compiled for sample tensors, of which nothing is kept but how they look.");
  prepared
      .def(
          "__init__",
          [](Prepared* self, const Operation& op, const nb::sequence& samples, const Options& options, nb::handle alpha) {
            const float factor = alpha_of(op, alpha);
            new (self) Prepared(op, Given(op, samples).views(), options, factor);
          },
          nb::arg("operation"), nb::arg("samples"), nb::arg("options") = Options(), nb::arg("alpha").none() = 1.0F,
          nb::sig("def __init__(self, operation: Operation, samples: collections.abc.Sequence, options: OperationOptions = ..., "
                  "alpha: float = 1.0) -> None"))
      .def("check_support", &Prepared::check_support, "True, or raises what is wrong with the samples.")
      .def("compile", &Prepared::compile, "Checks, then compiles; the second call does nothing.")
      .def_prop_ro("is_compiled", &Prepared::is_compiled);
  add_state(prepared, prepared_from);

  m.def(
      "plan_cache",
      [] {
        const ops::CacheStatistics s = ops::plan_cache_statistics();
        nb::dict d;
        d["plans"] = s.plans;
        d["limit"] = s.limit;
        d["compiled"] = s.compiled;
        d["found"] = s.found;
        return d;
      },
      "What the operations' cache of compiled plans holds: plans, limit, and how often one was compiled or found.");
  m.def("clear_plan_cache", &ops::clear_plan_cache, "Empties it; plans in use live until their calls are over.");
}

}  // namespace verglas::python
