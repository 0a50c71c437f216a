#include "numpy_arrays.hpp"

#include <nanobind/stl/string.h>

#include <algorithm>
#include <array>
#include <string>
#include <string_view>
#include <utility>

#include "base/rules.hpp"
#include "base/strides.hpp"
#include "dtypes.hpp"

namespace verglas::python {
namespace {

/// The head of NumPy's array object as its ABI fixes it: the same from NumPy 1.7 to 2.x, since extensions compiled against any of
/// them read these fields directly. `fields_are_known` compares it with what Python sees before it is trusted.
struct ArrayFields {
  PyObject_HEAD;
  char* data;
  int rank;
  Py_ssize_t* extents;
  Py_ssize_t* strides;  // bytes
  PyObject* base;
  PyObject* dtype;
  int flags;
};
constexpr int kOwnsData = 0x0004;
constexpr int kWriteable = 0x0400;

const ArrayFields& fields_of(nb::handle array) noexcept { return *reinterpret_cast<const ArrayFields*>(array.ptr()); }

PyTypeObject* array_type() noexcept {
  static PyTypeObject* found = nullptr;
  if (found) return found;
  PyObject* numpy = PyDict_GetItemString(PyImport_GetModuleDict(), "numpy");
  PyObject* type = numpy ? PyObject_GetAttrString(numpy, "ndarray") : nullptr;
  if (type && PyType_Check(type)) found = reinterpret_cast<PyTypeObject*>(type);  // kept for good
  PyErr_Clear();
  return found;
}

/// A subclass whose data alone would be read, and not what its mask says of it.
bool is_masked(nb::handle array) {
  return Py_TYPE(array.ptr()) != array_type() && nb::hasattr(array, "_mask") && nb::hasattr(array, "fill_value");
}

bool compare_fields(nb::handle array) {
  const ArrayFields& a = fields_of(array);
  const nb::dict said = nb::cast<nb::dict>(array.attr("__array_interface__"));
  const nb::tuple data = nb::cast<nb::tuple>(said["data"]);
  const nb::tuple shape = nb::cast<nb::tuple>(said["shape"]);
  bool same = nb::cast<std::uintptr_t>(data[0]) == reinterpret_cast<std::uintptr_t>(a.data) &&
              static_cast<std::size_t>(a.rank) == shape.size() && a.dtype == array.attr("dtype").ptr() &&
              nb::cast<bool>(data[1]) == ((a.flags & kWriteable) == 0);
  const nb::tuple strides = nb::cast<nb::tuple>(array.attr("strides"));
  for (std::size_t i = 0; same && i < shape.size(); ++i)
    same = nb::cast<Py_ssize_t>(shape[i]) == a.extents[i] && nb::cast<Py_ssize_t>(strides[i]) == a.strides[i];
  return same;
}

bool fields_are_known(nb::handle array) {
  static const bool known = compare_fields(array);
  return known;
}

struct KnownType {
  PyObject* dtype = nullptr;  ///< a reference is kept
  DataType type = DataType::not_set;
  std::int64_t item = 0;
};

KnownType look_up(nb::handle dtype) {
  KnownType k;
  k.item = nb::cast<std::int64_t>(dtype.attr("itemsize"));
  if (nb::cast<bool>(dtype.attr("isnative"))) k.type = dtype_from_numpy_name(nb::cast<std::string>(dtype.attr("name")));
  return k;
}

/// NumPy's built-in types are single objects, so a few entries serve nearly all arrays; the rest are looked up each time.
KnownType type_of(PyObject* dtype) {
  static std::array<KnownType, 32> known;
  static std::size_t count = 0;
  for (std::size_t i = 0; i < count; ++i)
    if (known[i].dtype == dtype) return known[i];
  KnownType k = look_up(dtype);
  if (count < known.size()) {
    k.dtype = dtype;
    Py_INCREF(dtype);
    known[count++] = k;
  }
  return k;
}

/// Bytes from `data` to the end of the memory that the array's owner holds; −1 where no owner says.
/// Views made by NumPy's own indexing cannot leave it; those of as_strided, whose base is an object with a base, can.
std::int64_t observed_bytes(const ArrayFields& array) {
  const ArrayFields* owner = &array;
  nb::object borrowed;
  while ((owner->flags & kOwnsData) == 0) {
    nb::handle base = owner->base;
    if (!base.is_valid()) return -1;
    if (!is_numpy_array(base)) {
      borrowed = nb::getattr(base, "base", nb::none());
      base = borrowed;
      if (!is_numpy_array(base)) return -1;
    }
    owner = &fields_of(base);
  }
  std::int64_t bytes = type_of(owner->dtype).item;
  for (int i = 0; i < owner->rank; ++i) bytes *= owner->extents[i];
  return std::max<std::int64_t>(owner->data + bytes - array.data, 0);
}

}  // namespace

void refuse_type(const OperandInfo& operand, std::string got) {
  throw broken(Rule::call_dtype, label_of(operand), std::move(got),
               operand.dtype == DataType::fp4_e2m1  ? "fp4_e2m1 as declared, two elements a byte: uint8 or float4_e2m1fn_x2"
               : operand.dtype == DataType::not_set ? "a type of verglas.data_type"
                                                    : std::string(name_of(operand.dtype)) + " as declared");
}

void set_rank(TensorView& view, std::int64_t rank, const OperandInfo& operand) {
  if (rank > kMaxRank)
    throw broken(Rule::call_rank, label_of(operand), "rank " + std::to_string(rank), "at most " + std::to_string(kMaxRank));
  view.rank = static_cast<std::int8_t>(rank);
}

void set_byte_strides(TensorView& view, const Py_ssize_t* bytes, std::int64_t item, const OperandInfo& operand) {
  for (std::size_t i = 0; i < static_cast<std::size_t>(view.rank); ++i) {
    view.stride[i] = bytes[i] / item;
    if (view.stride[i] * item != bytes[i] && view.extent[i] > 1)
      throw broken(Rule::pack_stride, label_of(operand),
                   "a stride of " + std::to_string(bytes[i]) + " bytes for elements of " + std::to_string(item),
                   "a multiple of " + std::to_string(item));
  }
}

bool is_numpy_array(nb::handle object) noexcept {
  PyTypeObject* type = array_type();
  return type && PyObject_TypeCheck(object.ptr(), type);
}

void read_numpy_array(nb::handle object, const OperandInfo& operand, TensorView& view) {
  const ArrayFields& a = fields_of(object);
  if (is_masked(object))
    throw broken(Rule::pack_object, label_of(operand), "a masked array", "an array without a mask, as of its method filled");
  if (!fields_are_known(object)) {
    Keepers unused;  // NumPy keeps the memory itself
    return read_array_interface(object, operand, view, unused);
  }
  const KnownType t = type_of(a.dtype);
  if (t.type == DataType::not_set) refuse_type(operand, nb::cast<std::string>(nb::str(nb::handle(a.dtype))));
  view.data = a.data;
  view.dtype = t.type;
  view.read_only = (a.flags & kWriteable) == 0;
  set_rank(view, a.rank, operand);
  for (int i = 0; i < a.rank; ++i) view.extent[static_cast<std::size_t>(i)] = a.extents[i];
  set_byte_strides(view, a.strides, t.item, operand);
  view.observed_bytes = observed_bytes(a);
}

DataType dtype_from_typestr(std::string_view typestr) noexcept {
  constexpr std::pair<std::string_view, DataType> kTypes[] = {
      {"f4", DataType::fp32},  {"f2", DataType::fp16},  {"i1", DataType::int8},   {"u1", DataType::uint8},
      {"i4", DataType::int32}, {"i8", DataType::int64}, {"b1", DataType::boolean}};
  if (typestr.empty() || typestr[0] == '>') return DataType::not_set;
  for (const auto& [kind, type] : kTypes)
    if (typestr.substr(1) == kind) return type;
  return DataType::not_set;
}

namespace {

/// A field of an interface that some object made up: what Python cannot convert is no such thing, and no defect of ours.
template <class T>
T field(nb::handle value, const char* name, const OperandInfo& operand, const char* want) {
  T out{};
  if (!nb::try_cast(value, out))
    throw broken(Rule::pack_object, label_of(operand),
                 std::string("an array interface with ") + name + " " + nb::cast<std::string>(nb::repr(value)), want);
  return out;
}

nb::object entry(const nb::dict& fields, const char* name) {
  return fields.contains(name) ? nb::borrow(fields[name]) : nb::object(nb::none());
}

/// Fills the first numbers of a tuple of that many; null where it is none.
template <class T>
void numbers(nb::handle value, std::size_t count, T* out, const char* name, const OperandInfo& operand) {
  const auto all = field<nb::tuple>(value, (name + std::string("s")).c_str(), operand, "a tuple");
  if (all.size() != count)
    throw broken(Rule::pack_object, label_of(operand), "an array interface with " + std::to_string(all.size()) + " " + name + "s",
                 std::to_string(count));
  for (std::size_t i = 0; i < count; ++i) out[i] = field<T>(all[i], name, operand, "an integer of 64 bits");
}

}  // namespace

nb::dict interface_of(nb::handle object, const char* name, const OperandInfo& operand) {
  const nb::object said = object.attr(name);
  auto fields = field<nb::dict>(said, "the value", operand, "a dict");
  if (!entry(fields, "mask").is_none())
    throw broken(Rule::pack_object, label_of(operand), "an array interface with a mask", "an array without a mask");
  return fields;
}

std::string typestr_of(const nb::dict& fields, const OperandInfo& operand) {
  return field<std::string>(entry(fields, "typestr"), "typestr", operand, "a string");
}

void read_interface_layout(const nb::dict& fields, const OperandInfo& operand, TensorView& view) {
  const nb::object data = entry(fields, "data");
  if (!nb::isinstance<nb::tuple>(data) || nb::len(data) != 2)
    throw broken(Rule::pack_object, label_of(operand), "an array interface without an address", "one with an address");
  view.data = reinterpret_cast<void*>(field<std::uintptr_t>(data[0], "address", operand, "an address"));
  const int read_only = PyObject_IsTrue(nb::object(data[1]).ptr());
  if (read_only < 0) throw nb::python_error();
  view.read_only = read_only == 1;
  const auto shape = field<nb::tuple>(entry(fields, "shape"), "shape", operand, "a tuple");
  set_rank(view, static_cast<std::int64_t>(shape.size()), operand);
  numbers(shape, shape.size(), view.extent.data(), "extent", operand);
  const nb::object strides = entry(fields, "strides");
  if (strides.is_none()) return set_row_major(view);
  std::array<Py_ssize_t, kMaxRank> bytes{};
  numbers(strides, shape.size(), bytes.data(), "stride", operand);
  set_byte_strides(view, bytes.data(), bytes_of(view.dtype), operand);
}

void read_array_interface(nb::handle object, const OperandInfo& operand, TensorView& view, Keepers& keep) {
  const nb::dict fields = interface_of(object, "__array_interface__", operand);
  const std::string typestr = typestr_of(fields, operand);
  view.dtype = dtype_from_typestr(typestr);
  // Types that NumPy does not know itself have one typestr, '<V2', and are told apart by their dtype.
  const nb::object dtype = nb::getattr(object, "dtype", nb::none());
  if (view.dtype == DataType::not_set && nb::hasattr(dtype, "isnative")) view.dtype = type_of(dtype.ptr()).type;
  if (view.dtype == DataType::not_set) refuse_type(operand, typestr);
  read_interface_layout(fields, operand, view);
  keep.hold(fields);
}

}  // namespace verglas::python
