#include "signature.hpp"

#include <stdexcept>

namespace verglas::python {

Signature::Signature(const nb::tuple& names, const nb::tuple& defaults) {
  for (nb::handle name : names) {
    PyObject* text = Py_NewRef(name.ptr());
    PyUnicode_InternInPlace(&text);  // as names in calls are, so that addresses tell
    names_.push_back(nb::steal(text));
  }
  for (nb::handle value : defaults) defaults_.push_back(nb::borrow(value));
  if (names_.size() > kMost || defaults_.size() > names_.size()) throw std::length_error("a signature of that many arguments");
}

int Signature::place_of(const char* name) const noexcept {
  for (std::size_t i = 0; i < names_.size(); ++i)
    if (PyUnicode_CompareWithASCIIString(names_[i].ptr(), name) == 0) return static_cast<int>(i);
  return -1;
}

int Signature::place_of(PyObject* name) const noexcept {
  for (std::size_t i = 0; i < names_.size(); ++i)
    if (names_[i].ptr() == name) return static_cast<int>(i);
  for (std::size_t i = 0; PyUnicode_Check(name) && i < names_.size(); ++i)
    if (PyUnicode_Compare(names_[i].ptr(), name) == 0) return static_cast<int>(i);
  return -1;
}

/// Defaults where nothing is given.
bool Signature::fill(std::size_t from, Values& values) const noexcept {
  const std::size_t required = names_.size() - defaults_.size();
  for (std::size_t i = from; i < names_.size(); ++i) {
    if (values[i] != nullptr) continue;
    if (i < required) return false;
    values[i] = defaults_[i - required].ptr();
  }
  return true;
}

bool Signature::read(PyObject* args, PyObject* kwargs, Values& values) const noexcept {
  const std::size_t given = static_cast<std::size_t>(PyTuple_GET_SIZE(args)), count = names_.size();
  if (given > count) return false;
  for (std::size_t i = 0; i < given; ++i) values[i] = PyTuple_GET_ITEM(args, i);
  for (std::size_t i = given; i < count; ++i) values[i] = nullptr;
  PyObject *key = nullptr, *value = nullptr;
  Py_ssize_t position = 0;
  while (PyDict_Next(kwargs, &position, &key, &value)) {
    const int i = place_of(key);
    if (i < 0 || values[static_cast<std::size_t>(i)] != nullptr) return false;
    values[static_cast<std::size_t>(i)] = value;
  }
  return fill(given, values);
}

bool Signature::read(PyObject* const* arguments, std::size_t given, PyObject* keywords, Values& values) const noexcept {
  const std::size_t count = names_.size();
  if (given > count) return false;
  for (std::size_t i = 0; i < given; ++i) values[i] = arguments[i];
  for (std::size_t i = given; i < count; ++i) values[i] = nullptr;
  const Py_ssize_t named = keywords ? PyTuple_GET_SIZE(keywords) : 0;
  for (Py_ssize_t k = 0; k < named; ++k) {
    const int i = place_of(PyTuple_GET_ITEM(keywords, k));
    if (i < 0 || values[static_cast<std::size_t>(i)] != nullptr) return false;
    values[static_cast<std::size_t>(i)] = arguments[given + static_cast<std::size_t>(k)];
  }
  return fill(given, values);
}

}  // namespace verglas::python
