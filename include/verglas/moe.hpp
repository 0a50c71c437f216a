#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "verglas/dtype.hpp"

namespace verglas {

/// Which row of a grouped product reads which token, and where it goes. docs/moe.md has the formulas.
enum class MoeMode : std::uint8_t {
  none,     ///< row r of the tokens is row r of the result
  gather,   ///< row r of the result is the product of token token_index[r]
  scatter,  ///< the product of row r goes to row token_index[r] · top_k + token_ks[r]
  combine,  ///< the product of row r times its score is added to row token_index[r]
};

/// What the offsets of groups are.
enum class MoeOffsets : std::uint8_t {
  first_token,  ///< the first row of each group; the last group ends with the rows
  end,          ///< the row behind each group; the first group begins with row 0
};

std::string_view name_of(MoeMode mode) noexcept;
std::string_view name_of(MoeOffsets offsets) noexcept;
std::optional<MoeMode> moe_mode_from_name(std::string_view name) noexcept;
std::optional<MoeOffsets> moe_offsets_from_name(std::string_view name) noexcept;

struct MoeAttributes {
  std::string name = {};
  DataType compute_data_type = DataType::not_set;  ///< not set: the graph's
  MoeMode mode = MoeMode::none;
  std::int64_t top_k = 1;  ///< scatter, combine: rows that each token has
  MoeOffsets offsets = MoeOffsets::first_token;
  bool zero_fill = false;  ///< outputs have +0 in the rows that no group owns; else these keep what they hold
};

struct MoeGradientAttributes {
  std::string name = {};
  DataType compute_data_type = DataType::not_set;
  MoeOffsets offsets = MoeOffsets::first_token;
  bool accumulate = false;  ///< the sums are added to what the output holds
};

}  // namespace verglas
