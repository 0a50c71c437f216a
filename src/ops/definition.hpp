#pragma once
#include <array>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>
#include <vector>

#include "base/rules.hpp"
#include "verglas/graph.hpp"
#include "verglas/ops/operation.hpp"

/// What an operation is made of: names of tensors, what they have to look like, and a graph.
namespace verglas::ops {

// Words of messages.
std::string text_of(const std::int64_t* values, int count);  ///< "(2, 3)"
std::string shape_of(const TensorView& v);
std::string text_of(Device d);

inline bool is_given(const TensorView& v) noexcept { return v.dtype != DataType::not_set || v.data != nullptr; }

/// A call as far as it does not depend on addresses and scalars.
struct Problem {
  const Definition& definition;
  std::array<TensorView, kMaxTensors> given{};
  const Options& options;
  const Problem* like = nullptr;  ///< whose majors count where strides say nothing of them
  std::int64_t m = 0, n = 0, k = 0, l = 0;
  int block = 0;                                  ///< elements of K that share a scale; 0: there are no scales
  std::int64_t head = 0, rotated = 0;             ///< features of a head, and those that are rotated
  bool alpha_in_memory = false;                   ///< an fp32 where the tensors are, and no scalar of the call
  std::array<TensorView, kMaxTensors> layout{};   ///< of outputs: what they have to be; not set: no such output
  std::array<std::uint8_t, kMaxTensors> major{};  ///< of matrices: the contiguous axis, 0 or 1
  /// Of matrices: how long an axis along N is in a graph at least. One of extent 1 would be a broadcast axis.
  std::array<std::int64_t, kMaxTensors> least = filled(2);

  static constexpr std::array<std::int64_t, kMaxTensors> filled(std::int64_t v) {
    std::array<std::int64_t, kMaxTensors> all;
    all.fill(v);
    return all;
  }
  bool has(int place) const noexcept { return is_given(given[static_cast<std::size_t>(place)]); }
  const TensorView& at(int place) const noexcept { return given[static_cast<std::size_t>(place)]; }
  /// "gemm_swiglu, ab12"
  std::string who(int place) const;

  // What definitions say of inputs; each throws op.*.
  void require(std::initializer_list<int> places) const;
  void require_type(int place, std::initializer_list<DataType> types) const;
  void require_same_type(int place, int other) const;
  void require_accumulator(std::initializer_list<DataType> types) const;
  /// A (M, K, L) and B (N, K, L): they give m, n, k, l.
  void read_product(int a, int b);
  /// The same, of one type that needs no scales.
  void read_plain_product(int a, int b);
  /// The same where blocks of K have scales. Afterwards `given` counts elements of A and B, and has scales as runs of bytes.
  /// Tells whether A and B are fp4.
  bool read_scaled_product(int a, int b, int sfa, int sfb);
  /// A matrix of these extents, packed.
  void read_matrix(int place, std::array<std::int64_t, 3> extent);
  void read_scalar(int place) const;                                             ///< one fp32
  void require_dense(int place, const std::vector<std::int64_t>& extent) const;  ///< row-major
  /// (M, 1, L) in fp32, any strides.
  void read_column(int place) const;

  // What definitions say of outputs.
  /// Scales of blocks along the columns of a quantised output: atoms of bytes.
  void make_scales(int place, std::int64_t columns, DataType type);
  /// A packed matrix. Its type is that of the tensor passed, else `wanted`, else `otherwise`; so is its major, the option's or
  /// that of the output `as` where there is one.
  void make_matrix(int place, std::int64_t columns, DataType wanted, DataType otherwise, std::initializer_list<DataType> types,
                   int as = -1);
  /// The same where it is asked for in fp4, or in bytes of two: an even number of columns, contiguous. Else false, and nothing.
  bool make_fp4(int place, std::int64_t columns, DataType wanted);
  void make_dense(int place, std::array<std::int64_t, 3> extent, DataType type);  ///< row-major
  void make_column(int place);                                                    ///< (M, 1, L) in fp32
  void make_scalar(int place, std::int8_t rank);                                  ///< one fp32
};

/// How an operand of the plan is cut out of a tensor.
enum class Cut : std::uint8_t {
  a,       ///< (M, K, L) as (L, M, K)
  b,       ///< (N, K, L) as (L, N, K)
  full,    ///< (M, N, L) as (L, M, N)
  column,  ///< (M, 1, L) as (L, M, 1)
  scalar,  ///< one element as (1, 1, 1)
  bytes,   ///< scales of blocks: all that there are, in a row
  alpha,   ///< no tensor of the operation: the call's alpha
  own,     ///< as the operation's own function says
};

struct Feed {
  std::int8_t place = 0;
  Cut cut = Cut::alpha;
  TensorView (*view)(const TensorView& whole) = nullptr;  ///< of Cut::own
};

/// A graph being written, and where each of its operands comes from.
class Description {
 public:
  explicit Description(const Problem& p) : p_(p) {}

