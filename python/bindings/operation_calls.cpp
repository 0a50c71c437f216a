#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <memory>
#include <optional>

#include "base/rules.hpp"
#include "bindings.hpp"
#include "callable.hpp"
#include "exchange.hpp"
#include "operations.hpp"
#include "ops/repeat.hpp"
#include "pack.hpp"
#include "signature.hpp"
#include "unlocked.hpp"

// Calls of operations from Python, without a dict, a tuple or a view being made again for what is the same as last time.
namespace verglas::python {
namespace {

using ops::Operation;
using ops::Repeat;

/// What is asked of torch in a call. Empty until a first tensor of its comes in; never freed, since it lives as long as Python.
struct Torch {
  PyObject *tensor = nullptr, *parameter = nullptr;       ///< types
  PyObject* empty = nullptr;                              ///< empty_strided
  PyObject *host_empty = nullptr, *cuda_empty = nullptr;  ///< the same of extents, strides and a type alone, or None
  PyObject* current_device = nullptr;                     ///< of CUDA, where `cuda_empty` allocates
  PyObject* dtype_of = nullptr;                           ///< of a data_type
  PyObject* device = nullptr;                             ///< type
  PyObject* grad_enabled = nullptr;
  PyObject* transform = nullptr;                    ///< None where no transform of functorch's is on
  PyObject* tracing = nullptr;                      ///< None where no graph of TorchScript's is being recorded
  PyObject *modes = nullptr, *functions = nullptr;  ///< how many modes look at calls
  PyObject* forward = nullptr;                      ///< names of torch.autograd.forward_ad
};
Torch torch;

nb::object call(PyObject* function) {
  nb::object answer = nb::steal(PyObject_CallNoArgs(function));
  if (!answer.is_valid()) throw nb::python_error();
  return answer;
}
bool is_zero(PyObject* function) {
  const nb::object answer = call(function);
  return PyLong_Check(answer.ptr()) && PyLong_AsLong(answer.ptr()) == 0;
}

/// Derivatives in forward mode, which tensors carry along, are being computed.
bool is_forward() {
  static PyObject* const name = PyUnicode_InternFromString("_current_level");
  PyObject* const level = PyDict_GetItemWithError(torch.forward, name);
  return level == nullptr || !PyLong_Check(level) || PyLong_AsLong(level) >= 0;
}

/// True where no mode, no transform and no tracer of torch's looks at calls.
bool is_plain() {
  return call(torch.transform).is_none() && call(torch.tracing).is_none() && is_zero(torch.modes) && is_zero(torch.functions) &&
         !is_forward();
}

/// A value that can be told again by its address, or by a comparison that is as cheap.
bool is_constant(PyObject* v) {
  if (v == Py_None || PyType_Check(v)) return true;
  if (PyBool_Check(v) || PyLong_CheckExact(v) || PyUnicode_CheckExact(v)) return true;
  if (PyTuple_CheckExact(v)) {
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(v); ++i)
      if (!PyLong_CheckExact(PyTuple_GET_ITEM(v, i))) return false;
    return true;
  }
  const char* const name = Py_TYPE(v)->tp_name;
  return std::string_view(name) == "torch.dtype" || std::string_view(name) == "data_type";
}
bool is_same(PyObject* x, PyObject* y) {
  if (x == y) return true;
  if (Py_TYPE(x) != Py_TYPE(y) || !(PyLong_CheckExact(x) || PyUnicode_CheckExact(x) || PyTuple_CheckExact(x))) return false;
  const int same = PyObject_RichCompareBool(x, y, Py_EQ);
  if (same < 0) throw nb::python_error();
  return same == 1;
}

/// By place, which argument is the tensor; −1: none. `tensors` has the place of each argument that is one.
std::array<int, ops::kMaxTensors> arguments_of(const Signature& signature, std::span<const OperandInfo> infos,
                                               const nb::dict& tensors) {
  std::array<int, ops::kMaxTensors> argument;
  argument.fill(-1);
  for (const auto& [name, place] : tensors)
    for (std::size_t i = 0; i < infos.size(); ++i)
      if (infos[i].name == nb::cast<std::string_view>(place)) argument[i] = signature.place_of(nb::cast<const char*>(name));
  return argument;
}

/// A declared function of torch's tensors that answers new outputs. What is remembered of a call is told by its tensors (types,
/// extents, strides, device) and its options, and holds what outputs are made with. Neither scalars nor addresses count.
///
/// Threads  under the interpreter's lock
class OperationFunction {
 public:
  OperationFunction(const Operation& op, const nb::tuple& names, const nb::tuple& defaults, const nb::dict& tensors,
                    const nb::dict& options, const nb::tuple& keys, nb::type_object result, bool below_autograd)
      : op_(op), infos_(infos_of(op)), signature_(names, defaults), result_(std::move(result)), below_autograd_(below_autograd) {
    const auto argument = [&](nb::handle name) { return signature_.place_of(nb::cast<const char*>(name)); };
    const auto infos = op.tensors();
    argument_ = arguments_of(signature_, infos_, tensors);
    std::vector<bool> is_other(signature_.size(), true);
    for (const auto& [name, place] : tensors) is_other[static_cast<std::size_t>(argument(name))] = false;
    for (const auto& [name, option] : options) options_.emplace_back(argument(name), nb::borrow(option));
    alpha_ = signature_.place_of("alpha");
    stream_ = signature_.place_of("stream");
    stages_ = signature_.place_of("ab12_stages");
    for (const int i : {alpha_, stream_})
      if (i >= 0) is_other[static_cast<std::size_t>(i)] = false;
    for (std::size_t i = 0; i < is_other.size(); ++i)
      if (is_other[i]) compared_.push_back(i);
    for (nb::handle key : keys) {
      const auto place = nb::cast<std::string>(key.attr("removesuffix")("_tensor"));
      int at = -1;
      for (std::size_t i = 0; i < infos.size(); ++i)
        if (infos[i].name == place) at = static_cast<int>(i);
      keys_.emplace_back(nb::borrow(key), at);
    }
  }

