#include "buffers.hpp"

#include <nanobind/stl/string.h>

#include <string_view>

#include "base/rules.hpp"
#include "base/strides.hpp"
#include "dlpack.hpp"
#include "exchange.hpp"
#include "numpy_arrays.hpp"

namespace verglas::python {
namespace {

/// An attribute that fails otherwise than by not being there is its owner's failure, and comes through.
bool has(nb::handle object, const char* attribute) {
  const nb::object found = nb::steal(PyObject_GetAttrString(object.ptr(), attribute));
  if (found.is_valid()) return true;
  if (!PyErr_ExceptionMatches(PyExc_AttributeError)) throw nb::python_error();
  PyErr_Clear();
  return false;
}

bool is_true(const nb::object& value) {
  const int answer = PyObject_IsTrue(value.ptr());
  if (answer < 0) throw nb::python_error();
  return answer == 1;
}

/// JAX' arrays never change; their capsules do not say so.
bool is_immutable(nb::handle object) {
  const nb::object module = nb::getattr(object.type(), "__module__", nb::none());
  if (!nb::isinstance<nb::str>(module)) return false;
  const std::string_view name = nb::cast<const char*>(module);
  return name.starts_with("jax");
}

/// torch's tensors may be recorded by autograd, or stand for values that are not in memory yet.
nb::object settled(nb::handle object, const OperandInfo& operand) {
  const nb::object recorded = nb::getattr(object, "requires_grad", nb::none());
  if (recorded.is_none()) return nb::borrow(object);
  for (const char* question : {"is_conj", "is_neg"})
    if (const nb::object ask = nb::getattr(object, question, nb::none()); !ask.is_none() && is_true(ask()))
      throw broken(Rule::pack_lazy_view, label_of(operand), std::string("a tensor whose ") + question + "() is true",
                   "one whose bytes are its values: resolve_" + std::string(question + 3) + "() gives it");
  if (!is_true(recorded)) return nb::borrow(object);
  if (operand.is_output)
    throw broken(Rule::pack_recorded_output, label_of(operand), "a tensor that requires grad",
                 "one that does not: detach() gives it");
  return object.attr("detach")();
}

void read_cuda_array_interface(nb::handle object, const OperandInfo& operand, TensorView& view, Keepers& keep) {
  const nb::dict fields = interface_of(object, "__cuda_array_interface__", operand);
  const std::string typestr = typestr_of(fields, operand);
  view.dtype = dtype_from_typestr(typestr);
  if (view.dtype == DataType::not_set) refuse_type(operand, typestr);
  view.device = {DeviceType::cuda, 0};
  if (const nb::object device = nb::getattr(object, "device", nb::none()); has(device, "id"))
    if (!nb::try_cast(device.attr("id"), view.device.id))
      throw broken(Rule::pack_object, label_of(operand),
                   "a device whose number is " + nb::cast<std::string>(nb::repr(device.attr("id"))),
                   "the number of a CUDA device");
  read_interface_layout(fields, operand, view);
  keep.hold(nb::borrow(object));
}

DataType type_of_format(std::string_view format, std::int64_t item) {
  if (!format.empty() && (format[0] == '@' || format[0] == '=' || format[0] == '<')) format.remove_prefix(1);
  if (format == "f") return DataType::fp32;
  if (format == "e") return DataType::fp16;
  if (format == "b") return DataType::int8;
  if (format == "B" || format == "c") return DataType::uint8;
  if (format == "?") return DataType::boolean;
  if (format == "i" || format == "l" || format == "q") return item == 4 ? DataType::int32 : DataType::int64;
  return DataType::not_set;
}

void read_protocol(nb::handle object, const OperandInfo& operand, TensorView& view, Keepers& keep) {
  const Py_buffer* b = keep.hold_buffer(object, PyBUF_STRIDES | PyBUF_FORMAT);
  view.dtype = type_of_format(b->format ? b->format : "B", b->itemsize);
  if (view.dtype == DataType::not_set) refuse_type(operand, std::string("format '") + b->format + "'");
  view.data = b->buf;
  view.read_only = b->readonly != 0;
  set_rank(view, b->ndim, operand);
  for (int i = 0; i < b->ndim; ++i) view.extent[static_cast<std::size_t>(i)] = b->shape[i];
  if (b->strides == nullptr)  // ctypes leaves them out although they were asked for
    set_row_major(view);
  else
    set_byte_strides(view, b->strides, b->itemsize, operand);
  view.observed_bytes = b->strides == nullptr ? b->len : -1;
}

}  // namespace

Keepers::~Keepers() {
  for (Py_buffer* b : buffers_) {
    PyBuffer_Release(b);
    delete b;
  }
}

const Py_buffer* Keepers::hold_buffer(nb::handle object, int flags) {
  auto b = std::make_unique<Py_buffer>();
  if (PyObject_GetBuffer(object.ptr(), b.get(), flags) != 0) throw nb::python_error();
  buffers_.push_back(b.get());
  return b.release();
}

std::string label_of(const OperandInfo& operand) {
  return operand.roles + " " + (operand.name.empty() ? "#" + std::to_string(operand.uid) : "'" + operand.name + "'");
}

std::string type_name_of(nb::handle object) { return nb::cast<std::string>(object.type().attr("__name__")); }

bool address_of(nb::handle object, void*& address) noexcept {
  if (!PyLong_Check(object.ptr()) || PyBool_Check(object.ptr())) return false;
  const std::size_t number = PyLong_AsSize_t(object.ptr());
  if (PyErr_Occurred()) {  // negative, or wider than an address
    PyErr_Clear();
    return false;
  }
  address = reinterpret_cast<void*>(number);
  return true;
}

OperandInfo not_an_operand(std::string name, bool is_output, std::string_view whose) {
  OperandInfo o;
  o.roles = std::string(whose) + "array";
  o.name = std::move(name);
  o.is_output = is_output;
  return o;
}

void read_buffer(nb::handle object, const OperandInfo& operand, TensorView& view, Keepers& keep) {
  if (is_numpy_array(object)) return read_numpy_array(object, operand, view);
  if (void* address = nullptr; address_of(object, address)) {
    view = TensorView::address(address);
    return;
  }
  if (const ExchangeType* type = exchange_of(object); type && read_exchange(*type, object, operand, view, keep)) return;
  if (has(object, "__dlpack__")) {
    const nb::object tensor = settled(object, operand);
    read_dlpack(tensor, operand, view, keep);
    view.read_only |= is_immutable(object);
    return;
  }
  if (has(object, "__cuda_array_interface__")) return read_cuda_array_interface(object, operand, view, keep);
  const bool is_array_like = has(object, "__array_interface__");
  const bool is_numpy_scalar = is_array_like && has(object, "__float__") && !has(object, "__setitem__");  // it offers a copy
  if (is_array_like && !is_numpy_scalar) return read_array_interface(object, operand, view, keep);
  if (PyObject_CheckBuffer(object.ptr()) && !is_numpy_scalar) return read_protocol(object, operand, view, keep);
  const bool is_number = PyLong_Check(object.ptr()) && !PyBool_Check(object.ptr());
  const std::string got = is_number ? "the number " + nb::cast<std::string>(nb::repr(object)) + ", which is no address"
                                    : "an object of type " + type_name_of(object);
  throw broken(Rule::pack_object, label_of(operand), got, "an array or an address");
}

}  // namespace verglas::python
