#include <nanobind/operators.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <functional>

#include "bindings.hpp"
#include "dtypes.hpp"
#include "verglas/graph.hpp"

namespace verglas::python {
namespace {

std::string repr_of(const Tensor& t) {
  std::string s = "<verglas.Tensor '" + t.name() + "' uid=" + std::to_string(t.uid()) + " dim=[";
  const auto dim = t.dim();
  for (std::size_t i = 0; i < dim.size(); ++i) s += (i ? ", " : "") + std::to_string(dim[i]);
  return s + "] " + std::string(name_of(t.data_type())) + (t.is_virtual() ? " virtual>" : ">");
}

}  // namespace

void bind_tensor(nb::module_& m) {
  constexpr auto self = nb::rv_policy::none;  // a setter answers the object that it was called on
  nb::class_<Tensor>(m, "Tensor", R"(A tensor of a graph: an input, a result, or a value in between.

Setters change the graph and answer the tensor itself, so that they can be chained; all of them raise `FrozenError` (rule
``graph.frozen``) once the graph has been planned. Tensors are hashable and serve as keys of the pack given to `Graph.execute`.)")
      .def(
          "set_name", [](Tensor& t, std::string name) -> Tensor& { return t.set_name(std::move(name)); }, nb::arg("name"), self,
          "Name for messages and for keys of a pack.")
      .def(
          "set_uid", [](Tensor& t, std::int64_t uid) -> Tensor& { return t.set_uid(uid); }, nb::arg("uid"), self,
          "Number that stands for the tensor; an automatic one that is in the way is changed.")
      .def(
          "set_dim", [](Tensor& t, std::vector<std::int64_t> dim) -> Tensor& { return t.set_dim(std::move(dim)); },
          nb::arg("dim"), self, "Extents, outermost first; of a reduction's output they say what is reduced.")
      .def(
          "set_stride", [](Tensor& t, std::vector<std::int64_t> s) -> Tensor& { return t.set_stride(std::move(s)); },
          nb::arg("stride"), self, "Strides in elements, one for each extent.")
      .def(
          "set_data_type", [](Tensor& t, const DataTypeLike& type) -> Tensor& { return t.set_data_type(type.get()); },
          nb::arg("data_type"), self, "Type to which every element is rounded, stored or not.")
      .def(
          "set_reordering_type", [](Tensor& t, TensorReordering r) -> Tensor& { return t.set_reordering_type(r); },
          nb::arg("reordering_type"), self, "How scales of blocks lie in memory.")
      .def(
          "set_by_pointers", [](Tensor& t, bool v) -> Tensor& { return t.set_by_pointers(v); }, nb::arg("by_pointers"), self,
          "Weights of a grouped product, or the scales of blocks of such weights, as a table: a call passes one address (INT64) "
          "for\n"
          "each expert.")
      .def(
          "set_output", [](Tensor& t, bool is_output) -> Tensor& { return t.set_output(is_output); }, nb::arg("is_output"), self,
          "An output is stored; everything else that is computed stays inside.")
      .def(
          "set_is_virtual", [](Tensor& t, bool v) -> Tensor& { return t.set_is_virtual(v); }, nb::arg("is_virtual"), self,
          "The opposite of `set_output`.")
      .def(
          "set_is_pass_by_value", [](Tensor& t, bool v) -> Tensor& { return t.set_is_pass_by_value(v); },
          nb::arg("is_pass_by_value"), self,
          "A scalar that is handed over at each call: a number, or an array of one element on the host.")
      .def("get_name", &Tensor::name)
      .def("get_uid", &Tensor::uid)
      .def("get_dim", &Tensor::dim, "Extents; of a result only after `Graph.validate`.")
      .def("get_stride", &Tensor::stride, "Strides in elements; of a result only after `Graph.validate`.")
      .def("get_data_type", &Tensor::data_type)
      .def("get_reordering_type", &Tensor::reordering_type)
      .def("get_is_virtual", &Tensor::is_virtual)
      .def("get_is_pass_by_value", &Tensor::is_pass_by_value)
      .def(
          "__eq__", [](const Tensor& a, const Tensor& b) { return a == b; }, nb::is_operator())
      .def("__hash__", [](const Tensor& t) { return std::hash<const void*>{}(t.graph()) ^ (std::hash<int>{}(t.index()) << 1U); })
      .def("__repr__", repr_of);
}

}  // namespace verglas::python
