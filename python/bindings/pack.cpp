#include "pack.hpp"

#include <nanobind/stl/string.h>

#include <cmath>
#include <new>
#include <string>

#include "base/rules.hpp"
#include "dlpack.hpp"
#include "exchange.hpp"
#include "numeric/convert.hpp"
#include "unlocked.hpp"

namespace verglas::python {
namespace {

std::string text_of(nb::handle object) { return nb::cast<std::string>(nb::repr(object)); }

/// A Python or NumPy number, or what acts as one; never an array, which has elements to set.
bool is_number(nb::handle object) {
  if (PyFloat_Check(object.ptr()) || PyLong_Check(object.ptr())) return true;
  const auto has = [&](const char* name) { return PyObject_HasAttrString(object.ptr(), name) == 1; };
  return has("__float__") && !has("__setitem__") && !has("__dlpack__");
}

/// Stores the number as an element of the operand's type.
void store_number(nb::handle object, const OperandInfo& operand, std::int64_t& slot) {
  const auto refuse = [&] {
    return broken(Rule::pack_scalar, label_of(operand), text_of(object),
                  "a number of type " + std::string(name_of(operand.dtype)));
  };
  const double value = PyFloat_AsDouble(object.ptr());
  if (value == -1.0 && PyErr_Occurred()) {
    PyErr_Clear();
    throw refuse();
  }
  if (!is_integer(operand.dtype)) {
    if (std::isfinite(value) && std::isinf(static_cast<float>(value))) throw refuse();
    numeric::from_float(static_cast<float>(value), &slot, operand.dtype);
    return;
  }
  const bool is_signed = operand.dtype != DataType::uint8 && operand.dtype != DataType::boolean;
  const int bits = operand.dtype == DataType::boolean ? 1 : bits_of(operand.dtype) - (is_signed ? 1 : 0);
  const double limit = std::ldexp(1.0, bits);
  if (!(value == std::trunc(value) && value < limit && value >= (is_signed ? -limit : 0.0))) throw refuse();
  slot = static_cast<std::int64_t>(value);  // little-endian: the low bytes are the narrower integer
}

}  // namespace

PlanFacts::PlanFacts(CompiledPlan compiled, Graph described)
    : plan(std::move(compiled)), graph(std::move(described)), readings(readings_of(plan)) {
  for (std::size_t i = 0; i < graph.tensor_count(); ++i)
    operand_of_tensor.push_back(static_cast<std::int16_t>(plan.operand_index(graph.tensor_at(i).uid())));
}

template <class Fill>
void Pack::fill(Fill&& add_all) {
  for (std::size_t i = 0; i < count_; ++i) {
    new (views_ + i) TensorView();
    objects_[i] = nullptr;
  }
  try {
    add_all();
  } catch (...) {
    for (std::size_t i = 0; i < count_; ++i) Py_XDECREF(objects_[i]);
    throw;
  }
}

Pack::Pack(const PlanFacts& facts, nb::handle buffers, nb::handle stream, const Overrides& overrides)
    : facts_(facts), count_(facts.plan.operands().size()) {
  keep_.stream = stream;
  fill([&] {
    if (PyDict_Check(buffers.ptr())) {
      PyObject *key = nullptr, *value = nullptr;
      Py_ssize_t position = 0;
      while (PyDict_Next(buffers.ptr(), &position, &key, &value))
        if (value != Py_None) add(operand_of(key), value);
    } else if (PyTuple_Check(buffers.ptr())) {
      take_in_order(PySequence_Fast_ITEMS(buffers.ptr()), static_cast<std::size_t>(PyTuple_GET_SIZE(buffers.ptr())));
    } else if (PyList_Check(buffers.ptr())) {
      const nb::object fixed = nb::steal(PyList_AsTuple(buffers.ptr()));  // a buffer may run code, which may change the list
      if (!fixed.is_valid()) throw nb::python_error();
      take_in_order(PySequence_Fast_ITEMS(fixed.ptr()), static_cast<std::size_t>(PyTuple_GET_SIZE(fixed.ptr())));
    } else {
      throw broken(Rule::pack_object, "call", "a pack of type " + type_name_of(buffers),
                   "a dict, or a list or tuple in the order of operands()");
    }
    finish(overrides);
  });
}

Pack::Pack(const PlanFacts& facts, PyObject* const* buffers, std::size_t count, nb::handle stream)
    : facts_(facts), count_(facts.plan.operands().size()) {
  keep_.stream = stream;
  fill([&] {
    take_in_order(buffers, count);
    finish();
  });
}

void Pack::take_in_order(PyObject* const* buffers, std::size_t given) {
  if (given != count_) throw broken(Rule::call_operand_count, "call", std::to_string(given) + " buffers", std::to_string(count_));
  for (std::size_t i = 0; i < given; ++i)
    if (buffers[i] != Py_None) add(static_cast<int>(i), buffers[i]);
}

Pack::~Pack() {
  for (std::size_t i = 0; i < count_; ++i) Py_XDECREF(objects_[i]);
}

int Pack::operand_of(nb::handle key) const {
  const CompiledPlan& plan = facts_.plan;
  int found = -1;
  std::string what;
  if (Tensor* tensor = nullptr; nb::try_cast(key, tensor) && tensor) {
    const bool ours = tensor->graph() == &facts_.graph.data();
    found = ours ? facts_.operand_of_tensor[static_cast<std::size_t>(tensor->index())] : -1;
    if (found >= 0) return found;
    const bool is_inside = ours && (tensor->is_virtual() || tensor->is_pass_by_value());
    what = !ours ? "a tensor of another graph"
                 : "tensor '" + tensor->name() + "', which " +
                       (is_inside ? "the graph keeps for itself" : "nothing that is stored depends on");
  } else if (PyUnicode_Check(key.ptr())) {
    Py_ssize_t size = 0;
    const char* text = PyUnicode_AsUTF8AndSize(key.ptr(), &size);
    int same = 0;
    if (text) {
      const std::string_view name(text, static_cast<std::size_t>(size));
      found = plan.operand_index(name);
      if (found >= 0) return found;
      for (const OperandInfo& o : plan.operands()) same += o.name == name;
    } else {
      PyErr_Clear();  // no UTF-8, as all names are
    }
    if (same > 1)
      throw broken(Rule::pack_ambiguous, "pack",
                   "the name " + text_of(key) + ", which " + std::to_string(same) + " operands have", "the tensor or its uid");
    what = "the name " + text_of(key);
  } else if (PyLong_Check(key.ptr()) && !PyBool_Check(key.ptr())) {
    int over = 0;
    const long long uid = PyLong_AsLongLongAndOverflow(key.ptr(), &over);
    if (over == 0) found = plan.operand_index(std::int64_t{uid});
    if (found >= 0) return found;
    what = "the uid " + text_of(key);
  } else {
    what = "a key of type " + type_name_of(key);
  }
  std::string names;
  for (const OperandInfo& o : plan.operands()) names += (names.empty() ? "" : ", ") + label_of(o);
  throw broken(Rule::pack_unknown, "pack", what, "one of " + names);
}

void Pack::add(int operand, nb::handle object) {
  const auto i = static_cast<std::size_t>(operand);
  const OperandInfo& info = facts_.plan.operands()[i];
  if (objects_[i]) throw broken(Rule::pack_duplicate, label_of(info), "two buffers by different keys", "one");
  objects_[i] = Py_NewRef(object.ptr());
  read_operand(facts_, i, object, scalars_[i], views_[i], keep_);
}

void Pack::finish(const Overrides& overrides) {
  const auto operands = facts_.plan.operands();
  for (std::size_t i = 0; i < count_; ++i)
    if (!objects_[i]) throw broken(Rule::pack_missing, label_of(operands[i]), "no buffer", "one");
  static_assert(recipe::kMaxRoles <= 64);
  std::uint64_t settled = 0;
  if (!overrides.empty()) [[unlikely]] {
    const std::vector<std::size_t> found = overrides.operands_of(facts_.plan);
    for (std::size_t i = 0; i < found.size(); ++i) {
      overrides.apply(i, operands[found[i]], views_[found[i]]);
      settled |= std::uint64_t{1} << found[i];
    }
  }
  settle_all(facts_, {views_, count_}, settled);
}

void read_operand(const PlanFacts& facts, std::size_t operand, nb::handle object, std::int64_t& scalar, TensorView& view,
                  Keepers& keep) {
  const OperandInfo& info = facts.plan.operands()[operand];
  if (facts.readings[operand].is_scalar && is_number(object)) {
    store_number(object, info, scalar);
    view = TensorView::address(&scalar);
    return;
  }
  read_buffer(object, info, view, keep);
}

void settle_all(const PlanFacts& facts, std::span<TensorView> views, std::uint64_t settled) noexcept {
  const auto operands = facts.plan.operands();
  const LiveExtents live{facts.plan.recipe(), views};
  std::int64_t live_k = -1;
  for (std::size_t i = 0; i < views.size(); ++i) {
    if ((settled >> i & 1) == 0) settle(views[i], operands[i], facts.readings[i], i == 0 ? operands[0].dim.back() : live_k, live);
    if (i == 0) live_k = live_k_of(views[0], operands[0]);
  }
}

Stream stream_of(nb::handle object) {
  if (object.is_none()) return {};
  nb::object handle = nb::borrow(object);
  if (!PyLong_Check(handle.ptr())) {
    handle = nb::getattr(object, "cuda_stream", nb::none());
    if (const nb::object protocol = nb::getattr(object, "__cuda_stream__", nb::none()); handle.is_none() && !protocol.is_none())
      handle = protocol()[1];
    if (handle.is_none() && PyIndex_Check(object.ptr())) handle = nb::steal(PyNumber_Index(object.ptr()));  // CUstream
    if (!handle.is_valid()) throw nb::python_error();
  }
  if (Stream s; address_of(handle, s.handle)) return s;
  throw broken(Rule::pack_stream, "stream", text_of(object), "None, an address, or an object that has one");
}

Workspace workspace_of(nb::handle object, Keepers& keep) {
  if (object.is_none()) return {};
  const OperandInfo info = not_an_operand("workspace", true);
  TensorView v;
  read_buffer(object, info, v, keep);
  if (v.is_bare()) return {v.data, -1};
  std::int64_t bytes = bytes_of(v.dtype);
  for (int i = v.rank - 1; i >= 0; --i) {
    const auto axis = static_cast<std::size_t>(i);
    if (v.extent[axis] > 1 && v.stride[axis] * bytes_of(v.dtype) != bytes)
      throw broken(Rule::pack_workspace, "workspace", "a buffer with gaps", "a dense one");
    bytes *= v.extent[axis];
  }
  if (v.read_only) throw broken(Rule::pack_workspace, "workspace", "a read-only buffer", "one that can be written");
  return {v.data, bytes};
}

Stream stream_for(nb::handle object, const PlanFacts& facts, std::span<const TensorView> views,
                  std::span<PyObject* const> objects, bool asked) {
  if (!object.is_none() || facts.plan.device().type != DeviceType::cuda) return stream_of(object);
  for (std::size_t i = 0; i < views.size(); ++i)
    if (views[i].device.type == DeviceType::cuda)
      if (const ExchangeType* type = exchange_of(objects[i])) {
        const Stream stream = current_stream(*type, views[i].device);
        if (asked && stream.handle) [[unlikely]]
          tell_stream(objects, stream);
        return stream;
      }
  return {};
}

void run(const PlanFacts& facts, std::span<const TensorView> views, Stream stream, Workspace workspace) {
  Status status;
  {
    const Unlocked unlocked;
    status = facts.plan.execute(views, stream, workspace);
  }
  if (!status.ok()) throw facts.plan.explain(status, views, stream, workspace);
}

void execute(const PlanFacts& facts, const Pack& pack, nb::handle workspace, nb::handle stream) {
  Keepers keep;
  const Workspace scratch = workspace_of(workspace, keep);
  run(facts, pack.views(), stream_for(stream, facts, pack.views(), pack.objects(), pack.asked()), scratch);
}

void execute(const PlanFacts& facts, nb::handle buffers, nb::handle workspace, nb::handle stream, const Overrides& overrides) {
  execute(facts, Pack(facts, buffers, stream, overrides), workspace, stream);
}

}  // namespace verglas::python
