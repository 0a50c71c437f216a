#pragma once

namespace vg {

template <bool CHOICE, class Then, class Else>
struct EitherOf {
  using Type = Then;
};
template <class Then, class Else>
struct EitherOf<false, Then, Else> {
  using Type = Else;
};
/// One of two types, of which the other need not be complete.
template <bool CHOICE, class Then, class Else>
using Either = typename EitherOf<CHOICE, Then, Else>::Type;

}  // namespace vg
