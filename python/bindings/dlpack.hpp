#pragma once
#include <nanobind/nanobind.h>

#include <cstdint>
#include <span>

#include "buffers.hpp"

namespace verglas::python {

/// The exchange format's structures, version 1.x, as far as they are read here. Source: the DLPack specification.
struct DlTensor {
  void* data;
  std::int32_t device_type, device_id;
  std::int32_t rank;
  std::uint8_t code, bits;
  std::uint16_t lanes;
  std::int64_t* shape;
  std::int64_t* strides;  ///< elements; null: row-major
  std::uint64_t byte_offset;
};
struct DlManaged {
  DlTensor tensor;
  void* owner;
  void (*release)(DlManaged*);
};
struct DlManagedVersioned {
  std::uint32_t major, minor;
  void* owner;
  void (*release)(DlManagedVersioned*);
  std::uint64_t flags;
  DlTensor tensor;

  static constexpr std::uint64_t kReadOnly = 1;
};

/// Copies all that a view holds, but not whether it is read-only. `keep` says along which axis fp4 lie in pairs.
/// Errors   call.dtype, call.operand_device, call.rank
void read_dl_tensor(const DlTensor& tensor, const OperandInfo& operand, TensorView& view, const Keepers& keep);

/// An object with __dlpack__ and __dlpack_device__; its capsule is kept, not consumed. On a GPU the producer is told the stream
/// of the call, so that what it has still to do comes first.
void read_dlpack(nb::handle object, const OperandInfo& operand, TensorView& view, Keepers& keep);
/// Tells producers that were read by __dlpack__ another stream than they were told.
void tell_stream(std::span<PyObject* const> objects, Stream stream);

}  // namespace verglas::python