  /// None where the tensors, or what torch does at the moment, ask for more than this: then Python's way is to be gone.
  nb::object operator()(const nb::tuple& args, const nb::dict& kwargs) {
    Signature::Values values;
    if (torch.tensor == nullptr || !signature_.read(args.ptr(), kwargs.ptr(), values)) return nb::none();
    std::array<TensorView, ops::kMaxTensors> views;
    const std::size_t count = op_.tensors().size();
    const ExchangeType* type = nullptr;
    Keepers keep;
    keep.pairs_axis = kPairsAxis;
    bool recorded = false;
    for (std::size_t i = 0; i < count; ++i) {
      PyObject* const object = argument_[i] < 0 ? Py_None : values[static_cast<std::size_t>(argument_[i])];
      if (object == Py_None) continue;
      if (Py_TYPE(object) != reinterpret_cast<PyTypeObject*>(torch.tensor) &&
          Py_TYPE(object) != reinterpret_cast<PyTypeObject*>(torch.parameter))
        return nb::none();
      type = exchange_of(object);
      if (type == nullptr || !read_exchange_unasked(*type, object, infos_[i], views[i], keep)) return nb::none();
      if (is_negative(*type, object, views[i].dtype)) return nb::none();
      recorded = recorded || (!below_autograd_ && is_recorded(*type, object));
    }
    if (type == nullptr || !is_plain() || (recorded && call(torch.grad_enabled).ptr() == Py_True)) return nb::none();
    const std::span<TensorView> given(views.data(), count);
    float alpha = 1.0F;
    if (alpha_ >= 0 && !nb::try_cast(nb::handle(values[static_cast<std::size_t>(alpha_)]), alpha)) return nb::none();
    nb::handle named = values[static_cast<std::size_t>(stream_)];
    const Stream stream = !named.is_none()                           ? stream_of(named)
                          : views[0].device.type == DeviceType::cuda ? current_stream(*type, views[0].device)
                                                                     : Stream{};
    if (const std::shared_ptr<const Call> known = find(values, given))
      if (const auto built = known->repeat->find()) return repeat(*known, *built, given, alpha, stream);
    return first(values, given, alpha, stream);
  }

 private:
  struct Output {
    std::size_t place;
    nb::object args, kwargs;  ///< of empty_strided
    nb::tuple layout;         ///< extents, strides and type
  };
  struct Call {
    std::vector<nb::object> values;  ///< compared
    std::vector<Output> outputs;
    std::shared_ptr<const Repeat> repeat;
  };
  static constexpr std::size_t kMostCalls = 64;

  std::shared_ptr<const Call> find(const Signature::Values& values, std::span<const TensorView> given) {
    for (std::size_t i = 0; i < calls_.size(); ++i) {
      const Call& c = *calls_[i];
      if (!c.repeat->is_like(given, Repeat::Of::inputs)) continue;
      bool same = true;
      for (std::size_t j = 0; same && j < compared_.size(); ++j) same = is_same(c.values[j].ptr(), values[compared_[j]]);
      if (!same) continue;
      if (i != 0)
        std::rotate(calls_.begin(), calls_.begin() + static_cast<std::ptrdiff_t>(i),
                    calls_.begin() + static_cast<std::ptrdiff_t>(i) + 1);
      return calls_.front();
    }
    return nullptr;
  }

