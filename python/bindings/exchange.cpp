#include "exchange.hpp"

#include <array>

#include "base/rules.hpp"
#include "dlpack.hpp"

namespace verglas::python {

/// DLPack's table of C functions, version 1.3. Source: the DLPack specification, "C exchange API". Functions answer 0, or another
/// number and set Python's error. A producer keeps its table for the life of the process.
struct ExchangeApi {
  std::uint32_t major, minor;
  const ExchangeApi* previous;  ///< of an older major version
  int (*allocate)(DlTensor*, DlManagedVersioned**, void*, void (*)(void*, const char*, const char*));
  int (*managed_from_object)(void* object, DlManagedVersioned** out);
  int (*managed_to_object)(DlManagedVersioned*, void** out);
  int (*tensor_from_object)(void* object, DlTensor* out);  ///< may be null; what it fills lives as long as the object
  int (*current_stream)(std::int32_t device_type, std::int32_t device_id, void** out);
};

namespace {

constexpr std::int32_t kCuda = 2;

bool has(PyTypeObject* type, const char* attribute) {
  return PyObject_HasAttrString(reinterpret_cast<PyObject*>(type), attribute) == 1;
}

ExchangeType look_up(PyTypeObject* type) {
  ExchangeType found{.type = type};
  const nb::object capsule = nb::getattr(nb::handle(reinterpret_cast<PyObject*>(type)), "__dlpack_c_exchange_api__", nb::none());
  if (!PyCapsule_IsValid(capsule.ptr(), "dlpack_exchange_api")) return found;
  const auto* api = static_cast<const ExchangeApi*>(PyCapsule_GetPointer(capsule.ptr(), "dlpack_exchange_api"));
  while (api && api->major != 1) api = api->previous;
  found.api = api;
  found.asks_negative = has(type, "is_neg");
  found.records = has(type, "requires_grad");
  return found;
}

/// Interned once: attribute look-ups by it compare addresses.
PyObject* interned(const char* text) {
  PyObject* s = PyUnicode_InternFromString(text);
  if (!s) throw nb::python_error();
  return s;
}

bool answers_true(PyObject* answer) {
  const nb::object owned = nb::steal(answer);
  if (!owned.is_valid()) throw nb::python_error();
  const int is_true = owned.ptr() == Py_True ? 1 : owned.ptr() == Py_False ? 0 : PyObject_IsTrue(owned.ptr());
  if (is_true < 0) throw nb::python_error();
  return is_true == 1;
}

void release_managed(PyObject* capsule) {
  auto* m = static_cast<DlManagedVersioned*>(PyCapsule_GetPointer(capsule, nullptr));
  if (m && m->release) m->release(m);
}

}  // namespace

const ExchangeType* exchange_of(nb::handle object) {
  // A process meets few types of tensors; those beyond the table are asked by their own protocol.
  static std::array<ExchangeType, 64> known;
  static std::size_t count = 0;
  PyTypeObject* const type = Py_TYPE(object.ptr());
  for (std::size_t i = 0; i < count; ++i)
    if (known[i].type == type) return known[i].api ? &known[i] : nullptr;
  if (count == known.size()) return nullptr;
  const ExchangeType found = look_up(type);
  Py_INCREF(type);
  known[count] = found;
  return known[count++].api ? &known[count - 1] : nullptr;
}

bool is_negative(const ExchangeType& type, nb::handle object, DataType dtype) {
  static PyObject* const is_neg = interned("is_neg");
  const bool has_complex = dtype == DataType::fp32 || dtype == DataType::fp16;
  return type.asks_negative && has_complex && answers_true(PyObject_CallMethodNoArgs(object.ptr(), is_neg));
}

bool is_recorded(const ExchangeType& type, nb::handle object) {
  static PyObject* const requires_grad = interned("requires_grad");
  return type.records && answers_true(PyObject_GetAttr(object.ptr(), requires_grad));
}

bool read_exchange(const ExchangeType& type, nb::handle object, const OperandInfo& operand, TensorView& view, Keepers& keep) {
  // The table's functions look at neither; __dlpack__ would have refused.
  if (!read_exchange_unasked(type, object, operand, view, keep)) return false;
  if (is_negative(type, object, view.dtype))
    throw broken(Rule::pack_lazy_view, label_of(operand), "a tensor whose is_neg() is true",
                 "one whose bytes are its values: resolve_neg() gives it");
  if (operand.is_output && is_recorded(type, object))
    throw broken(Rule::pack_recorded_output, label_of(operand), "a tensor that requires grad",
                 "one that does not: detach() gives it");
  return true;
}

bool read_exchange_unasked(const ExchangeType& type, nb::handle object, const OperandInfo& operand, TensorView& view,
                           Keepers& keep) {
  if (type.api->tensor_from_object) {
    DlTensor t;
    if (type.api->tensor_from_object(object.ptr(), &t) != 0) {
      PyErr_Clear();
      return false;
    }
    read_dl_tensor(t, operand, view, keep);
    return true;
  }
  DlManagedVersioned* m = nullptr;
  if (type.api->managed_from_object(object.ptr(), &m) != 0) {
    PyErr_Clear();
    return false;
  }
  PyObject* capsule = PyCapsule_New(m, nullptr, release_managed);
  if (!capsule) {
    if (m->release) m->release(m);
    throw nb::python_error();
  }
  keep.hold(nb::steal(capsule));
  view.read_only = (m->flags & DlManagedVersioned::kReadOnly) != 0;
  read_dl_tensor(m->tensor, operand, view, keep);
  return true;
}

Stream current_stream(const ExchangeType& type, Device device) {
  Stream s;
  if (type.api->current_stream && type.api->current_stream(kCuda, device.id, &s.handle) != 0) throw nb::python_error();
  return s;
}

}  // namespace verglas::python
