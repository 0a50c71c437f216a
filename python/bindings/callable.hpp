#pragma once
#include <nanobind/nanobind.h>

#include <exception>
#include <memory>
#include <stdexcept>
#include <vector>

#include "pack.hpp"

/// Python's hot path: objects that are called without a tuple, a dict or an overload being looked at.
namespace verglas::python {

/// Leaves the Python exception for what was thrown set.
void raise_in_python(const std::exception_ptr& thrown) noexcept;

PyObject* call_plan(PyObject* self, PyObject* const* arguments, std::size_t count, PyObject* keywords) noexcept;
PyObject* call_bound(PyObject* self, PyObject* const* arguments, std::size_t count, PyObject* keywords) noexcept;
/// __new__ of types whose objects are only made here: TypeError.
PyObject* refuse_new(PyTypeObject* type, PyObject*, PyObject*) noexcept;

/// Buffers that were read once, for calls in which few or none of them change.
///
/// Hazard   a buffer that moves (a resized tensor) has to be set again
class BoundCall {
 public:
  BoundCall() = default;
  BoundCall(std::shared_ptr<const PlanFacts> facts, PyObject* const* buffers, std::size_t count);
  void set(nb::handle operand, nb::handle buffer);
  void launch(nb::handle workspace, nb::handle stream) const;

  vectorcallfunc call = call_bound;  ///< first: the interpreter finds it by its place
  std::shared_ptr<const PlanFacts> facts;

 private:
  struct Extras {
    Keepers keep;
    std::int64_t scalar = 0;
  };
  struct Buffers {
    std::vector<TensorView> views;
    std::vector<nb::object> objects;
    std::vector<PyObject*> pointers;  ///< of objects
    std::vector<std::shared_ptr<Extras>> extras;
    bool asked = false;  ///< a producer on a GPU was told a stream
    void put(const PlanFacts& facts, std::size_t i, nb::handle object);
  };
  std::shared_ptr<Buffers> buffers_;  ///< a call in flight holds it too; then `set` changes a copy
};

/// Gives a nanobind class whose first member is a vectorcallfunc the interpreter's shortest call. Throws where nanobind keeps
/// objects otherwise than is known here.
template <class T>
void make_callable(nb::class_<T>& type, T&& sample) {
  constexpr std::size_t kOffset = sizeof(PyObject) + 8;  // nanobind's header of an object
  const nb::object object = nb::cast(std::move(sample), nb::rv_policy::move);
  if (reinterpret_cast<char*>(nb::inst_ptr<T>(object)) != reinterpret_cast<char*>(object.ptr()) + kOffset)
    throw std::runtime_error("nanobind keeps its objects in an unknown way");
  auto* const t = reinterpret_cast<PyTypeObject*>(type.ptr());
  t->tp_vectorcall_offset = kOffset;
  t->tp_flags |= Py_TPFLAGS_HAVE_VECTORCALL;
}
inline PyType_Slot callable_slots[] = {
    {Py_tp_new, reinterpret_cast<void*>(refuse_new)}, {Py_tp_call, reinterpret_cast<void*>(PyVectorcall_Call)}, {0, nullptr}};

}  // namespace verglas::python