  /// What allocates for operands of this device without asking where, as torch's own compiler does; null where nothing does.
  static PyObject* short_empty(Device device) {
    if (device.type == DeviceType::cpu) return torch.host_empty == Py_None ? nullptr : torch.host_empty;
    if (torch.cuda_empty == Py_None) return nullptr;
    const nb::object current = call(torch.current_device);
    return PyLong_Check(current.ptr()) && PyLong_AsLong(current.ptr()) == device.id ? torch.cuda_empty : nullptr;
  }

  std::vector<nb::object> make(const std::vector<Output>& outputs, std::span<TensorView> given, Keepers& keep) const {
    std::vector<nb::object> made;
    made.reserve(outputs.size());
    PyObject* const empty = short_empty(given[0].device);
    for (const Output& o : outputs) {
      made.push_back(nb::steal(empty != nullptr ? PyObject_Call(empty, o.layout.ptr(), nullptr)
                                                : PyObject_Call(torch.empty, o.args.ptr(), o.kwargs.ptr())));
      if (!made.back().is_valid()) throw nb::python_error();
      const ExchangeType* type = exchange_of(made.back());
      const OperandInfo& info = infos_[o.place];
      if (type == nullptr || !read_exchange_unasked(*type, made.back(), info, given[o.place], keep))
        read_buffer(made.back(), info, given[o.place], keep);
    }
    return made;
  }

  nb::object answer(const std::vector<Output>& outputs, const std::vector<nb::object>& made) const {
    nb::object result = call(result_.ptr());
    for (const auto& [key, place] : keys_) {
      PyObject* value = Py_None;
      for (std::size_t i = 0; i < outputs.size(); ++i)
        if (static_cast<int>(outputs[i].place) == place) value = made[i].ptr();
      if (PyDict_SetItem(result.ptr(), key.ptr(), value) != 0) throw nb::python_error();
    }
    return result;
  }

  nb::object repeat(const Call& c, const ops::Built& built, std::span<TensorView> given, float alpha, Stream stream) const {
    Keepers keep;
    const std::vector<nb::object> made = make(c.outputs, given, keep);
    bool done = false;
    {
      const Unlocked unlocked;
      done = c.repeat->launch(built, given, TensorView::address(&alpha), stream);
    }
    if (!done) op_.run(given, options_of(c), alpha, stream);  // or it says why not
    return answer(c.outputs, made);
  }

  ops::Options options_of(std::span<PyObject* const> values) const {
    nb::dict given;
    for (const auto& [argument, option] : options_) given[option] = nb::handle(values[static_cast<std::size_t>(argument)]);
    const nb::object made = nb::type<ops::Options>()(**given);
    return *nb::inst_ptr<ops::Options>(made);
  }
  ops::Options options_of(const Call& c) const {
    std::array<PyObject*, Signature::kMost> values{};
    for (std::size_t j = 0; j < compared_.size(); ++j) values[compared_[j]] = c.values[j].ptr();
    return options_of(values);
  }

  nb::object first(const Signature::Values& values, std::span<TensorView> given, float alpha, Stream stream) {
    if (stages_ >= 0)
      if (int stages = 0; !nb::try_cast(nb::handle(values[static_cast<std::size_t>(stages_)]), stages) || stages < 1)
        return nb::none();
    const ops::Options options = options_of(values);
    auto c = std::make_shared<Call>();
    const std::vector<TensorView> layout = op_.outputs(given, options);
    if (std::ranges::any_of(layout, [](const TensorView& v) { return v.dtype == DataType::fp4_e2m1; })) return nb::none();
    for (std::size_t i = 0; i < layout.size(); ++i) {
      if (layout[i].dtype == DataType::not_set) continue;
      const TensorView& v = layout[i];
      const auto tuple = [&](const std::array<std::int64_t, kMaxRank>& list) {
        return nb::tuple(nb::cast(std::vector<std::int64_t>(list.begin(), list.begin() + v.rank)));
      };
      nb::dict kwargs;
      kwargs["dtype"] = nb::handle(torch.dtype_of)(v.dtype);
      kwargs["device"] =
          v.device.type == DeviceType::cuda ? nb::handle(torch.device)("cuda", v.device.id) : nb::handle(torch.device)("cpu");
      const nb::tuple extent = tuple(v.extent), stride = tuple(v.stride);
      const nb::tuple layout = nb::make_tuple(extent, stride, kwargs["dtype"]);
      c->outputs.push_back({i, nb::make_tuple(extent, stride), std::move(kwargs), layout});
    }
    Keepers keep;
    const std::vector<nb::object> made = make(c->outputs, given, keep);
    {
      const Unlocked unlocked;
      c->repeat = Repeat::after(op_, given, options, alpha, stream);
    }
    bool is_kept = true;
    for (const std::size_t i : compared_) {
      is_kept &= is_constant(values[i]);
      c->values.push_back(nb::borrow(values[i]));
    }
    if (is_kept) {
      if (calls_.size() == kMostCalls) calls_.pop_back();
      calls_.insert(calls_.begin(), c);
    }
    return answer(c->outputs, made);
  }

