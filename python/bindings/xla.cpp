#include <nanobind/nanobind.h>

#include "bindings.hpp"

#ifdef VERGLAS_HAS_XLA

#include <array>
#include <string>
#include <string_view>

#include "verglas/ops/operation.hpp"
#include "xla/ffi/api/ffi.h"

/// Operations inside programs that XLA compiles: its typed foreign functions, on the CPU.
namespace verglas::python {
namespace {

namespace ffi = xla::ffi;

DataType type_of(ffi::DataType t) noexcept {
  switch (t) {
    case ffi::DataType::F32: return DataType::fp32;
    case ffi::DataType::F16: return DataType::fp16;
    case ffi::DataType::BF16: return DataType::bf16;
    case ffi::DataType::F8E4M3FN: return DataType::fp8_e4m3;
    case ffi::DataType::F8E5M2: return DataType::fp8_e5m2;
    case ffi::DataType::F8E8M0FNU: return DataType::fp8_e8m0;
    case ffi::DataType::S8: return DataType::int8;
    case ffi::DataType::U8: return DataType::uint8;
    case ffi::DataType::S32: return DataType::int32;
    default: return DataType::not_set;
  }
}

/// XLA's buffers have no strides. Ours are asked for with the last axis outermost (verglas/ops/_jax.py), others are row-major.
TensorView view_of(const ffi::AnyBuffer& buffer) {
  const auto dims = buffer.dimensions();
  TensorView v;
  v.data = buffer.untyped_data();
  v.dtype = type_of(buffer.element_type());
  v.rank = static_cast<std::int8_t>(dims.size());
  v.observed_bytes = static_cast<std::int64_t>(buffer.size_bytes());
  std::int64_t run = 1;
  for (std::size_t i = dims.size(); i-- > 0;) {
    const std::size_t axis = dims.size() == 3 ? (i == 0 ? 2 : i - 1) : i;
    v.extent[axis] = dims[axis];
    v.stride[axis] = run;
    run *= dims[axis];
  }
  return v;
}

ffi::Error run(std::string_view name, ffi::Span<const std::int32_t> inputs, ffi::Span<const std::int32_t> outputs,
               std::int32_t sf_vec_size, float alpha, ffi::RemainingArgs arguments, ffi::RemainingRets results) {
  try {
    const ops::Operation op = ops::Operation::named(name);
    std::array<TensorView, ops::kMaxTensors> views;
    const std::size_t places = op.tensors().size();
    // An operand behind those that have places is alpha as an array.
    for (std::size_t i = 0; i < arguments.size(); ++i) {
      auto buffer = arguments.get<ffi::AnyBuffer>(i);
      if (!buffer.has_value()) return buffer.error();
      if (i < inputs.size())
        views.at(static_cast<std::size_t>(inputs[i])) = view_of(*buffer);
      else
        alpha = *static_cast<const float*>(buffer->untyped_data());
    }
    for (std::size_t i = 0; i < results.size(); ++i) {
      auto buffer = results.get<ffi::AnyBuffer>(i);
      if (!buffer.has_value()) return buffer.error();
      views.at(static_cast<std::size_t>(outputs[i])) = view_of(**buffer);
    }
    op.run({views.data(), places}, {.sf_vec_size = sf_vec_size}, alpha);
    return ffi::Error::Success();
  } catch (const Error& e) {
    const bool is_wrong = e.code() == ErrorCode::invalid_call || e.code() == ErrorCode::invalid_graph;
    return {is_wrong ? ffi::ErrorCode::kInvalidArgument : ffi::ErrorCode::kInternal, e.what()};
  } catch (const std::exception& e) {
    return ffi::Error::Internal(e.what());
  }
}

XLA_FFI_DEFINE_HANDLER(kRun, run,
                       ffi::Ffi::Bind()
                           .Attr<std::string_view>("operation")
                           .Attr<ffi::Span<const std::int32_t>>("inputs")
                           .Attr<ffi::Span<const std::int32_t>>("outputs")
                           .Attr<std::int32_t>("sf_vec_size")
                           .Attr<float>("alpha")
                           .RemainingArgs()
                           .RemainingRets());

}  // namespace

void bind_xla(nb::module_& m) {
  m.def(
      "xla_target", [] { return nb::object(nb::capsule(reinterpret_cast<void*>(kRun))); },
      "The handler of operations for jax.ffi.register_ffi_target; None where the module was built without JAX's headers.");
}

}  // namespace verglas::python

#else

namespace verglas::python {

void bind_xla(nb::module_& m) {
  m.def(
      "xla_target", [] { return nb::object(nb::none()); },
      "The handler of operations for jax.ffi.register_ffi_target; None where the module was built without JAX's headers.");
}

}  // namespace verglas::python

#endif
