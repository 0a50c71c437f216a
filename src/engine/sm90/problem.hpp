#pragma once
#include <vector>

#include "chain/chain.hpp"
#include "engine/sm90/tensor_maps.hpp"
#include "recipe/recipe.hpp"

namespace verglas::sm90 {

/// Roles of the matrices that the kernel loads, and of the output that it stores through shared memory: the first.
struct ProductRoles {
  std::array<int, 2> a{}, b{};
  int a_count = 0, b_count = 0, d = 0;
};
ProductRoles product_roles(const chain::FusionChain& chain) noexcept;

/// The product of these views, one a role (canonical axes). Axes of extent 1 get a stride that every path can take: theirs means
/// nothing.
Problem problem_of(const ProductRoles& roles, const recipe::RoleView* views, int input_bytes, int output_bytes) noexcept;

/// The views of all roles as declared, at an address that any path can take: what a plan is prepared for.
std::vector<recipe::RoleView> declared_views(const chain::FusionChain& chain);

}  // namespace verglas::sm90
