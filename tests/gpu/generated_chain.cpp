#include "generated_chain.hpp"

#include <cmath>
#include <cstring>
#include <stdexcept>

#include "oracle/compare.hpp"
#include "oracle/memory.hpp"
#include "support/gpu.hpp"

namespace gpu_test {

using namespace support;
using verglas::TensorView;

namespace {

constexpr verglas::Device kGpu{verglas::DeviceType::cuda, 0};

GeneratorOptions options_of(Kind kind) {
  GeneratorOptions o;
  o.largest = 300;
  o.most_work = 3'000'000;
  o.for_device = true;
  o.kernel_types = kind == Kind::kernel_types;
  o.block_scaled = kind == Kind::block_scaled;
  return o;
}

/// The CPU engine on the same operands, into outputs of its own; what differs, or nothing.
std::string differs_from_host(const GeneratedChain& chain, const Call& call) {
  std::vector<PoisonedBuffer> outputs;
  std::vector<TensorView> views = call.views;
  outputs.reserve(call.buffers.size());
  for (std::size_t i = 0; i < call.buffers.size(); ++i) {
    views[i].observed_bytes = -1;
    if (!chain.c.operands[i].is_output) continue;
    outputs.emplace_back(call.buffers[i].format(), call.buffers[i].dims(), call.buffers[i].strides());
    views[i].data = outputs.back().data();
  }
  const auto ordered = in_plan_order(chain.c, chain.host, views);
  const verglas::Status status = chain.host.execute(ordered);
  if (!status.ok()) return std::string("the CPU engine: ") + chain.host.explain(status, ordered).what();
  std::size_t next = 0;
  for (std::size_t i = 0; i < call.buffers.size(); ++i) {
    if (!chain.c.operands[i].is_output) continue;
    const PoisonedBuffer &ours = call.buffers[i], &theirs = outputs[next++];
    if (ours.content() == theirs.content()) continue;
    for (oracle::Walk w(ours.dims()); w.more(); w.next()) {
      const std::int64_t at = w.offset(ours.strides());
      const double x = oracle::value_at(ours.format(), ours.data(), at), y = oracle::value_at(ours.format(), theirs.data(), at);
      // A NaN has no bits of its own, and a zero's sign has been judged where there is something to judge.
      if (x == y || (std::isnan(x) && std::isnan(y))) continue;
      std::string where;
      for (const std::int64_t c : w.at()) where += (where.empty() ? "" : ", ") + std::to_string(c);
      return "output " + std::to_string(i) + " (" + where + ") is " + std::to_string(x) + ", by the CPU engine " +
             std::to_string(y);
    }
  }
  return {};
}

/// One call: host buffers go to the device as they are, gaps and all, and come back.
void check_call(GeneratedChain& chain, Random& random, const verglas::cuda::DriverTable& driver, verglas::cuda::CUstream stream,
                const Placement& place) {
  const Case& c = chain.c;
  Call call = draw_call(c, random);
  std::vector<Place> places(call.buffers.size());
  std::vector<TensorView> views = call.views;
  for (std::size_t i = 0; i < call.buffers.size(); ++i) {
    if (c.operands[i].is_output) call.buffers[i].clear();
    views[i].observed_bytes = -1;
    if (c.operands[i].is_host_scalar) continue;
    const auto bytes = static_cast<std::size_t>(call.buffers[i].span_bytes());
    // Shifted like the host's buffer, so that the same paths are legal.
    places[i] = place(i, bytes, reinterpret_cast<std::uintptr_t>(call.buffers[i].data()) % 16);
    const auto address = reinterpret_cast<verglas::cuda::CUdeviceptr>(places[i].data);
    if (bytes > 0)
      verglas::cuda::check(driver, driver.cuMemcpyHtoD(address, call.buffers[i].data(), bytes), "cuMemcpyHtoD", "test data");
    views[i].data = places[i].data;
    if (!call.is_bare) views[i].device = kGpu;
  }
  driver.cuCtxSynchronize();  // uploads and poison are of the default stream
  const auto ordered = in_plan_order(c, chain.plan, views);
  const verglas::Status status = chain.plan.execute(ordered, {stream});
  std::string live = " (L M N K live";
  for (std::size_t i = 1; i < call.live.size(); ++i) live += ' ' + std::to_string(call.live[i]);
  live += ")";
  if (!status.ok()) {
    const verglas::Error why = chain.plan.explain(status, ordered, {stream});
    if (status.code == verglas::ErrorCode::invalid_call)
      ++chain.tally.refused[why.rule()];  // a layout that this plan's paths do not take
    else
      chain.wrong = why.what() + live;
    return;
  }
  const verglas::cuda::CUresult code = driver.cuStreamSynchronize(stream);
  if (code != verglas::cuda::CUDA_SUCCESS) {
    chain.wrong = "the kernel failed: " + verglas::cuda::name_of(driver, code) + live;
    return;
  }
  ++chain.tally.calls;
  for (std::size_t i = 0; i < call.buffers.size(); ++i) {
    if (!places[i].data) continue;
    const auto bytes = static_cast<std::size_t>(call.buffers[i].span_bytes());
    if (bytes > 0)
      driver.cuMemcpyDtoH(call.buffers[i].data(), reinterpret_cast<verglas::cuda::CUdeviceptr>(places[i].data), bytes);
    std::string damage = c.operands[i].is_output ? call.buffers[i].stray_write() : call.buffers[i].any_write();
    if (damage.empty() && places[i].touched() != 0) damage = "a guard was written";
    if (damage.empty()) continue;
    chain.wrong = c.reference.tensors[static_cast<std::size_t>(c.operands[i].tensor)].name + ": " + damage + live;
    return;
  }
  const oracle::Graph reference = bound(c, call);
  const auto compared = compare_outputs(reference, evaluate(reference, {.ulps = 8, .approximate = true}));
  chain.wrong = failures(compared);
  bool exact = true;
  for (const oracle::Comparison& o : compared) exact &= o.exact == o.count;
  if (chain.wrong.empty() && exact) {
    ++chain.tally.exact_calls;
    chain.wrong = differs_from_host(chain, call);
  }
  if (!chain.wrong.empty()) chain.wrong += live;
}

}  // namespace

void Tally::add(const Tally& other) {
  calls += other.calls;
  exact_calls += other.exact_calls;
  for (const auto& [rule, n] : other.declined) declined[rule] += n;
  for (const auto& [rule, n] : other.refused) refused[rule] += n;
}

std::string text_of(const std::map<std::string, int>& counts) {
  std::string s;
  for (const auto& [rule, n] : counts) s += (s.empty() ? "" : ", ") + rule + " " + std::to_string(n);
  return s.empty() ? "none" : s;
}

void GeneratedChain::compile() {
  std::vector<std::size_t> ours;
  for (std::size_t i = 0; i < plans.size(); ++i)
    if (plans.engine(i) == "sm90") ours.push_back(i);
  plan = plans.compile(ours[(seed * 0x9E3779B97F4A7C15ULL >> 40) % ours.size()]);
  host = draw_case(seed, options_of(kind)).graph.compile();
}

std::optional<GeneratedChain> draw_chain(std::uint64_t seed, Kind kind, Tally& tally) {
  GeneratedChain chain;
  chain.seed = seed;
  chain.kind = kind;
  chain.c = draw_case(seed, options_of(kind));
  chain.plans = chain.c.graph.plans({.device = kGpu, .deselect_engines = {"cpu", "cublaslt"}});
  for (const verglas::DeclineRecord& d : chain.plans.declines())
    if (d.engine == "sm90") ++tally.declined[d.rule];
  for (std::size_t i = 0; i < chain.plans.size(); ++i)
    if (chain.plans.engine(i) == "sm90") return chain;
  return std::nullopt;
}

std::vector<GeneratedChain> draw_chains(std::size_t count, std::uint64_t first, std::uint64_t step, Kind kind, Tally& tally) {
  std::vector<GeneratedChain> chains;
  for (std::uint64_t seed = first; chains.size() < count; seed += step) {
    if (seed > first + 20000 * step)
      throw std::runtime_error("hardly any chain is claimed; declined: " + text_of(tally.declined));
    if (auto chain = draw_chain(seed, kind, tally)) chains.push_back(std::move(*chain));
  }
  return chains;
}

Placement between_guards(const verglas::cuda::DriverTable& driver) {
  return [&driver](std::size_t, std::size_t bytes, std::size_t residue) {
    const auto buffer = std::make_shared<DeviceBuffer>(driver, bytes, 0xFF, residue);
    return Place{buffer->data(), [b = buffer.get()] { return b->touched_guard_bytes(); }, buffer};
  };
}

void check_calls(GeneratedChain& chain, int calls, const verglas::cuda::DriverTable& driver, const Placement& place) {
  verglas::cuda::CUstream streams[2] = {};
  for (auto& s : streams)
    verglas::cuda::check(driver, driver.cuStreamCreate(&s, verglas::cuda::kStreamNonBlocking), "cuStreamCreate", "a test");
  Random random(chain.seed ^ 0xC0FFEE);
  const int before = chain.tally.calls;
  try {
    for (int drawn = 0; chain.tally.calls - before < calls && chain.wrong.empty(); ++drawn) {
      check_call(chain, random, driver, streams[drawn % 2], place);
      if (drawn > 20 * calls) chain.wrong = "refuses nearly every call: " + text_of(chain.tally.refused);
    }
  } catch (const std::exception& e) {
    chain.wrong = std::string("threw: ") + e.what();
  }
  if (!chain.wrong.empty()) chain.wrong = chain.c.line() + "\n  plan " + chain.plan.name() + ": " + chain.wrong;
  for (auto* s : streams) driver.cuStreamDestroy(s);
}

}  // namespace gpu_test
