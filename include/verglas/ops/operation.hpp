#pragma once
#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "verglas/dtype.hpp"
#include "verglas/plan.hpp"
#include "verglas/tensor.hpp"

/// Ready-made fusions: each is a few named tensors and a graph. docs/ops/ has a page for every operation.
namespace verglas::ops {

class Definition;
struct Problem;

/// Tensors of the largest operation.
inline constexpr int kMaxTensors = 11;

/// Which axis of an output (M, N, L) is contiguous.
enum class Major : std::uint8_t { n, m };

/// What a kernel depends on besides types, layouts and the device of its tensors. Fields that an operation does not have are
/// ignored. An output that is passed says its own type and major.
struct Options {
  DataType ab12_dtype = DataType::not_set;  ///< of outputs that are to be made; not set: the operation's default
  DataType c_dtype = DataType::not_set;
  DataType d_dtype = DataType::not_set;
  DataType acc_dtype = DataType::fp32;  ///< fp16, where it is legal, is computed in fp32
  Major major = Major::n;               ///< of outputs that are to be made
  int sf_vec_size = 0;                  ///< elements that share a scale: 16 or 32; 0: 32
  bool w_out_in = true;                 ///< gemm_proj_rope_mxfp8: rows of w are features of the result
  std::array<int, 2> mma_tiler_mn{};    ///< cuDNN's tiles and clusters: those that exist are accepted, and change nothing
  std::array<int, 2> cluster_shape_mn{};
  int head_dim = 192;  ///< gemm_proj_rope_mxfp8: features of a head, of which the last are rotated, as many as cos and sin have
};

/// A tensor of an operation, by its place.
struct TensorInfo {
  std::string_view name;
  bool is_output = false;
  bool is_optional = false;
};

/// One of the operations. A handle: copied freely, the same for all threads.
///
/// Shapes   A (M, K, L), B (N, K, L), outputs (M, N, L), any size; each packed, one of the first two axes contiguous
/// Calls    tensors stand at the places that `tensors()` lists; a `TensorView{}` is one that is not given
/// Plans    compiled once for types, majors, options and device, whatever the sizes and scalars; the last 256 are kept
/// Errors   invalid_call op.*; unsupported what the engines say; whatever a graph's call is refused for
class Operation {
 public:
  /// Throws op.name.
  static Operation named(std::string_view name);
  static std::span<const std::string_view> names() noexcept;

  std::string_view name() const noexcept;
  std::span<const TensorInfo> tensors() const noexcept;

  /// Types, extents and strides of the outputs, at their places, with no address: what these inputs ask for. Everything that can
  /// be said of the inputs without reading them is checked; their addresses may be null.
  std::vector<TensorView> outputs(std::span<const TensorView> tensors, const Options& options = {}) const;
  /// The plan for tensors like these, of several the first: from the cache, or compiled now.
  CompiledPlan plan(std::span<const TensorView> tensors, const Options& options = {}) const;
  /// Checks everything, then launches. Nothing is written for a call that is refused.
  void run(std::span<const TensorView> tensors, const Options& options = {}, float alpha = 1.0F, Stream stream = {}) const;

  /// The same with alpha as one fp32 where the tensors are: of a value that the host need not wait for.
  void run(std::span<const TensorView> tensors, const Options& options, const TensorView& alpha, Stream stream = {}) const;

  friend bool operator==(const Operation&, const Operation&) = default;

 private:
  friend class Prepared;
  friend class Repeat;
  /// Checks what can be checked without an address, and that all outputs are there that a call has to bring along.
  Problem problem(std::span<const TensorView> tensors, const Options& options, const Problem* like = nullptr) const;
  explicit Operation(const Definition& definition) : definition_(&definition) {}
  const Definition* definition_;
};

/// An operation compiled for sample tensors, for calls whose outputs are the caller's: cuDNN's classes.
///
/// Threads  `execute` from any number of threads at one time; the other members from one
class Prepared {
 public:
  /// Samples need no address and nothing of them is kept alive. Nothing is checked yet.
  Prepared(Operation operation, std::span<const TensorView> samples, const Options& options = {}, float alpha = 1.0F);

  /// True, or throws what is wrong with the samples.
  bool check_support();
  /// Checks too; the second call does nothing.
  void compile();
  /// Throws plan.stage before `compile`, op.sample for other types or majors than the samples'. Sizes may differ.
  void execute(std::span<const TensorView> tensors, std::optional<float> alpha = {}, Stream stream = {}) const;
  bool is_compiled() const noexcept { return built_ != nullptr; }

  // What it was made of.
  const Operation& operation() const noexcept { return operation_; }
  std::span<const TensorView> samples() const noexcept { return samples_; }  ///< without addresses
  const Options& options() const noexcept { return options_; }
  float alpha() const noexcept { return alpha_; }

 private:
  Operation operation_;
  std::vector<TensorView> samples_;
  Options options_;
  float alpha_;
  bool is_checked_ = false;
  std::shared_ptr<const struct Built> built_;
  struct Last;
  std::shared_ptr<Last> last_;
};

struct CacheStatistics {
  std::size_t plans = 0, limit = 0;       ///< kept now, and at most
  std::uint64_t compiled = 0, found = 0;  ///< calls since the start
};
CacheStatistics plan_cache_statistics();
/// Plans in use live on until their calls are over.
void clear_plan_cache();

}  // namespace verglas::ops
