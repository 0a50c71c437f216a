#include "engine/cublaslt/launcher.hpp"

#include <fmt/format.h>

#include <cstring>
#include <optional>

#include "cuda/plan_context.hpp"
#include "cuda/stream_memory.hpp"
#include "engine/cublaslt/choices.hpp"

namespace verglas::cublaslt {
namespace {

/// Codes of `Status::driver`: the driver's own are positive, the library's are negated, and this one is ours.
constexpr std::int32_t kNoAlgorithm = -1000;

class LtLauncher final : public recipe::Launcher {
 public:
  LtLauncher(std::shared_ptr<const Library> library, const Product& product, const Geometry& declared, const Algorithm& algorithm,
             Device device)
      : library_(std::move(library)),
        lt_(library_->table()),
        driver_(library_->driver()),
        product_(product),
        device_(device),
        context_(driver_, library_->context()),
        preference_(lt_, alignments_of(product, declared)),
        workspaces_(driver_, library_->context()) {
    const auto check = [&](cuda::cublasStatus_t status, const char* call) {
      if (status != cuda::CUBLAS_STATUS_SUCCESS) throw library_error(lt_, status, call, "preparing a product");
    };
    check(fill(lt_, product_, desc_), "cublasLtMatmulDescSetAttribute");
    check(fill(lt_, product_, declared, layouts_), "cublasLtMatrixLayoutInit");
    declared_.geometry = declared;
    declared_.algorithm = algorithm;
  }

  Status launch(const recipe::Binding& b, const recipe::Call& call) const noexcept override {
    if (b.role[product_.d].reach == 0) return {};
    if (context_.is_of_parent()) return failed(cuda::CUDA_ERROR_NOT_INITIALIZED);
    if (b.is_ready) [[likely]]
      return enqueue(b, call);
    if (const cuda::CUresult code = context_.borrow(); code != cuda::CUDA_SUCCESS) return failed(code);
    const Status status = enqueue(b, call);
    context_.give_back();
    return status;
  }

  Device current_device(Device plan, bool& is_ready) const noexcept override { return context_.current_device(plan, is_ready); }

  Error failure(Status status) const override {
    const std::string where = fmt::format("multiplying on device {}", device_.id);
    if (context_.is_of_parent())
      return {
          ErrorCode::driver_failed, info_of(Rule::driver_call).id,
          "a plan of cuBLASLt belongs to the process before fork(): a child makes plans of its own, and cannot where its parent "
          "has used the driver"};
    if (status.driver == kNoAlgorithm)
      return broken(Rule::cublaslt_call, where + ": it has no algorithm for the extents of this call; nothing was enqueued");
    if (status.driver < 0) return library_error(lt_, static_cast<cuda::cublasStatus_t>(-status.driver), "cublasLtMatmul", where);
    return cuda::driver_error(driver_, static_cast<cuda::CUresult>(status.driver), "cuMemAlloc",
                              "taking a workspace before " + where);
  }

 private:
  static Status failed(cuda::CUresult code) noexcept { return {ErrorCode::driver_failed, -1, static_cast<std::int32_t>(code)}; }
  static Status failed(cuda::cublasStatus_t status) noexcept {
    return {ErrorCode::driver_failed, -1, -static_cast<std::int32_t>(status)};
  }

  Status enqueue(const recipe::Binding& b, const recipe::Call& call) const noexcept {
    const Geometry g = geometry_of(product_, b.role);
    const bool is_declared = g == declared_.geometry;
    MatmulDesc desc;
    const MatmulDesc* used = &desc_;
    if (product_.bias >= 0 || product_.aux >= 0) {  // its addresses stand in the descriptor: a copy for this call
      std::memcpy(desc.memory, desc_.memory, sizeof desc.memory);
      if (const auto status = address(lt_, product_, g, b.role, desc); status != cuda::CUBLAS_STATUS_SUCCESS)
        return failed(status);
      used = &desc;
    }
    if (is_declared) return multiply(declared_.algorithm, &declared_.is_loaded, *used, layouts_, b, call);
    Layouts layouts;
    if (const auto status = fill(lt_, product_, g, layouts); status != cuda::CUBLAS_STATUS_SUCCESS) return failed(status);
    if (const Choice* known = choices_.find(g)) return multiply(known->algorithm, &known->is_loaded, *used, layouts, b, call);
    Algorithm found;
    int count = 0;
    if (const auto status = ask(*library_, *used, layouts, preference_, 1, &found, count); status != cuda::CUBLAS_STATUS_SUCCESS)
      return failed(status);
    if (count == 0) return {ErrorCode::driver_failed, -1, kNoAlgorithm};
    const Choice* kept = choices_.keep(g, found);
    return multiply(found, kept ? &kept->is_loaded : nullptr, *used, layouts, b, call);
  }

  /// is_loaded  of this algorithm, or null where nobody keeps it
  Status multiply(const Algorithm& a, std::atomic<bool>* is_loaded, const MatmulDesc& desc, const Layouts& l,
                  const recipe::Binding& b, const recipe::Call& call) const noexcept {
    const auto stream = static_cast<cuda::CUstream>(call.stream.handle);
    cuda::StreamMemory workspace;
    if (a.workspace_bytes > 0)
      if (const auto code = workspaces_.find(stream, {a.workspace_bytes, 0}, workspace); code != cuda::CUDA_SUCCESS)
        return failed(code);
    std::optional<cuda::RelaxedCapture> relaxed;
    const bool is_first = is_loaded == nullptr || !is_loaded->load(std::memory_order_acquire);
    if (is_first) relaxed.emplace(driver_);
    float alpha = product_.alpha, beta = product_.c >= 0 ? 1.0F : 0.0F;
    if (product_.alpha_role >= 0) std::memcpy(&alpha, b.role[product_.alpha_role].data, sizeof alpha);
    const std::int32_t integer_alpha = 1, integer_beta = 0;
    const void* const factor = product_.is_integer() ? static_cast<const void*>(&integer_alpha) : &alpha;
    const void* const share = product_.is_integer() ? static_cast<const void*>(&integer_beta) : &beta;
    char* const d = b.role[product_.d].data;
    const auto status =
        lt_.cublasLtMatmul(library_->handle(), desc.get(), factor, b.role[product_.x()].data, l.x.get(),
                           b.role[product_.y()].data, l.y.get(), share, product_.c >= 0 ? b.role[product_.c].data : d, l.c.get(),
                           d, l.d.get(), &a.algo, reinterpret_cast<void*>(workspace.plain), a.workspace_bytes, stream);
    if (status != cuda::CUBLAS_STATUS_SUCCESS) return failed(status);
    if (is_first && is_loaded != nullptr) is_loaded->store(true, std::memory_order_release);
    return {};
  }

  std::shared_ptr<const Library> library_;
  const cuda::CublasLtTable& lt_;
  const cuda::DriverTable& driver_;
  Product product_;
  Device device_;
  cuda::PlanContext context_;
  Preference preference_;
  mutable cuda::StreamMemoryPool workspaces_;
  MatmulDesc desc_;
  Layouts layouts_;
  Choice declared_;
  mutable Choices choices_;
};

}  // namespace

std::unique_ptr<recipe::Launcher> make_launcher(std::shared_ptr<const Library> library, const Product& product,
                                                const Geometry& declared, const Algorithm& algorithm, Device device) {
  return std::make_unique<LtLauncher>(std::move(library), product, declared, algorithm, device);
}

}  // namespace verglas::cublaslt