  Tensor input(int place, Cut cut);
  Tensor alpha();
  Tensor scalar(int place);  ///< one fp32 in memory
  /// A (L, M, K) and B (L, K, N), times their scales where there are some.
  Tensor matrix_a(int place, int scale);
  Tensor matrix_b(int place, int scale);
  /// Of fp32 in tf32 on a GPU, since nothing else serves what follows; on the CPU that is fp32.
  Tensor product(const Tensor& a, const Tensor& b) {
    const bool is_fp32 = p_.at(0).dtype == DataType::fp32;
    return graph.matmul(a, b, {.compute_data_type = is_fp32 ? DataType::tf32 : DataType::not_set});
  }
  /// Stores `x`, rounded to the type of that output.
  void store(const Tensor& x, int place, Cut cut);
  /// Stores x in blocks of columns, each with a scale.
  void store_quantised(const Tensor& x, int place, int scale);
  /// max |x| over everything; −∞ over nothing.
  void store_amax(const Tensor& x, int place);
  /// Sum over the columns.
  void store_row_sum(const Tensor& x, int place);

  /// An operand that the operation cuts out itself, declared as it would be cut out of `whole`.
  Tensor input(const TensorView& whole, const Feed& feed, const std::string& name);
  /// Stores both results of a quantiser, in the layouts of these cuts.
  void store_blocks(const std::array<Tensor, 2>& both, const std::array<TensorView, 2>& whole, const std::array<Feed, 2>& feeds);

  Graph graph{GraphAttributes{.io_data_type = DataType::fp32}};
  std::vector<std::pair<std::int64_t, Feed>> feeds;  ///< by uid

 private:
  Tensor scales(int place, bool of_b);
  Tensor atoms(int place, const Feed& feed, std::array<std::int64_t, 3> dim);
  Tensor declare(const TensorView& like, const Feed& feed, const std::string& name);
  void note(const Tensor& t, const Feed& feed) { feeds.emplace_back(t.uid(), feed); }
  const Problem& p_;
};

/// Tiles and clusters that cuDNN's kernel has: others are refused, and these have no effect.
struct TileRules {
  int step_n = 32;                ///< columns are a multiple of it, up to 256; rows 128 or 256
  int longest_cluster = 16;       ///< along either axis
  bool pairs = false;             ///< 256 rows take clusters of an even number of them
  bool one_block_at_128 = false;  ///< and 128 rows none
};

class Definition {
 public:
  virtual ~Definition() = default;
  virtual std::string_view name() const noexcept = 0;
  virtual TileRules tile_rules(const Problem&) const noexcept { return {}; }
  virtual std::span<const TensorInfo> tensors() const noexcept = 0;
  /// Checks the inputs and lays out the outputs.
  virtual void infer(Problem& p) const = 0;
  virtual void describe(const Problem& p, Description& d) const = 0;
};

/// Every operation: an explicit list in src/ops/operation.cpp.
const Definition& gemm_amax() noexcept;
const Definition& gemm_swiglu() noexcept;
const Definition& gemm_srelu() noexcept;
const Definition& gemm_dsrelu() noexcept;
const Definition& gemm_proj_rope_mxfp8() noexcept;

/// Checks all that can be checked without an address.
Problem problem_of(const Definition& definition, std::span<const TensorView> tensors, const Options& options,
                   const Problem* like = nullptr);
/// The view of an operand.
TensorView cut_out(const TensorView& whole, const Feed& feed) noexcept;

/// What a plan depends on, as bytes. The last ones are the problem's size, roughly: a plan serves every size, and was chosen for
/// those of its class.
using Key = std::array<std::uint8_t, 2 * kMaxTensors + 13>;
inline constexpr std::size_t kSizeBytes = 3;
Key key_of(const Problem& p);
/// Whether a plan of one serves the other, if perhaps not as fast as its own.
bool is_served(const Key& by, const Key& other) noexcept;

/// A compiled plan, and where its operands come from.
struct Built {
  Key key{};
  CompiledPlan plan;
  std::vector<Feed> feeds;  ///< in the plan's order
};
std::shared_ptr<const Built> built_for(const Problem& p);
/// `alpha` is an address on the host, or one element where the tensors are.
void launch(const Built& built, const Problem& p, const TensorView& alpha, Stream stream);

}  // namespace verglas::ops
