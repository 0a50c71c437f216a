#pragma once
#include <nanobind/nanobind.h>

#include <cstddef>
#include <string>
#include <vector>

#include "verglas/plan.hpp"
#include "verglas/tensor.hpp"

/// From Python objects to views. torch, JAX and NumPy are never imported here: an object says itself what it is.
namespace verglas::python {

namespace nb = nanobind;

/// Keeps what views point into alive until the call is over. Without it a capsule, or a temporary that a producer made, would die
/// before the launch.
class Keepers {
 public:
  Keepers() = default;
  Keepers(const Keepers&) = delete;
  Keepers& operator=(const Keepers&) = delete;
  ~Keepers();

  void hold(nb::object object) { objects_.push_back(std::move(object)); }
  /// A view by the buffer protocol; released at the end.
  const Py_buffer* hold_buffer(nb::handle object, int flags);

  nb::handle stream = Py_None;  ///< that of the call, on which a producer's work has to be done; borrowed
  bool asked = false;           ///< a producer on a GPU was told that stream
  int pairs_axis = -1;          ///< along which fp4 lie in pairs; −1: along the one that is contiguous

 private:
  std::vector<nb::object> objects_;
  std::vector<Py_buffer*> buffers_;
};

/// "b 'weight'": roles and name, for messages.
std::string label_of(const OperandInfo& operand);

/// "float32", "list": the name of the object's type, for messages.
std::string type_name_of(nb::handle object);

/// The address that a Python int is; false for what is none.
bool address_of(nb::handle object, void*& address) noexcept;

/// Stands for a buffer that is no operand of a plan, in messages.
OperandInfo not_an_operand(std::string name, bool is_output, std::string_view whose = {});

/// Reads pointer, extents, strides, type and device off an object; an int is a bare address. `operand` words the errors.
/// Errors   pack.object, pack.stride, pack.lazy_view, pack.recorded_output, call.dtype, call.operand_device
void read_buffer(nb::handle object, const OperandInfo& operand, TensorView& view, Keepers& keep);

}  // namespace verglas::python
