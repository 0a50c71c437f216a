#pragma once
#include <array>

#include "chain/chain.hpp"
#include "engine/sm90/tensor_maps.hpp"
#include "recipe/recipe.hpp"

namespace verglas::sm90 {

/// Roles of the three matrices of a plain product.
struct ProductRoles {
  int a = 0, b = 0, d = 0;
};
ProductRoles product_roles(const chain::FusionChain& chain) noexcept;

/// The product of these role views (canonical axes). Axes of extent 1 get a stride that every path can take: theirs means
/// nothing.
Problem problem_of(const recipe::RoleView& a, const recipe::RoleView& b, const recipe::RoleView& d, int input_bytes,
                   int output_bytes) noexcept;

/// Role views as declared, at an address that any path can take: what a plan is prepared for.
std::array<recipe::RoleView, 3> declared_views(const chain::FusionChain& chain);

}  // namespace verglas::sm90
