#include "callable.hpp"

#include <nanobind/stl/string.h>

#include <algorithm>
#include <new>
#include <string>
#include <string_view>

#include "base/rules.hpp"
#include "dlpack.hpp"
#include "plan.hpp"

namespace verglas::python {
namespace {

struct Options {
  nb::handle workspace = Py_None, stream = Py_None;
};

/// The values of the keywords stand behind the positional arguments.
Options options_of(PyObject* const* values, PyObject* keywords) {
  Options options;
  const Py_ssize_t count = keywords ? PyTuple_GET_SIZE(keywords) : 0;
  for (Py_ssize_t i = 0; i < count; ++i) {
    PyObject* name = PyTuple_GET_ITEM(keywords, i);
    if (PyUnicode_CompareWithASCIIString(name, "stream") == 0) {
      options.stream = values[i];
    } else if (PyUnicode_CompareWithASCIIString(name, "workspace") == 0) {
      options.workspace = values[i];
    } else {
      PyErr_Format(PyExc_TypeError, "a call takes the keywords stream and workspace, not %R", name);
      throw nb::python_error();
    }
  }
  return options;
}

template <class Work>
PyObject* guarded(Work&& work) noexcept {
  try {
    work();
    return Py_NewRef(Py_None);
  } catch (...) {
    raise_in_python(std::current_exception());
    return nullptr;
  }
}

/// An object of these classes holds its value itself, so this is where it is.
template <class T>
const T& value_of(PyObject* self) noexcept {
  return *nb::inst_ptr<T>(nb::handle(self));
}

}  // namespace

PyObject* refuse_new(PyTypeObject* type, PyObject*, PyObject*) noexcept {
  PyErr_Format(PyExc_TypeError, "%s: objects of this type are made by graphs and plans", type->tp_name);
  return nullptr;
}

PyObject* call_plan(PyObject* self, PyObject* const* arguments, std::size_t count, PyObject* keywords) noexcept {
  return guarded([&] {
    const std::size_t given = static_cast<std::size_t>(PyVectorcall_NARGS(count));
    const Options options = options_of(arguments + given, keywords);
    const PlanFacts& facts = *value_of<Plan>(self).facts;
    execute(facts, Pack(facts, arguments, given, options.stream), options.workspace, options.stream);
  });
}

PyObject* call_bound(PyObject* self, PyObject* const* arguments, std::size_t count, PyObject* keywords) noexcept {
  return guarded([&] {
    const std::size_t given = static_cast<std::size_t>(PyVectorcall_NARGS(count));
    if (given != 0) {
      PyErr_SetString(PyExc_TypeError, "a bound call has its buffers already: set() changes one");
      throw nb::python_error();
    }
    const Options options = options_of(arguments, keywords);
    value_of<BoundCall>(self).launch(options.workspace, options.stream);
  });
}

void BoundCall::Buffers::put(const PlanFacts& facts, std::size_t i, nb::handle object) {
  auto fresh = std::make_shared<Extras>();
  TensorView view;
  read_operand(facts, i, object, fresh->scalar, view, fresh->keep);
  views[i] = view;
  objects[i] = nb::borrow(object);
  pointers[i] = object.ptr();
  extras[i] = std::move(fresh);
  asked = std::any_of(extras.begin(), extras.end(), [](const auto& e) { return e && e->keep.asked; });
}

BoundCall::BoundCall(std::shared_ptr<const PlanFacts> of, PyObject* const* buffers, std::size_t count) : facts(std::move(of)) {
  const std::size_t wanted = facts->plan.operands().size();
  if (count != wanted) throw broken(Rule::call_operand_count, "call", std::to_string(count) + " buffers", std::to_string(wanted));
  buffers_ = std::make_shared<Buffers>();
  buffers_->views.resize(count);
  buffers_->objects.resize(count);
  buffers_->pointers.resize(count);
  buffers_->extras.resize(count);
  for (std::size_t i = 0; i < count; ++i) {
    if (buffers[i] == Py_None) throw broken(Rule::pack_missing, label_of(facts->plan.operands()[i]), "no buffer", "one");
    buffers_->put(*facts, i, buffers[i]);
  }
  settle_all(*facts, buffers_->views);
}

void BoundCall::set(nb::handle operand, nb::handle buffer) {
  const auto operands = facts->plan.operands();
  std::int64_t at = -1;
  if (PyUnicode_Check(operand.ptr())) {
    Py_ssize_t size = 0;
    const char* text = PyUnicode_AsUTF8AndSize(operand.ptr(), &size);
    if (text)
      at = facts->plan.operand_index(std::string_view(text, static_cast<std::size_t>(size)));
    else
      PyErr_Clear();  // no UTF-8, as all names are
  } else if (PyBool_Check(operand.ptr()) || !nb::try_cast(operand, at)) {
    at = -1;
  }
  if (at < 0 || at >= static_cast<std::int64_t>(operands.size()))
    throw broken(Rule::pack_unknown, "pack", nb::cast<std::string>(nb::repr(operand)),
                 "a name, or a position from 0 to " + std::to_string(operands.size() - 1));
  const auto i = static_cast<std::size_t>(at);
  if (buffer.is_none()) throw broken(Rule::pack_missing, label_of(operands[i]), "no buffer", "one");
  auto changed = std::make_shared<Buffers>(*buffers_);
  changed->put(*facts, i, buffer);
  settle_all(*facts, changed->views);
  buffers_ = std::move(changed);
}

void BoundCall::launch(nb::handle workspace, nb::handle stream) const {
  const std::shared_ptr<const Buffers> held = buffers_;
  Keepers keep;
  const Workspace scratch = workspace_of(workspace, keep);
  // Buffers were read for the legacy default stream.
  if (held->asked && !stream.is_none()) [[unlikely]]
    tell_stream(held->pointers, stream_of(stream));
  run(*facts, held->views, stream_for(stream, *facts, held->views, held->pointers, held->asked), scratch);
}

}  // namespace verglas::python