  Operation op_;
  std::span<const OperandInfo> infos_;
  Signature signature_;
  nb::type_object result_;
  bool below_autograd_;                         ///< torch has recorded the call already: gradients are no matter
  std::array<int, ops::kMaxTensors> argument_;  ///< by place; −1: no argument has it
  std::vector<std::pair<int, nb::object>> options_;
  std::vector<std::size_t> compared_;             ///< arguments that are neither tensors nor of the call alone
  std::vector<std::pair<nb::object, int>> keys_;  ///< and the place of the output; −1: none
  int alpha_ = -1, stream_ = -1, stages_ = -1;
  std::vector<std::shared_ptr<const Call>> calls_;  ///< the last used first
};

PyObject* call_method(PyObject* self, PyObject* const* arguments, std::size_t count, PyObject* keywords) noexcept;

/// The declared execute() of a class, as a function of the interpreter's: a method of its owner, called without a frame.
class OperationMethod {
 public:
  OperationMethod() = default;
  OperationMethod(const Operation& op, nb::object declared, const nb::tuple& names, const nb::tuple& defaults,
                  const nb::dict& tensors)
      : declared_(std::move(declared)), infos_(infos_of(op)), signature_(names, defaults) {
    argument_ = arguments_of(signature_, infos_, tensors);
    alpha_ = signature_.place_of("alpha");
    stream_ = signature_.place_of("current_stream");
  }

  /// The first argument is the owner.
  nb::object operator()(PyObject* const* arguments, std::size_t given, PyObject* keywords) const {
    Signature::Values values;
    if (given == 0 || !signature_.read(arguments + 1, given - 1, keywords, values)) {
      nb::object said = nb::steal(PyObject_Vectorcall(declared_.ptr(), arguments, given, keywords));
      if (!said.is_valid()) throw nb::python_error();  // what Python says of wrong arguments
      throw nb::type_error("the arguments are not those declared");
    }
    static PyObject* const prepared_name = PyUnicode_InternFromString("_prepared");
    const nb::object holder = nb::steal(PyObject_GetAttr(arguments[0], prepared_name));
    if (!holder.is_valid()) throw nb::python_error();
    static const PyTypeObject* const prepared_type = reinterpret_cast<PyTypeObject*>(nb::type<ops::Prepared>().ptr());
    if (Py_TYPE(holder.ptr()) != prepared_type) throw nb::type_error("not an operation's object");
    const auto& prepared = *nb::inst_ptr<ops::Prepared>(holder);
    std::array<PyObject*, ops::kMaxTensors> objects;
    const std::size_t count = infos_.size();
    for (std::size_t i = 0; i < count; ++i)
      objects[i] = argument_[i] < 0 ? Py_None : values[static_cast<std::size_t>(argument_[i])];
    std::optional<float> alpha;
    if (alpha_ >= 0 && values[static_cast<std::size_t>(alpha_)] != Py_None)
      alpha = alpha_of(prepared.operation(), values[static_cast<std::size_t>(alpha_)]);
    const nb::handle named = values[static_cast<std::size_t>(stream_)];
    const Given given_tensors(infos_, {objects.data(), count}, named);
    const Stream stream = given_tensors.stream(named);
    {
      const Unlocked unlocked;
      prepared.execute(given_tensors.views(), alpha, stream);
    }
    return nb::none();
  }

  nb::object declared() const { return declared_; }

  vectorcallfunc call = call_method;  ///< first: the interpreter finds it by its place

