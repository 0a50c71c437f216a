#include "graph.hpp"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/vector.h>

#include <charconv>

#include "base/rules.hpp"
#include "bindings.hpp"
#include "dtypes.hpp"

namespace verglas::python {
namespace {

using Extents = std::vector<std::int64_t>;

Tensor make_tensor(Lifecycle& g, std::optional<Extents> dim, std::optional<Extents> stride, const DataTypeLike& type,
                   bool is_virtual, bool by_value, std::string name, std::optional<std::int64_t> uid,
                   TensorReordering reordering) {
  Tensor t = g.graph().tensor({.name = std::move(name),
                               .dim = dim ? std::move(*dim) : Extents{},
                               .stride = stride ? std::move(*stride) : Extents{},
                               .data_type = type.get(),
                               .uid = uid,
                               .pass_by_value = by_value,
                               .reordering = reordering});
  if (is_virtual) t.set_is_virtual(true);
  return t;
}

Tensor make_like(Lifecycle& g, nb::handle like, std::string name) {
  if (const Tensor* t = nullptr; nb::try_cast(like, t) && t)
    return g.graph().tensor({.name = std::move(name),
                             .dim = t->dim(),
                             .stride = t->stride(),
                             .data_type = t->data_type(),
                             .uid = {},
                             .pass_by_value = t->is_pass_by_value(),
                             .reordering = t->reordering_type()});
  const OperandInfo info = not_an_operand(name, false);
  TensorView v;
  Keepers keep;
  read_buffer(like, info, v, keep);
  if (v.is_bare())
    throw broken(Rule::pack_object, label_of(info), "an address", "a tensor, or an array that knows its shape and type");
  if (v.rank == 0) {  // a scalar, which a graph declares as one element
    v.rank = 1;
    v.extent[0] = v.stride[0] = 1;
  }
  const auto rank = static_cast<std::ptrdiff_t>(v.rank);
  return g.graph().tensor({.name = std::move(name),
                           .dim = Extents(v.extent.begin(), v.extent.begin() + rank),
                           .stride = Extents(v.stride.begin(), v.stride.begin() + rank),
                           .data_type = v.dtype,
                           .uid = {},
                           .pass_by_value = false,
                           .reordering = TensorReordering::none});
}

Tensor make_scalar(Lifecycle& g, double value, const DataTypeLike& type, std::string name) {
  const DataType t = type.get();
  Tensor s = g.graph().scalar(value, t == DataType::not_set ? DataType::fp32 : t);
  if (!name.empty()) s.set_name(std::move(name));
  return s;
}

constexpr const char* kGraphDoc = R"(A computation around matrix products, described once and compiled to one kernel.

The vocabulary is that of cuDNN Frontend's ``pygraph``. Describe tensors and nodes, mark what is stored with
``set_output(True)``, then `build` and `execute`.

Parameters
----------
name : str
    For messages.
io_data_type : data_type or str
    Type of inputs and outputs that say nothing themselves; BFLOAT16 when not set.
intermediate_data_type : data_type or str
    Type to which values in between are rounded; FLOAT when not set.
compute_data_type : data_type or str
    Type of the arithmetic; FLOAT when not set. TF32 may be asked for.
device : str
    Where the graph will run: ``"cpu"``, ``"cuda"`` or ``"cuda:1"``.

Notes
-----
Shapes
    matmul: A (L, M, K) · B (L, K, N) → (L, M, N); rank 2 is L = 1; a batch of 1 broadcasts. Pointwise operands broadcast as in
    NumPy. A reduction keeps the axes whose extent in its output's dim is the full one.
Types
    Every tensor's value is rounded to its declared type, stored or not. Sums are fp32, or int32 for int8 · int8.
Errors
    `InvalidGraphError` (rules ``graph.*``), `UnsupportedError` with what each engine said, `InvalidCallError`
    (rules ``pack.*`` and ``call.*``) before anything is written.

Examples
--------
>>> import numpy as np, verglas
>>> g = verglas.Graph(io_data_type=verglas.data_type.FLOAT)
>>> a = g.tensor(name="a", dim=[1, 2, 3], stride=[6, 3, 1])
>>> b = g.tensor(name="b", dim=[1, 3, 2], stride=[6, 2, 1])
>>> y = g.relu(g.matmul(a, b)).set_output(True)
>>> g.build()
>>> out = np.empty((1, 2, 2), np.float32)
>>> g.execute({a: np.ones((1, 2, 3), np.float32), b: np.ones((1, 3, 2), np.float32), y: out})
>>> out.tolist()
[[[3.0, 3.0], [3.0, 3.0]]]
)";

}  // namespace

