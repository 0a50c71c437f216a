#pragma once
#include <vector>

#include "chain/chain.hpp"
#include "engine/sm90/tensor_maps.hpp"
#include "recipe/recipe.hpp"

namespace verglas::sm90 {

/// Roles of the matrices that the kernel loads, and of the output that it stores through shared memory: the first, or −1.
struct ProductRoles {
  std::array<int, 2> a{}, b{};
  int a_count = 0, b_count = 0, d = -1;
  int row_list = -1;         ///< says how many rows there are, where those of a are tokens
  int scores = -1;           ///< likewise, where rows of d are sums of those of a
  bool has_experts = false;  ///< b has a matrix for each expert, and no batches
  int addressed = 0;         ///< bit i: role i of b is a table of addresses
  std::array<chain::PointerTable, 2> tables{};
};
ProductRoles product_roles(const chain::FusionChain& chain) noexcept;

/// What the copy engine moves through shared memory beside D, at D's extents.
struct StagedRole {
  int role = -1;
  DataType type = DataType::bf16;
  bool along_m = false, is_output = false;
  int shrink = 1;  ///< bytes of an element of D for each of its own: 1 or 2
  int width = 0;   ///< bytes a row of a box, where a drain of runs stores it
};
/// An operand of D's extents, element size and order, which arrives where D will lie; and outputs of its extents, with elements
/// as large or half as large. By strides as declared.
struct StagedRoles {
  static constexpr int kMaxFurther = 2;
  StagedRole tile;  ///< role −1 where there is none
  std::array<StagedRole, kMaxFurther> further;
  int further_count = 0;
};
StagedRoles staged_roles(const chain::FusionChain& chain);

/// Does anybody but a store read the value? Stores round by themselves.
bool is_read(const chain::FusionChain& chain, int value);
/// A step that takes no instruction: it passes on what it reads, or its result is rounded by a store.
bool is_free(const chain::FusionChain& chain, const chain::Step& step);

/// The product of these views, one a role (canonical axes). Axes of extent 1 get a stride that every path can take: theirs means
/// nothing.
Problem problem_of(const ProductRoles& roles, const recipe::RoleView* views, int input_bytes, int output_bytes) noexcept;

/// The views of all roles as declared, at an address that any path can take: what a plan is prepared for.
std::vector<recipe::RoleView> declared_views(const chain::FusionChain& chain);

/// rows × cols of a batch of these views; the stride of an axis of extent 1 is replaced.
Matrix matrix_of(const recipe::RoleView& view, int element_bytes) noexcept;

}  // namespace verglas::sm90
