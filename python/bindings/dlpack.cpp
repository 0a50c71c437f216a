#include "dlpack.hpp"

#include <nanobind/stl/string.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <string_view>
#include <utility>

#include "base/rules.hpp"
#include "base/strides.hpp"
#include "dtypes.hpp"
#include "exchange.hpp"
#include "numpy_arrays.hpp"
#include "pack.hpp"

namespace verglas::python {
namespace {

DataType type_of(const DlTensor& t) noexcept {
  if (t.code == 17 && t.bits == 4 && t.lanes == 2) return DataType::fp4_e2m1;  // a slot is a byte of two
  if (t.lanes != 1) return DataType::not_set;
  switch (t.code << 8 | t.bits) {
    case 0 << 8 | 8: return DataType::int8;
    case 0 << 8 | 32: return DataType::int32;
    case 0 << 8 | 64: return DataType::int64;
    case 1 << 8 | 8: return DataType::uint8;
    case 2 << 8 | 16: return DataType::fp16;
    case 2 << 8 | 32: return DataType::fp32;
    case 4 << 8 | 16: return DataType::bf16;
    case 6 << 8 | 8: return DataType::boolean;
    case 10 << 8 | 8: return DataType::fp8_e4m3;
    case 12 << 8 | 8: return DataType::fp8_e5m2;
    case 14 << 8 | 8: return DataType::fp8_e8m0;
    default: return DataType::not_set;
  }
}

std::string text_of(const DlTensor& t) {
  if (t.code == 17 && t.bits == 4 && t.lanes == 1) return "float4_e2m1fn, elements told apart";
  constexpr std::array<const char*, 7> names = {"int", "uint", "float", "handle", "bfloat", "complex", "bool"};
  const std::string kind = t.code < names.size() ? names[t.code] : "type " + std::to_string(t.code) + " of ";
  return kind + std::to_string(t.bits) + (t.lanes == 1 ? "" : " times " + std::to_string(t.lanes));
}

Device device_of(const DlTensor& t, const OperandInfo& operand) {
  switch (t.device_type) {
    case 1:  // host
    case 3:  // host memory pinned by CUDA
      return {DeviceType::cpu, 0};
    case 2:   // CUDA
    case 13:  // CUDA managed
      return {DeviceType::cuda, static_cast<std::int16_t>(t.device_id)};
    default:
      throw broken(Rule::call_operand_device, label_of(operand), "memory of DLPack device type " + std::to_string(t.device_type),
                   "memory of the host or a CUDA device");
  }
}

/// The protocol has a number for the legacy default stream, and none for no stream: JAX hands -1, which means that nobody waits,
/// to the driver as a handle.
std::intptr_t number_of(Stream stream) noexcept { return stream.handle ? reinterpret_cast<std::intptr_t>(stream.handle) : 1; }

bool is_on_gpu(nb::handle object) {
  const nb::object where = nb::getattr(object, "__dlpack_device__", nb::none());
  return !where.is_none() && nb::cast<int>(where()[0]) == 2;
}

nb::object capsule_of(nb::handle object, std::optional<Stream> stream) {
  nb::dict options;
  if (stream) options["stream"] = number_of(*stream);
  options["max_version"] = nb::make_tuple(1, 1);
  const nb::object make = object.attr("__dlpack__");
  try {
    return make(**options);
  } catch (nb::python_error& e) {
    if (!e.matches(PyExc_TypeError)) throw;
  }
  nb::del(options["max_version"]);  // a producer from before version 1
  return make(**options);
}

/// The same, where it is a refusal that the producer cannot share this object's memory; other failures of its own come through.
nb::object exported(nb::handle object, std::optional<Stream> stream, const OperandInfo& operand) {
  try {
    return capsule_of(object, stream);
  } catch (nb::python_error& e) {
    const std::array refusals = {PyExc_BufferError, PyExc_TypeError, PyExc_ValueError, PyExc_NotImplementedError};
    if (std::ranges::none_of(refusals, [&](PyObject* type) { return e.matches(type); })) throw;
    const auto words = nb::cast<std::string>(nb::str(e.value()));
    throw broken(Rule::pack_object, label_of(operand),
                 "a " + type_name_of(object) + ", not a concrete array: its __dlpack__ says " +
                     nb::cast<std::string>(e.type().attr("__name__")) + ": " + words.substr(0, words.find('\n')),
                 "an array whose memory can be shared");
  }
}

/// Of torch's narrow tensors, which its versions before 2.10 do not export, their bytes, and what those are; else the object.
std::pair<nb::object, DataType> bytes_of(nb::handle object) {
  const nb::object module = nb::getattr(object.type(), "__module__", nb::none());
  if (nb::isinstance<nb::str>(module) && std::string_view(nb::cast<const char*>(module)).starts_with("torch")) {
    DataTypeLike type;
    const nb::object own = nb::getattr(object, "dtype", nb::none());
    const bool is_known = !own.is_none() && nb::try_cast(own, type) && type.unknown.empty();
    if (is_known && (is_fp8(type.type) || type.type == DataType::fp4_e2m1))
      return {object.attr("view")(nb::module_::import_("torch").attr("uint8")), type.type};
  }
  return {nb::borrow(object), DataType::not_set};
}

}  // namespace

void read_dl_tensor(const DlTensor& t, const OperandInfo& operand, TensorView& view, const Keepers& keep) {
  view.dtype = type_of(t);
  if (view.dtype == DataType::not_set) refuse_type(operand, text_of(t));
  view.data = t.data ? static_cast<char*>(t.data) + t.byte_offset : nullptr;
  view.device = device_of(t, operand);
  set_rank(view, t.rank, operand);
  for (std::size_t i = 0; i < static_cast<std::size_t>(view.rank); ++i) view.extent[i] = t.shape[i];
  if (t.strides == nullptr) {
    set_row_major(view);
  } else {
    for (std::size_t i = 0; i < static_cast<std::size_t>(view.rank); ++i) view.stride[i] = t.strides[i];
  }
  if (view.dtype == DataType::fp4_e2m1)
    count_elements(view, keep.pairs_axis < 0 ? packed_axis(view, view.rank - 1) : keep.pairs_axis);
}

void read_dlpack(nb::handle object, const OperandInfo& operand, TensorView& view, Keepers& keep) {
  std::optional<Stream> stream;
  if (is_on_gpu(object)) {
    stream = stream_of(keep.stream);
    keep.asked = true;
  }
  const auto [source, narrow] = bytes_of(object);
  nb::object capsule = exported(source, stream, operand);
  const DlTensor* t = nullptr;
  if (PyCapsule_IsValid(capsule.ptr(), "dltensor_versioned")) {
    const auto* m = static_cast<DlManagedVersioned*>(PyCapsule_GetPointer(capsule.ptr(), "dltensor_versioned"));
    if (m->major != 1)
      throw broken(Rule::pack_object, label_of(operand), "DLPack version " + std::to_string(m->major), "version 0 or 1");
    view.read_only = (m->flags & DlManagedVersioned::kReadOnly) != 0;
    t = &m->tensor;
  } else if (PyCapsule_IsValid(capsule.ptr(), "dltensor")) {
    t = &static_cast<DlManaged*>(PyCapsule_GetPointer(capsule.ptr(), "dltensor"))->tensor;
  } else {
    throw broken(Rule::pack_object, label_of(operand), "a __dlpack__ that answers no fresh DLPack capsule", "a capsule");
  }
  read_dl_tensor(*t, operand, view, keep);
  if (narrow == DataType::fp4_e2m1)
    count_elements(view, keep.pairs_axis < 0 ? packed_axis(view, view.rank - 1) : keep.pairs_axis);
  else if (narrow != DataType::not_set)
    view.dtype = narrow;
  keep.hold(std::move(capsule));
}

void tell_stream(std::span<PyObject* const> objects, Stream stream) {
  for (const nb::handle object : objects)
    if (!exchange_of(object) && PyObject_HasAttrString(object.ptr(), "__dlpack__") == 1 && is_on_gpu(object))
      (void)capsule_of(object, stream);
}

}  // namespace verglas::python
