#include "support/gpu.hpp"

#include <algorithm>
#include <map>
#include <thread>

#include "cuda/device.hpp"

namespace support {

using verglas::cuda::check;
namespace {
constexpr std::uint8_t kPattern = 0xA5;
}

std::string missing_gpu() {
  const auto driver = verglas::cuda::driver();
  if (!driver) return driver.error().text;
  if (verglas::cuda::device_count(**driver) == 0) return "no CUDA device";
  const auto facts = verglas::cuda::device_facts(**driver, 0);
  if (facts.major != 9)
    return facts.name + " has compute capability " + std::to_string(facts.major) + "." + std::to_string(facts.minor) +
           ", not 9.0";
  return {};
}

std::vector<std::size_t> each_tile_once(const verglas::PlanList& plans) {
  std::vector<std::size_t> chosen;
  std::map<verglas::Knobs, std::size_t> tiles;
  for (std::size_t i = 0; i < plans.size(); ++i) {
    verglas::Knobs tile = plans.knobs(i);
    const bool programmatic = tile.at("PROGRAMMATIC") != 0;
    tile.erase("PROGRAMMATIC");
    const std::size_t number = tiles.emplace(std::move(tile), tiles.size()).first->second;
    if (programmatic == (number % 2 == 1)) chosen.push_back(i);
  }
  return chosen;
}

std::vector<verglas::CompiledPlan> compile_each_tile_once(const verglas::PlanList& plans, std::size_t most) {
  const std::vector<std::size_t> chosen = each_tile_once(plans);
  std::vector<verglas::CompiledPlan> compiled(std::min(chosen.size(), most));
  std::vector<std::jthread> compilers;
  for (std::size_t i = 0; i < compiled.size(); ++i) compilers.emplace_back([&, i] { compiled[i] = plans.compile(chosen[i]); });
  compilers.clear();  // waits for them
  return compiled;
}

DeviceBuffer::DeviceBuffer(const verglas::cuda::DriverTable& driver, std::size_t bytes, int fill_byte, std::size_t misalign)
    : driver_(driver), bytes_(bytes), misalign_(misalign) {
  const std::size_t all = bytes + misalign + 2 * kGuard;
  check(driver_, driver_.cuMemAlloc(&base_, all), "cuMemAlloc", "a test buffer");
  check(driver_, driver_.cuMemsetD8Async(base_, kPattern, all, nullptr), "cuMemsetD8Async", "guards");
  fill(fill_byte);
}
DeviceBuffer::~DeviceBuffer() { driver_.cuMemFree(base_); }

void DeviceBuffer::upload(const void* from) {
  if (bytes_ > 0) check(driver_, driver_.cuMemcpyHtoD(base_ + kGuard + misalign_, from, bytes_), "cuMemcpyHtoD", "test data");
  wait();
}
void DeviceBuffer::fill(int byte) {
  if (bytes_ > 0)
    check(driver_, driver_.cuMemsetD8Async(base_ + kGuard + misalign_, static_cast<unsigned char>(byte), bytes_, nullptr),
          "cuMemsetD8Async", "poison");
  wait();
}
void DeviceBuffer::wait() const { check(driver_, driver_.cuStreamSynchronize(nullptr), "cuStreamSynchronize", "test data"); }
std::vector<std::uint8_t> DeviceBuffer::download() const {
  std::vector<std::uint8_t> v(bytes_);
  if (bytes_ > 0) check(driver_, driver_.cuMemcpyDtoH(v.data(), base_ + kGuard + misalign_, bytes_), "cuMemcpyDtoH", "results");
  return v;
}
int DeviceBuffer::touched_guard_bytes() const {
  std::vector<std::uint8_t> all(bytes_ + misalign_ + 2 * kGuard);
  check(driver_, driver_.cuMemcpyDtoH(all.data(), base_, all.size()), "cuMemcpyDtoH", "guards");
  const auto wrong = [](std::uint8_t b) { return b != kPattern; };
  const auto payload = all.begin() + static_cast<std::ptrdiff_t>(kGuard + misalign_);
  return static_cast<int>(std::count_if(all.begin(), payload, wrong) +
                          std::count_if(payload + static_cast<std::ptrdiff_t>(bytes_), all.end(), wrong));
}

void GpuTest::run_on_two_streams_and_in_a_replay(const verglas::CompiledPlan& plan, std::span<const verglas::TensorView> first,
                                                 std::span<const verglas::TensorView> second,
                                                 std::span<const verglas::TensorView> replayed) {
  using namespace verglas;
  cuda::CUstream stream[3]{};
  for (auto& s : stream) ASSERT_EQ(driver_->cuStreamCreate(&s, cuda::kStreamNonBlocking), cuda::CUDA_SUCCESS);
  cuda::CUgraph graph = nullptr;
  cuda::CUgraphExec executable = nullptr;
  ASSERT_EQ(driver_->cuStreamBeginCapture(stream[0], cuda::CU_STREAM_CAPTURE_MODE_GLOBAL), cuda::CUDA_SUCCESS);
  plan.run(replayed, {stream[0]});
  ASSERT_EQ(driver_->cuStreamEndCapture(stream[0], &graph), cuda::CUDA_SUCCESS);
  ASSERT_EQ(driver_->cuGraphInstantiateWithFlags(&executable, graph, 0), cuda::CUDA_SUCCESS);
  for (int run = 0; run < 50; ++run) {
    plan.run(first, {stream[0]});
    plan.run(second, {stream[1]});
    ASSERT_EQ(driver_->cuGraphLaunch(executable, stream[2]), cuda::CUDA_SUCCESS);
  }
  ASSERT_EQ(driver_->cuCtxSynchronize(), cuda::CUDA_SUCCESS);
  driver_->cuGraphExecDestroy(executable);
  driver_->cuGraphDestroy(graph);
  for (auto* s : stream) driver_->cuStreamDestroy(s);
}

}  // namespace support
