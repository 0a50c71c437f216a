#include <nanobind/stl/string.h>

#include <new>

#include "base/rules.hpp"
#include "bindings.hpp"
#include "callable.hpp"
#include "verglas/error.hpp"

namespace verglas::python {
namespace {

/// Makes the exception in verglas/errors.py and leaves it set; whatever goes wrong on the way is what Python sees instead.
void raise(const Error& e) noexcept {
  try {
    const nb::object make = nb::module_::import_("verglas.errors").attr("make");
    const nb::object error = make(nb::str(name_of(e.code()).data()), e.rule(), e.operand(), e.got(), e.want(), e.what());
    PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(error.ptr())), error.ptr());
  } catch (nb::python_error& inner) {
    inner.restore();
  } catch (const std::exception& inner) {
    PyErr_SetString(PyExc_RuntimeError, inner.what());
  }
}

void translate(const std::exception_ptr& p, void*) {
  try {
    std::rethrow_exception(p);
  } catch (const Error& e) {
    raise(e);
  } catch (const std::bad_alloc&) {
    raise(Error(ErrorCode::out_of_memory, "out_of_memory", "an allocation failed"));
  }
}

}  // namespace

void raise_in_python(const std::exception_ptr& thrown) noexcept {
  try {
    std::rethrow_exception(thrown);
  } catch (nb::python_error& e) {
    e.restore();
  } catch (const Error& e) {
    raise(e);
  } catch (const std::bad_alloc&) {
    raise(Error(ErrorCode::out_of_memory, "out_of_memory", "an allocation failed"));
  } catch (const std::exception& e) {
    PyErr_SetString(PyExc_RuntimeError, e.what());
  }
}

void bind_errors(nb::module_&) { nb::register_exception_translator(translate); }

}  // namespace verglas::python
