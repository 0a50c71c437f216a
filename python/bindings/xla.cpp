#include <nanobind/nanobind.h>

#include "bindings.hpp"

namespace {

constexpr const char* kDoc = R"(Handlers of operations for jax.ffi.register_ffi_target, by platform: {"cpu": ..., "CUDA": ...}.

None where the module was built without XLA's headers.)";

}  // namespace

#ifdef VERGLAS_HAS_XLA

#include <array>
#include <string>
#include <string_view>

#include "verglas/ops/operation.hpp"
#include "xla/ffi/api/ffi.h"

namespace verglas::python {

/// What a program says of a call besides its buffers.
struct Attributes {
  std::string_view operation;
  xla::ffi::Span<const std::int32_t> inputs, outputs;  ///< the place of each argument and result
  std::int32_t sf_vec_size, head_dim;
  float alpha;
  bool w_out_in, batch_last;
};

}  // namespace verglas::python

XLA_FFI_REGISTER_STRUCT_ATTR_DECODING(verglas::python::Attributes, StructMember<std::string_view>("operation"),
                                      StructMember<Span<const std::int32_t>>("inputs"),
                                      StructMember<Span<const std::int32_t>>("outputs"),
                                      StructMember<std::int32_t>("sf_vec_size"), StructMember<std::int32_t>("head_dim"),
                                      StructMember<float>("alpha"), StructMember<bool>("w_out_in"),
                                      StructMember<bool>("batch_last"));

/// Operations inside programs that XLA compiles: its typed foreign functions.
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

/// A call as XLA hands it over.
struct Call {
  const Attributes& of;
  ffi::RemainingArgs arguments;
  ffi::RemainingRets results;
  Device device{};

  /// XLA's buffers have no strides. Those of three axes may have the last one outermost (verglas/ops/_jax.py).
  TensorView view_of(const ffi::AnyBuffer& buffer) const {
    const auto dims = buffer.dimensions();
    TensorView v;
    v.data = buffer.untyped_data();
    v.dtype = type_of(buffer.element_type());
    v.rank = static_cast<std::int8_t>(dims.size());
    v.device = device;
    v.observed_bytes = static_cast<std::int64_t>(buffer.size_bytes());
    std::int64_t run = 1;
    for (std::size_t i = dims.size(); i-- > 0;) {
      const std::size_t axis = of.batch_last && dims.size() == 3 ? (i == 0 ? 2 : i - 1) : i;
      v.extent[axis] = dims[axis];
      v.stride[axis] = run;
      run *= dims[axis];
    }
    return v;
  }

  /// An argument behind those that have places is alpha as an array.
  ffi::Error run(Stream stream) const {
    try {
      const ops::Operation op = ops::Operation::named(of.operation);
      std::array<TensorView, ops::kMaxTensors> views;
      TensorView alpha;
      for (std::size_t i = 0; i < arguments.size(); ++i) {
        auto buffer = arguments.get<ffi::AnyBuffer>(i);
        if (!buffer.has_value()) return buffer.error();
        (i < of.inputs.size() ? views.at(static_cast<std::size_t>(of.inputs[i])) : alpha) = view_of(*buffer);
      }
      for (std::size_t i = 0; i < results.size(); ++i) {
        auto buffer = results.get<ffi::AnyBuffer>(i);
        if (!buffer.has_value()) return buffer.error();
        views.at(static_cast<std::size_t>(of.outputs[i])) = view_of(**buffer);
      }
      const std::span<const TensorView> tensors(views.data(), op.tensors().size());
      const ops::Options options{.sf_vec_size = of.sf_vec_size, .w_out_in = of.w_out_in, .head_dim = of.head_dim};
      if (alpha.dtype == DataType::not_set)
        op.run(tensors, options, of.alpha, stream);
      else
        op.run(tensors, options, alpha, stream);
      return ffi::Error::Success();
    } catch (const Error& e) {
      const bool is_wrong = e.code() == ErrorCode::invalid_call || e.code() == ErrorCode::invalid_graph;
      return {is_wrong ? ffi::ErrorCode::kInvalidArgument : ffi::ErrorCode::kInternal, e.what()};
    } catch (const std::exception& e) {
      return ffi::Error::Internal(e.what());
    }
  }
};

ffi::Error run_on_cpu(Attributes of, ffi::RemainingArgs arguments, ffi::RemainingRets results) {
  return Call{of, arguments, results}.run({});
}

ffi::Error run_on_cuda(void* stream, std::int32_t device, Attributes of, ffi::RemainingArgs arguments,
                       ffi::RemainingRets results) {
  return Call{of, arguments, results, {DeviceType::cuda, static_cast<std::int16_t>(device)}}.run({stream});
}

XLA_FFI_DEFINE_HANDLER(kRunOnCpu, run_on_cpu, ffi::Ffi::Bind().Attrs<Attributes>().RemainingArgs().RemainingRets());
// Without the trait of command buffers: XLA records again and again, and scratch of a recorded call lives as long as its plan.
XLA_FFI_DEFINE_HANDLER(kRunOnCuda, run_on_cuda,
                       ffi::Ffi::Bind()
                           .Ctx<ffi::PlatformStream<void*>>()
                           .Ctx<ffi::DeviceOrdinal>()
                           .Attrs<Attributes>()
                           .RemainingArgs()
                           .RemainingRets());

template <class Handler>
nb::capsule capsule_of(Handler* handler) {
  return nb::capsule(reinterpret_cast<void*>(handler));
}

}  // namespace

void bind_xla(nb::module_& m) {
  m.def(
      "xla_targets",
      [] {
        nb::dict all;
        all["cpu"] = capsule_of(kRunOnCpu);
        all["CUDA"] = capsule_of(kRunOnCuda);
        return nb::object(all);
      },
      kDoc);
}

}  // namespace verglas::python

#else

namespace verglas::python {

void bind_xla(nb::module_& m) {
  m.def("xla_targets", [] { return nb::object(nb::none()); }, kDoc);
}

}  // namespace verglas::python

#endif
