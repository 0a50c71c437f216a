#include "engine/cublaslt/engine.hpp"

#include <fmt/format.h>

#include "engine/cublaslt/launcher.hpp"
#include "engine/cublaslt/predict.hpp"

namespace verglas::cublaslt {
namespace {

Geometry declared_geometry(const chain::FusionChain& chain, const Product& product) {
  return geometry_of(product, recipe::declared_views(chain).data());
}

std::string_view words_of(const Product& p) {
  switch (epilogue_of(p)) {
    case cuda::CUBLASLT_EPILOGUE_DEFAULT: return "";
    case cuda::CUBLASLT_EPILOGUE_BIAS: return " with a bias";
    case cuda::CUBLASLT_EPILOGUE_RELU: return " with relu";
    case cuda::CUBLASLT_EPILOGUE_RELU_BIAS: return " with a bias and relu";
    case cuda::CUBLASLT_EPILOGUE_GELU:
    case cuda::CUBLASLT_EPILOGUE_GELU_AUX: return " with gelu";
    case cuda::CUBLASLT_EPILOGUE_GELU_BIAS:
    case cuda::CUBLASLT_EPILOGUE_GELU_AUX_BIAS: return " with a bias and gelu";
    default: return " with the gradient of gelu";
  }
}

class CublasLtEngine final : public engine::Engine {
 public:
  std::string_view name() const noexcept override { return "cublaslt"; }
  int id() const noexcept override { return 3; }

  Result<engine::Claim> claim(const chain::FusionChain& chain, Device device) const override {
    if (device.type != DeviceType::cuda) return decline(Rule::engine_device, "runs on NVIDIA GPUs; the plan is for the host");
    const auto product = product_of(chain);
    if (!product) return tl::unexpected<Decline>(product.error());
    const auto library = library_of(device);
    if (!library) return tl::unexpected<Decline>(library.error());
    const int version = (*library)->table().version;
    const std::string named = fmt::format("cuBLASLt {}.{}.{}", version / 10000, version / 100 % 100, version % 100);
    try {
      if (offers_of(**library, *product, declared_geometry(chain, *product)).empty())
        return decline(Rule::cublaslt_algorithm, named + " has none");
    } catch (const Error& e) {
      return decline(Rule::cublaslt_algorithm, e.what());
    }
    return engine::Claim{fmt::format("one call of {}{}", named, words_of(*product))};
  }

  std::vector<Knobs> configurations(const chain::FusionChain& chain, Device device) const override {
    std::vector<Knobs> all;
    const Product product = *product_of(chain);
    const auto library = library_of(device);
    if (!library) throw broken(library.error().rule, library.error().text);
    for (Offer& o : offers_of(**library, product, declared_geometry(chain, product))) all.push_back(std::move(o.knobs));
    return all;
  }

  double predict(const chain::FusionChain& chain, const Knobs& knobs, Device device) const override {
    const Product product = *product_of(chain);
    const auto driver = cuda::driver();
    cuda::CUdevice handle = 0;
    int sm_count = 0;
    const bool known =
        driver && (*driver)->cuDeviceGet(&handle, device.id) == cuda::CUDA_SUCCESS &&
        (*driver)->cuDeviceGetAttribute(&sm_count, cuda::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, handle) == cuda::CUDA_SUCCESS;
    return predict_seconds(product, declared_geometry(chain, product), known ? sm_count : 132, static_cast<int>(knobs.at(kRank)));
  }

  engine::Compiled compile(const chain::FusionChain& chain, const Knobs& knobs, Device device) const override {
    const auto product = product_of(chain);
    if (!product) throw broken(product.error().rule, product.error().text);
    const auto library = library_of(device);
    if (!library) throw broken(library.error().rule, library.error().text);
    const Geometry declared = declared_geometry(chain, *product);
    for (const Offer& o : offers_of(**library, *product, declared))
      if (o.knobs == knobs)
        return {recipe::build(chain, requirements_of(chain, *product, device)),
                make_launcher(*library, *product, declared, o.algorithm, device)};
    throw broken(Rule::plan_replay, "plan", engine::plan_name(*this, knobs), "one that this cuBLASLt offers for the extents");
  }
};

}  // namespace

const engine::Engine& engine() noexcept {
  static const CublasLtEngine e;
  return e;
}

}  // namespace verglas::cublaslt