 private:
  nb::object declared_;
  std::span<const OperandInfo> infos_;
  Signature signature_;
  std::array<int, ops::kMaxTensors> argument_{};
  int alpha_ = -1, stream_ = -1;
};

PyObject* call_method(PyObject* self, PyObject* const* arguments, std::size_t count, PyObject* keywords) noexcept {
  try {
    const auto given = static_cast<std::size_t>(PyVectorcall_NARGS(count));
    return (*nb::inst_ptr<OperationMethod>(nb::handle(self)))(arguments, given, keywords).release().ptr();
  } catch (...) {
    raise_in_python(std::current_exception());
    return nullptr;
  }
}

/// Of an instance a bound method, of the class the function itself.
PyObject* get_method(PyObject* self, PyObject* owner, PyObject*) noexcept {
  return owner == nullptr || owner == Py_None ? Py_NewRef(self) : PyMethod_New(self, owner);
}
/// What the declaration is called, its words and its signature, for those who ask.
PyObject* get_attribute(PyObject* self, PyObject* name) noexcept {
  if (!nb::inst_ready(self)) return PyObject_GenericGetAttr(self, name);
  const nb::object declared = nb::inst_ptr<OperationMethod>(nb::handle(self))->declared();
  if (!declared.is_valid()) return PyObject_GenericGetAttr(self, name);
  if (PyUnicode_CompareWithASCIIString(name, "__wrapped__") == 0) return Py_NewRef(declared.ptr());
  if (PyUnicode_CompareWithASCIIString(name, "__doc__") != 0) {  // the type has words of its own
    if (PyObject* own = PyObject_GenericGetAttr(self, name)) return own;
    if (PyErr_ExceptionMatches(PyExc_AttributeError) == 0) return nullptr;
    PyErr_Clear();
  }
  return PyObject_GetAttr(declared.ptr(), name);
}
PyType_Slot method_slots[] = {{Py_tp_call, reinterpret_cast<void*>(PyVectorcall_Call)},
                              {Py_tp_getattro, reinterpret_cast<void*>(get_attribute)},
                              {Py_tp_descr_get, reinterpret_cast<void*>(get_method)},
                              {0, nullptr}};

}  // namespace

void bind_operation_calls(nb::module_& m) {
  nb::class_<OperationFunction>(m, "OperationFunction", "The short way of an operation's function, for torch's tensors.")
      .def(nb::init<const Operation&, const nb::tuple&, const nb::tuple&, const nb::dict&, const nb::dict&, const nb::tuple&,
                    nb::type_object, bool>(),
           nb::arg("operation"), nb::arg("names"), nb::arg("defaults"), nb::arg("tensors"), nb::arg("options"), nb::arg("keys"),
           nb::arg("result"), nb::arg("below_autograd") = false)
      .def("__call__", &OperationFunction::operator(), nb::arg("args"), nb::arg("kwargs"),
           "The outputs, or ``None`` where the call is not for this way.");
  nb::class_<OperationMethod> method(m, "OperationMethod", nb::type_slots(method_slots), nb::is_final(),
                                     "The ``execute`` that a class of an operation declares; called, it launches.");
  make_callable(method, OperationMethod());
  reinterpret_cast<PyTypeObject*>(method.ptr())->tp_flags |= Py_TPFLAGS_METHOD_DESCRIPTOR;  // no bound method is made for a call
  method.def(nb::init<const Operation&, nb::object, const nb::tuple&, const nb::tuple&, const nb::dict&>(), nb::arg("operation"),
             nb::arg("declared"), nb::arg("names"), nb::arg("defaults"), nb::arg("tensors"));
  m.def(
      "use_torch",
      [](nb::object tensor, nb::object parameter, nb::object empty, nb::object host_empty, nb::object cuda_empty,
         nb::object current_device, nb::object dtype_of, nb::object device, nb::object grad_enabled, nb::object transform,
         nb::object tracing, nb::object modes, nb::object functions, nb::dict forward) {
        torch = {.parameter = parameter.release().ptr(),
                 .empty = empty.release().ptr(),
                 .host_empty = host_empty.release().ptr(),
                 .cuda_empty = cuda_empty.release().ptr(),
                 .current_device = current_device.release().ptr(),
                 .dtype_of = dtype_of.release().ptr(),
                 .device = device.release().ptr(),
                 .grad_enabled = grad_enabled.release().ptr(),
                 .transform = transform.release().ptr(),
                 .tracing = tracing.release().ptr(),
                 .modes = modes.release().ptr(),
                 .functions = functions.release().ptr(),
                 .forward = forward.release().ptr()};
        torch.tensor = tensor.release().ptr();
      },
      nb::kw_only(), nb::arg("tensor"), nb::arg("parameter"), nb::arg("empty"), nb::arg("host_empty").none(),
      nb::arg("cuda_empty").none(), nb::arg("current_device").none(), nb::arg("dtype_of"), nb::arg("device"),
      nb::arg("grad_enabled"), nb::arg("transform"), nb::arg("tracing"), nb::arg("modes"), nb::arg("functions"),
      nb::arg("forward"), "Says what `OperationFunction` asks of torch.");
}

}  // namespace verglas::python
