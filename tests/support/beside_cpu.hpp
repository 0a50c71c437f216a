#pragma once
#include <cstdint>
#include <functional>
#include <list>
#include <optional>
#include <string>
#include <vector>

#include "support/edge_memory.hpp"
#include "support/gpu.hpp"
#include "verglas/verglas.hpp"

namespace support {

/// A graph's operands in host and in device memory, for the CPU engine and for a plan on the device: both must leave the same
/// bytes in every output, gaps among them. Weights by address are an operand of int64, whose matrices lie somewhere else.
class BesideCpu {
 public:
  using Describe = std::function<void(verglas::Graph&)>;
  /// Content of an operand that is read; its bytes are all 0xFF before.
  using Fill = std::function<void(const verglas::OperandInfo&, std::vector<std::uint8_t>&)>;
  struct Options {
    bool at_edge = false;          ///< the page behind every operand is not mapped
    std::size_t matrix_bytes = 0;  ///< of weights by address
    verglas::DataType matrix{};    ///< their type
    std::size_t scales_bytes = 0;  ///< of their scales by address, which are filled as "scales"
    verglas::DataType scales{};
    bool by_value = false;        ///< zeros of either sign are equal
    std::uint8_t outputs = 0xFF;  ///< every byte of an output before
    Describe live = {};           ///< the same graph with extents of a call, which the plans are called with; else as declared
  };

  /// The context is current.
  BesideCpu(const verglas::cuda::DriverTable& driver, const Describe& describe, const Fill& fill, const Options& options);

  const verglas::PlanList& plans() const { return plans_; }
  /// New content of an operand, in both places; matrices by address change places.
  void set(const std::string& name, const std::vector<std::uint8_t>& bytes);
  void turn_table();
  /// The scales of an expert have no address.
  void drop_scales(std::size_t expert);
  /// Runs the CPU engine; outputs on the device are poisoned.
  void prepare();
  /// Addresses for a plan on the device, in its order.
  std::vector<void*> call() const;
  /// The same with extents and strides.
  std::vector<verglas::TensorView> views() const;
  /// After the device has run: every byte of every operand.
  void compare(const std::string& who) const;

 private:
  struct Operand {
    verglas::OperandInfo info;
    std::vector<std::uint8_t> host;
    std::optional<DeviceBuffer> buffer;
    std::optional<EdgeMemory> edge;
    std::uint64_t address = 0;
  };
  void place(Operand& o, bool at_edge);
  void upload(const Operand& o) const;
  std::vector<std::uint8_t> download(const Operand& o) const;
  void point();

  const verglas::cuda::DriverTable& driver_;
  const Options options_;
  verglas::CompiledPlan reference_;
  verglas::PlanList plans_;
  std::list<Operand> operands_;
  std::vector<Operand*> tables_;
  std::list<Operand> matrices_;
  std::size_t turned_ = 0;
  std::optional<std::size_t> dropped_;
};

}  // namespace support
