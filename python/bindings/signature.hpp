#pragma once
#include <nanobind/nanobind.h>

#include <array>
#include <vector>

namespace verglas::python {

namespace nb = nanobind;

/// The arguments of a declared Python function, each by position or by name, without the interpreter's looking at them.
class Signature {
 public:
  static constexpr std::size_t kMost = 24;
  using Values = std::array<PyObject*, kMost>;  ///< borrowed

  Signature() = default;
  /// `defaults` are those of the last arguments.
  Signature(const nb::tuple& names, const nb::tuple& defaults);
  /// False where Python would raise TypeError: it has the words.
  bool read(PyObject* args, PyObject* kwargs, Values& values) const noexcept;
  /// The same of a vectorcall: values of `keywords`, a tuple or null, stand behind the `given` positional ones.
  bool read(PyObject* const* arguments, std::size_t given, PyObject* keywords, Values& values) const noexcept;
  std::size_t size() const noexcept { return names_.size(); }
  /// −1 where there is none of that name.
  int place_of(const char* name) const noexcept;

 private:
  int place_of(PyObject* name) const noexcept;
  bool fill(std::size_t from, Values& values) const noexcept;
  std::vector<nb::object> names_, defaults_;
};

}  // namespace verglas::python