Device device_from_text(std::string_view text) {
  if (text == "cpu") return {};
  constexpr std::string_view kCuda = "cuda";
  if (text.starts_with(kCuda)) {
    const std::string_view rest = text.substr(kCuda.size());
    std::int16_t id = 0;
    if (rest.empty()) return {DeviceType::cuda, 0};
    const char* end = rest.data() + rest.size();
    if (rest.size() > 1 && rest[0] == ':')
      if (const auto parsed = std::from_chars(rest.data() + 1, end, id); parsed.ec == std::errc() && parsed.ptr == end && id >= 0)
        return {DeviceType::cuda, id};
  }
  throw broken(Rule::graph_device, "graph", "device '" + std::string(text) + "'", "'cpu', 'cuda' or 'cuda:' and a number");
}

void bind_graph(nb::module_& m) {
  GraphClass c(m, "Graph", kGraphDoc);
  const DataTypeLike unset;
  c.def(
       "__init__",
       [](Lifecycle* self, std::string name, const DataTypeLike& io, const DataTypeLike& between, const DataTypeLike& compute,
          std::string_view device) {
         new (self) Lifecycle({.name = std::move(name),
                               .io_data_type = io.get(),
                               .intermediate_data_type = between.get(),
                               .compute_data_type = compute.get()},
                              device_from_text(device));
       },
       nb::arg("name") = "", nb::arg("io_data_type") = unset, nb::arg("intermediate_data_type") = unset,
       nb::arg("compute_data_type") = unset, nb::kw_only(), nb::arg("device") = "cpu")
      .def("tensor", make_tensor, nb::arg("dim").none() = nb::none(), nb::arg("stride").none() = nb::none(),
           nb::arg("data_type") = unset, nb::arg("is_virtual") = false, nb::arg("is_pass_by_value") = false, nb::arg("name") = "",
           nb::arg("uid").none() = nb::none(), nb::kw_only(), nb::arg("reordering_type") = TensorReordering::none,
           R"(Declares an input.

Parameters
----------
dim : sequence of int
    Extents, outermost first: A (L, M, K) or (M, K), B (L, K, N) or (K, N), operands of pointwise nodes up to rank 3.
stride : sequence of int
    Strides in elements, one for each extent; 0 repeats an element.
data_type : data_type or str
    Type of the elements; the graph's io type when not set.
is_pass_by_value : bool
    A scalar that is handed over at each call, as a number or an array of one element.
name : str
    For messages and as a key of a pack.
uid : int
    Another key; the graph chooses one when not given.
reordering_type : tensor_reordering
    F8_128x4 for scales of blocks in atoms of 128 rows by 4, as ``verglas.scale_layout`` makes them.

Notes
-----
Extents and strides of FP4_E2M1 count elements, two of which share a byte; the buffer of a call has bytes.
)")
      .def("tensor_like", make_like, nb::arg("like"), nb::arg("name") = "",
           "Declares an input with the extents, strides and type of an array, or of another tensor.")
      .def("scalar", make_scalar, nb::arg("value"), nb::arg("data_type") = unset, nb::arg("name") = "",
           "A scalar that is part of the graph: no buffer is passed for it. FLOAT when no type is given.")
      .def("tensor_scalar", make_scalar, nb::arg("value"), nb::arg("data_type") = unset, nb::arg("name") = "",
           "The same as `scalar`, by cuDNN's name.");
  bind_products(c);
  bind_pointwise(c);
  bind_grouped(c);
  bind_lifecycle(c);
}

}  // namespace verglas::python
