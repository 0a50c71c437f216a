// Products of every operand type beside cuBLASLt's in the like setting, through the public API, on one GPU.
//   verglas_bench_gpu_types FILE [COMMIT [PARTS OF CASES, BY COMMAS [PLANS]]]
// Random data, operands rotated beyond L2; the first PLANS plans (default 3), the rival (best of its first eight heuristics), and
// beside types with scales our own first plan in bf16, in turn, order reversed each round. Steady: 0.1 s of the contender itself,
// then a window of 30 ms between two readings of every SM's clock. Util: share of tensor cycles that did useful work, by the rate
// of the type.
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>

#include "device/cublaslt_product.hpp"
#include "numeric/convert.hpp"
#include "verglas/verglas.hpp"

namespace {

using namespace bench;

constexpr Device kGpu{DeviceType::cuda, 0};

struct Case {
  std::string name;
  DataType a, b, compute, out;
  bool fast = false;
  double flop_per_cycle = 4096;  ///< of one SM
  /// What B is cast to on its way into our product, and what the rival's own B is stored in.
  DataType cast = DataType::not_set;
  std::int64_t block = 0;  ///< of what is not bf16, elements that share a scale; the rival multiplies bf16 then
  bool is_scaled(DataType t) const { return block != 0 && t != DataType::bf16; }
  DataType rival_a() const { return block != 0 ? DataType::bf16 : a; }
  DataType rival_b() const { return block != 0 ? DataType::bf16 : cast == DataType::not_set ? b : cast; }
};
const std::vector<Case> kCases = {
    {"bf16", DataType::bf16, DataType::bf16, DataType::fp32, DataType::bf16, false, 4096},
    {"tf32", DataType::fp32, DataType::fp32, DataType::tf32, DataType::fp32, false, 2048},
    {"int8", DataType::int8, DataType::int8, DataType::int32, DataType::int32, false, 8192},
    {"fp8", DataType::fp8_e4m3, DataType::fp8_e4m3, DataType::fp32, DataType::bf16, false, 8192},
    {"fp8 fast", DataType::fp8_e4m3, DataType::fp8_e4m3, DataType::fp32, DataType::bf16, true, 8192},
    {"int8 as bf16", DataType::bf16, DataType::int8, DataType::fp32, DataType::bf16, false, 4096, DataType::bf16},
    {"mxfp8 beside bf16", DataType::fp8_e4m3, DataType::fp8_e4m3, DataType::fp32, DataType::bf16, false, 8192, DataType::not_set,
     32},
    {"nvfp4 beside bf16", DataType::fp4_e2m1, DataType::fp4_e2m1, DataType::fp32, DataType::bf16, false, 4096, DataType::not_set,
     16},
    {"nvfp4 weights beside bf16", DataType::bf16, DataType::fp4_e2m1, DataType::fp32, DataType::bf16, false, 4096,
     DataType::not_set, 16},
    {"mxfp4 weights beside bf16", DataType::bf16, DataType::fp4_e2m1, DataType::fp32, DataType::bf16, false, 4096,
     DataType::not_set, 32},
    {"mxfp8 weights beside bf16", DataType::bf16, DataType::fp8_e4m3, DataType::fp32, DataType::bf16, false, 4096,
     DataType::not_set, 32},
    {"fp8 as bf16", DataType::bf16, DataType::fp8_e4m3, DataType::fp32, DataType::bf16, false, 4096, DataType::bf16},
};
struct Shape {
  std::int64_t m, n, k;
};
constexpr Shape kShapes[] = {{4096, 4096, 4096}, {8192, 8192, 8192}, {4096, 7168, 2048}, {2048, 4096, 14336},
                             {64, 8192, 8192},   {16, 8192, 8192},   {4096, 4096, 4095}};

/// Of fp4 weights, and of fp4 beside itself.
constexpr Shape kFewRows[] = {{1, 8192, 8192}, {32, 8192, 8192}, {16, 4096, 4096}, {16, 28672, 8192}, {16, 8192, 28672}};

/// Random values of a type: normal, or all of int8.
std::vector<char> noise(DataType t) {
  constexpr std::size_t kCount = 1'048'573;  // a prime: no row of any matrix repeats the one before
  std::mt19937_64 g(7);
  std::normal_distribution<float> normal;
  std::vector<char> bytes(kCount * static_cast<std::size_t>(bytes_of(t)));
  if (t == DataType::fp4_e2m1) {
    std::generate(bytes.begin(), bytes.end(), [&] { return static_cast<char>(g()); });
    return bytes;
  }
  for (std::size_t i = 0; i < kCount; ++i)
    numeric::from_float(t == DataType::int8 ? static_cast<float>(static_cast<std::int8_t>(g())) : normal(g),
                        bytes.data() + i * static_cast<std::size_t>(bytes_of(t)), t);
  return bytes;
}

struct Operands {
  std::vector<DeviceMemory> a, b, rival_a, rival_b, d, scales;
  Operands(const Gpu& gpu, const Case& c, const Shape& s) {
    const auto bytes = [](std::int64_t x, std::int64_t y, DataType t) {
      return static_cast<std::size_t>(x * y * bits_of(t) / 8);
    };
    const auto fill = [&](DeviceMemory& m, const std::vector<char>& values, std::size_t shift) {
      shift = shift * 4096 % values.size();
      for (std::size_t at = 0; at < m.bytes(); shift = 0) {
        const std::size_t count = std::min(m.bytes() - at, values.size() - shift);
        m.upload(values.data() + shift, count, at);
        at += count;
      }
    };
    const std::vector<char> of_a = noise(c.a), of_b = noise(c.b), of_rival_a = noise(c.rival_a()),
                            of_rival_b = noise(c.rival_b());
    const std::size_t set = bytes(s.m, s.k, c.a) + bytes(s.n, s.k, c.b);
    const std::size_t sets = std::max<std::size_t>(2, 2 * static_cast<std::size_t>(gpu.l2_bytes) / set + 1);
    for (std::size_t i = 0; i < sets; ++i) {
      fill(a.emplace_back(gpu, bytes(s.m, s.k, c.a)), of_a, 2 * i + 1);
      fill(b.emplace_back(gpu, bytes(s.n, s.k, c.b)), of_b, 2 * i + 2);
      if (c.rival_a() != c.a) fill(rival_a.emplace_back(gpu, bytes(s.m, s.k, c.rival_a())), of_rival_a, 2 * i + 1);
      if (c.rival_b() != c.b) fill(rival_b.emplace_back(gpu, bytes(s.n, s.k, c.rival_b())), of_rival_b, 2 * i + 2);
      d.emplace_back(gpu, bytes(s.m, s.n, c.out));
    }
    // Rows of B are whole atoms. Powers of two around 1; of fp4 below it, as those of weights are.
    std::vector<char> powers(4093);
    std::mt19937 g(3);
    const unsigned least = c.b == DataType::fp4_e2m1 ? 118 : 124;
    for (char& p : powers) p = static_cast<char>(c.block == 16 ? 0x38 + 8 * (g() % 3) : least + g() % 6);
    for (std::size_t i = 0; i < 2 * sets && c.block != 0; ++i)
      fill(scales.emplace_back(gpu, static_cast<std::size_t>(((i % 2 == 0 ? s.m : s.n) + 127) / 128 * 128 * (s.k / c.block))),
           powers, i);
  }
};

struct Contender {
  std::string name;
  std::function<void(std::size_t)> launch;
  std::size_t next = 0;
  std::vector<double> us{}, util{}, mhz{};
  double different = 0;  ///< elements of D that differ from the rival's, percent
};

nlohmann::json measure(const Gpu& gpu, const ClockProbe& probe, const cuda::CublasLtTable& lt, const Case& c, const Shape& s,
                       std::size_t plans) {
  const Operands o(gpu, c, s);
  CublasLtProduct rival(gpu, lt, s.m, s.n, s.k, LtTypes::of(c.rival_a() == DataType::bf16 ? "bf16" : c.name));
  Graph g;
  const Tensor a = g.tensor({.name = "a", .dim = {s.m, s.k}, .stride = {s.k, 1}, .data_type = c.a});
  const Tensor b = g.tensor({.name = "b", .dim = {s.k, s.n}, .stride = {1, s.k}, .data_type = c.b});
  const auto scaled = [&](Tensor x, std::int64_t rows, bool is_a) {
    const std::int64_t blocks = s.k / c.block;
    const Tensor scale = g.tensor({.name = is_a ? "sa" : "sb",
                                   .dim = {is_a ? (rows + 127) / 128 * 128 : blocks, is_a ? blocks : rows},
                                   .stride = {is_a ? blocks : 1, is_a ? 1 : blocks},
                                   .data_type = c.block == 16 ? DataType::fp8_e4m3 : DataType::fp8_e8m0,
                                   .reordering = TensorReordering::f8_128x4});
    return g.block_scale_dequantize(x, scale,
                                    is_a ? std::vector<std::int64_t>{1, c.block} : std::vector<std::int64_t>{c.block, 1});
  };
  const Tensor factor = c.is_scaled(c.b)              ? scaled(b, s.n, false)
                        : c.cast == DataType::not_set ? b
                                                      : g.pointwise(PointwiseMode::identity, {b}).set_data_type(c.cast);
  const Tensor left = c.is_scaled(c.a) ? scaled(a, s.m, true) : a;
  g.matmul(left, factor, {.compute_data_type = c.compute}, 0.0, c.fast).set_output(true).set_data_type(c.out);
  const PlanList list = g.plans({.device = kGpu, .deselect_engines = {"cpu", "cublaslt"}});
  if (list.size() == 0) throw std::runtime_error(list.unsupported_text());
  std::vector<CompiledPlan> compiled;
  for (std::size_t i = 0; i < std::min(plans, list.size()); ++i) compiled.push_back(list.compile(i));

  // Beside narrow types our own product of the rival's.
  Graph plain;
  const Tensor plain_a = plain.tensor({.name = "a", .dim = {s.m, s.k}, .stride = {s.k, 1}, .data_type = DataType::bf16});
  const Tensor plain_b = plain.tensor({.name = "b", .dim = {s.k, s.n}, .stride = {1, s.k}, .data_type = DataType::bf16});
  plain.matmul(plain_a, plain_b).set_output(true).set_data_type(DataType::bf16);
  std::optional<CompiledPlan> bf16;
  if (c.block != 0) bf16 = plain.plans({.device = kGpu, .deselect_engines = {"cpu", "cublaslt"}}).compile(0);

  std::vector<Contender> all;
  all.push_back({"cublaslt", [&](std::size_t i) {
                   rival.launch((o.rival_a.empty() ? o.a : o.rival_a)[i].address(),
                                (o.rival_b.empty() ? o.b : o.rival_b)[i].address(), o.d[i].address());
                 }});
  for (const CompiledPlan& plan : compiled)
    all.push_back({plan.name(), [&](std::size_t i) {
                     std::vector<void*> buffers;
                     for (const OperandInfo& operand : plan.operands())
                       buffers.push_back(reinterpret_cast<void*>((operand.name == "a"    ? o.a[i]
                                                                  : operand.name == "b"  ? o.b[i]
                                                                  : operand.name == "sa" ? o.scales[2 * i]
                                                                  : operand.name == "sb" ? o.scales[2 * i + 1]
                                                                                         : o.d[i])
                                                                     .address()));
                     if (!plan.execute(buffers, {gpu.stream}).ok()) throw std::runtime_error(plan.name() + " refused its call");
                   }});
  if (bf16)
    all.push_back({"ours in bf16, " + bf16->name(), [&](std::size_t i) {
                     std::vector<void*> buffers;
                     for (const OperandInfo& operand : bf16->operands())
                       buffers.push_back(reinterpret_cast<void*>((operand.name == "a"   ? (o.rival_a.empty() ? o.a : o.rival_a)[i]
                                                                  : operand.name == "b" ? (o.rival_b.empty() ? o.b : o.rival_b)[i]
                                                                                        : o.d[i])
                                                                     .address()));
                     if (!bf16->execute(buffers, {gpu.stream}).ok()) throw std::runtime_error(bf16->name() + " refused its call");
                   }});
  const auto burst = [&](Contender& x, int count) {
    for (int i = 0; i < count; ++i) x.launch(x.next++ % o.a.size());
  };
  const auto mean_us = [&](Contender& x, int count) { return gpu.time_us([&] { burst(x, count); }) / count; };
  rival.pick([&] { return mean_us(all[0], std::max(8, static_cast<int>(3e4 / mean_us(all[0], 4)))); });

  std::vector<std::uint8_t> want;
  for (Contender& x : all) {
    gpu.ok(gpu.driver.cuMemsetD8Async(o.d[0].address(), 0xFF, o.d[0].bytes(), gpu.stream));
    x.launch(0);
    gpu.synchronize();
    const auto got = o.d[0].download<std::uint8_t>();
    if (want.empty()) want = got;
    const auto size = static_cast<std::size_t>(bytes_of(c.out));
    std::size_t count = 0;
    for (std::size_t i = 0; i < got.size(); i += size) count += !std::equal(&got[i], &got[i] + size, &want[i]);
    x.different = 100.0 * static_cast<double>(count * size) / static_cast<double>(got.size());
  }
  const double flop = 2.0 * static_cast<double>(s.m) * static_cast<double>(s.n) * static_cast<double>(s.k);
  for (int round = 0; round < 4; ++round)
    for (std::size_t i = 0; i < all.size(); ++i) {
      Contender& x = all[round % 2 ? all.size() - 1 - i : i];
      const double estimate = mean_us(x, 8);
      burst(x, std::max(4, static_cast<int>(1e5 / estimate)));
      const int count = std::max(8, static_cast<int>(3e4 / estimate));
      probe.read(0);
      x.us.push_back(mean_us(x, count));
      probe.read(1);
      const ClockProbe::Span span = probe.span();
      x.util.push_back(100 * flop * count / (c.flop_per_cycle * gpu.sm_count * span.cycles));
      x.mhz.push_back(1e3 * span.cycles / span.ns);
    }
  nlohmann::json records = nlohmann::json::array();
  const double rival_us = median_of(all[0].us);
  for (const Contender& x : all) {
    const double us = median_of(x.us);
    const std::string name = fmt::format("{} {}x{}x{}", c.name, s.m, s.n, s.k);
    fmt::print("{:<26} {:<60} {:8.1f} us {:7.1f} TFLOP/s util {:5.1f} {:5.0f} MHz ratio {:.3f}, {:.3f}% differ\n", name, x.name,
               us, flop / us * 1e-6, median_of(x.util), median_of(x.mhz), rival_us / us, x.different);
    if (&x == &all[0] || (bf16 && &x == &all.back())) continue;
    records.push_back({{"suite", "gpu_types.steady"},
                       {"case", name},
                       {"ours_us", us},
                       {"rival", "cublaslt best of 8"},
                       {"rival_us", rival_us},
                       {"ratio", rival_us / us},
                       {"plan", x.name},
                       {"util_percent", median_of(x.util)},
                       {"sm_mhz", median_of(x.mhz)},
                       {"different_percent", x.different}});
    if (bf16) records.back().update({{"bf16_us", median_of(all.back().us)}, {"bf16_plan", bf16->name()}});
  }
  std::fflush(stdout);
  return records;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) {
    fmt::print(stderr, "verglas_bench_gpu_types FILE [COMMIT [PARTS OF CASES [PLANS]]]\n");
    return 2;
  }
  try {
    const std::string parts = argc > 3 ? argv[3] : "";
    const std::size_t plans = argc > 4 ? std::strtoul(argv[4], nullptr, 10) : 3;
    const Gpu gpu;
    const ClockProbe probe(gpu);
    const auto lt = cuda::cublaslt();
    if (!lt) throw std::runtime_error(lt.error().text);
    nlohmann::json file = {{"device", gpu.name},
                           {"driver", gpu.driver.version},
                           {"cublaslt", (*lt)->version},
                           {"commit", argc > 2 ? argv[2] : ""},
                           {"command", fmt::format("verglas_bench_gpu_types FILE COMMIT \"{}\" {}", parts, plans)},
                           {"records", nlohmann::json::array()}};
    for (const Case& c : kCases) {
      std::vector<Shape> shapes(std::begin(kShapes), std::end(kShapes));
      if (c.b == DataType::fp4_e2m1) shapes.insert(shapes.end(), std::begin(kFewRows), std::end(kFewRows));
      for (const Shape& s : shapes) {
        if (!is_wanted(fmt::format("{} {}x{}x{}", c.name, s.m, s.n, s.k), parts)) continue;
        if (s.k % 128 != 0 && (c.block != 0 || c.rival_b() != DataType::bf16)) continue;  // the rival asks for whole pieces
        for (auto& r : measure(gpu, probe, **lt, c, s, plans)) file["records"].push_back(std::move(r));
        std::ofstream(argv[1]) << file.dump(1) << '\n';
      }
    }
  } catch (const std::exception& e) {
    fmt::print(stderr, "{}\n", e.what());
    return 1;
  }
  return 0;
}
