#pragma once
#include <map>
#include <string>
#include <vector>

#include "support/gpu.hpp"
#include "support/random.hpp"
#include "verglas/verglas.hpp"

// Calls of grouped products that are drawn: sizes from none to 300 rows, any number of groups, rows that nobody owns, offsets,
// indices and addresses that do not fit. What they give is compared with plain loops, exactly, since all values are small
// integers.
namespace verglas {

inline constexpr std::int64_t kMostRows = 1500, kMostGroups = 1024, kMostExperts = 6, kMostK = 320, kMostN = 200;
inline constexpr std::int64_t kK = 264, kN = 168;              ///< of the description: of more than four k-blocks
inline constexpr std::int64_t kNoGroup = -1, kNoWeights = -2;  ///< owners of rows that are not computed

struct GroupedKind {
  std::string name;
  DataType in = DataType::bf16, out = DataType::bf16;
  DataType offset = DataType::int32;
  bool ends = false;
  bool a_k_major = true, b_k_major = true;
  std::int64_t pitch = 328, pitch_d = 208;  ///< elements between lines of A and B along K, and between rows of D
  bool zero_fill = false;
  bool is_fused = false;  ///< relu(prob · sum + bias of the group), and the sum beside it
  bool reduces = false;   ///< over groups, all rows and columns, beside it
  MoeMode mode = MoeMode::none;
  std::int64_t top_k = 1;
  bool by_address = false;  ///< of weights; N and K are those of the description then
  bool pairs = false;       ///< a second product of the same groups is subtracted twice
  int in_tensor = -1;     ///< of a pair by address, which product has its weights in a tensor; the second's are the next expert's
  bool is_short = false;  ///< by the description groups have few rows, of little depth

  bool combines() const { return mode == MoeMode::combine; }
  bool is_by_address(int product) const { return by_address && product != in_tensor; }
};
std::ostream& operator<<(std::ostream& o, const GroupedKind& k);

/// One call: who owns what.
struct Grouping {
  std::int64_t rows = 0, groups = 1, experts = 1, n = 1, k = 1;
  std::vector<std::int64_t> offsets;
  std::vector<std::int64_t> owner;        ///< group of each row, kNoGroup or kNoWeights
  std::vector<std::int32_t> index, slot;  ///< of each row, where the kind has them
  std::vector<std::int64_t> from, to;     ///< row of A and of D of each row
  std::int64_t tokens = 0;                ///< rows of A
  std::int64_t results = 0;               ///< rows of D
  std::int64_t null_expert = -1;          ///< whose weights have no address
  bool fits = true;
};
Grouping draw_grouping(support::Random& random, const GroupedKind& kind);
/// All groups are empty.
Grouping no_rows(support::Random& random, const GroupedKind& kind);

/// The operands of all calls of a kind, on the device. The context is current.
class GroupedCalls {
 public:
  GroupedCalls(const cuda::DriverTable& driver, GroupedKind kind);

  PlanList plans() const;
  /// Calls the plan twice and reads its error word.
  void check(const CompiledPlan& plan, const Grouping& grouping);
  int touched_guard_bytes() const;

 private:
  struct Want {
    std::vector<std::uint8_t> d, sum;
    std::map<std::string, std::vector<float>> reduced;
  };
  std::vector<std::int64_t> strides_of_b() const;
  void fill_operands();
  void upload(const Grouping& grouping);
  std::vector<TensorView> views(const CompiledPlan& plan, const Grouping& grouping) const;
  Want wanted(const Grouping& grouping) const;
  void compare(const Want& want, const Grouping& grouping) const;
  std::uint32_t encode(DataType t, int v) const;
  void put(std::vector<std::uint8_t>& to, DataType t, std::int64_t at, int v) const;

  const cuda::DriverTable& driver_;
  GroupedKind kind_;
  std::vector<int> a_, b_;  ///< (row, k), (expert, n, k)
  std::vector<float> prob_, bias_;
  std::vector<int> score_;
  std::map<DataType, std::vector<std::uint32_t>> bits_;  ///< of small integers
  support::DeviceBuffer x_, w_, table_, offsets_, index_, slot_, d_, sum_, of_rows_, of_groups_, of_places_;
  std::map<std::string, support::DeviceBuffer> reduced_;
};

}  // namespace verglas
