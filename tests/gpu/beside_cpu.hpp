#pragma once
// One graph on a device and by the CPU engine, on the same operands.
#include <cstdint>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "verglas/verglas.hpp"

namespace gpu_test {

/// The memory of an operand, as declared.
using Bytes = std::vector<std::uint8_t>;

struct Operands {
  /// Bytes in which an operand of the plan begins: those of outputs, gaps and padding are whatever is here.
  std::uint8_t poison = 0xFF;
  /// Writes what a call reads; not called for outputs.
  std::function<void(const verglas::OperandInfo&, Bytes&, std::mt19937&)> fill;
  /// Bytes by which the device's copy is shifted.
  std::function<std::size_t(const verglas::OperandInfo&)> shift = {};
  unsigned seed = 1;
  std::string knob = {};  ///< only plans that have it, and not 0
};

struct Output {
  std::string name;
  verglas::DataType type;
  Bytes want, got;  ///< by the CPU engine, and by the device
};
struct Run {
  std::string plan;
  std::vector<Output> outputs;
  const Output& named(const std::string& name) const;
};

/// Runs plan number `plan_index` of sm90, modulo how many there are, and the CPU engine; guards and refusals are judged here, by
/// EXPECT. No outputs where it did not come to a launch. The device's primary context is current.
Run run_beside_cpu(const std::function<void(verglas::Graph&)>& describe, std::size_t plan_index, const Operands& operands);
/// Bytes are equal in all outputs.
void expect_same_bytes(const Run& run);

/// f(i) for all i below `count`, by as many threads as there are processors, each with the primary context of device 0.
void each_on_device(std::size_t count, const std::function<void(std::size_t)>& f);

/// Bytes from the first to behind the last element.
std::size_t span_bytes(const verglas::OperandInfo& o);
/// Small integers in every element, fp4 any codes; gaps stay as they are.
void put_integers(const verglas::OperandInfo& o, Bytes& bytes, std::mt19937& random, int most);
/// Scales around 1 for (batches, rows, columns), in atoms or with one more column a row; padding stays as it is.
void put_scales(verglas::DataType type, bool is_interleaved, std::int64_t batches, std::int64_t rows, std::int64_t columns,
                Bytes& bytes, std::mt19937& random);

}  // namespace gpu_test
