#include "engine/cpu/engine.hpp"

#include <thread>

#include "engine/cpu/launcher.hpp"
#include "engine/cpu/panels.hpp"

namespace verglas::engine::cpu {
namespace {

/// Knob PRODUCT: who multiplies. Sums may be taken in another order, nothing else differs.
enum class Product : std::int64_t { loops = 0, onednn = 1, panels = 2 };
constexpr const char* kProduct = "PRODUCT";

/// The next best where a record from another machine names what is not here.
Sgemm sgemm_of(Product wanted) noexcept {
  Sgemm found = wanted == Product::onednn ? onednn_sgemm() : nullptr;
  if (!found && wanted != Product::loops) found = panels_sgemm();
  return found ? found : &loops_sgemm;
}

class CpuEngine final : public Engine {
 public:
  std::string_view name() const noexcept override { return "cpu"; }
  int id() const noexcept override { return 1; }

  Result<Claim> claim(const chain::FusionChain&, Device device) const override {
    if (device.type != DeviceType::cpu) return decline(Rule::engine_device, "runs on the host; the plan is for another device");
    if (onednn_sgemm()) return Claim{"products by oneDNN in fp32, epilogue by rows"};
    return Claim{std::string(panels_sgemm() ? "products by AVX-512 in fp32: " : "products by plain loops: ") + onednn_text()};
  }

  std::vector<Knobs> configurations(const chain::FusionChain&, Device) const override {
    std::vector<Knobs> all;
    if (onednn_sgemm()) all.push_back({{kProduct, static_cast<std::int64_t>(Product::onednn)}});
    if (panels_sgemm()) all.push_back({{kProduct, static_cast<std::int64_t>(Product::panels)}});
    all.push_back({{kProduct, static_cast<std::int64_t>(Product::loops)}});
    return all;
  }

  double predict(const chain::FusionChain& c, const Knobs& knobs, Device) const override {
    // Rough rates of one core; only their order matters.
    const auto product = static_cast<Product>(knobs.at(kProduct));
    // Panels pay where many rows share the weights that are packed, and these are not long; elsewhere oneDNN is up to 8% faster.
    const bool many = c.declared[1] >= 512 && c.declared[3] >= 256 && c.declared[3] <= 2048;
    const double rate = product == Product::onednn ? 60e9 : product == Product::panels ? (many ? 62e9 : 55e9) : 4e9;
    const double cores = std::max(1U, std::thread::hardware_concurrency());
    const double outputs = double(c.declared[0]) * double(c.declared[1]) * double(c.declared[2]);
    const double products = 2.0 * outputs * double(c.declared[3]) * double(c.gemms.size());
    const double elementwise = outputs * double(1 + c.steps.size() + c.stores.size() + c.reductions.size());
    return (products / rate + elementwise / 1e9) / cores;
  }

  Compiled compile(const chain::FusionChain& chain, const Knobs& knobs, Device device) const override {
    recipe::Requirements q;
    q.device = device;
    return {recipe::build(chain, q), make_launcher(chain, sgemm_of(static_cast<Product>(knobs.at(kProduct))))};
  }
};

}  // namespace

const Engine& engine() noexcept {
  static const CpuEngine e;
  return e;
}

}  // namespace verglas::engine::cpu
