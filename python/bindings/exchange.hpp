#pragma once
#include <nanobind/nanobind.h>

#include "buffers.hpp"

namespace verglas::python {

struct ExchangeApi;

/// What a type of tensors offers in C: DLPack's exchange table, found on the type, so that reading a tensor runs no Python code.
struct ExchangeType {
  PyTypeObject* type = nullptr;      ///< a reference is kept, so that its address names no other type
  const ExchangeApi* api = nullptr;  ///< null: the type has none
  bool asks_negative = false;        ///< has is_neg(): bytes may be other than values
  bool records = false;              ///< has requires_grad
};

/// Null when the object's type has no table.
const ExchangeType* exchange_of(nb::handle object);

/// Reads the tensor by its type's table; false where the producer would not, which then has to be asked by its own protocol.
/// Errors   pack.lazy_view, pack.recorded_output, call.dtype, call.operand_device, call.rank
bool read_exchange(const ExchangeType& type, nb::handle object, const OperandInfo& operand, TensorView& view, Keepers& keep);

/// The same without asking whether the tensor is recorded, or its bytes other than its values: of one that has been asked, or
/// was made for this call.
bool read_exchange_unasked(const ExchangeType& type, nb::handle object, const OperandInfo& operand, TensorView& view,
                           Keepers& keep);

/// True where bytes are other than values, or where autograd records what becomes of it. Views of a pending negation are halves
/// of complex numbers, so tensors of types that no complex one is made of (bf16, fp8, integers) are not asked: it takes torch 60
/// ns.
bool is_negative(const ExchangeType& type, nb::handle object, DataType dtype);
bool is_recorded(const ExchangeType& type, nb::handle object);

/// The stream on which the producer works now on that device.
Stream current_stream(const ExchangeType& type, Device device);

}  // namespace verglas::python
