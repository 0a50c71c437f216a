#include <nanobind/stl/string.h>

#include <utility>

#include "dtypes.hpp"
#include "graph.hpp"
#include "verglas/moe.hpp"

namespace verglas::python {
namespace {

namespace nb = nanobind;
using Type = DataTypeLike;

Tensor given(const Tensor* t) { return t ? *t : Tensor(); }

}  // namespace

void bind_grouped(GraphClass& c) {
  c.def(
       "moe_grouped_matmul",
       [](Lifecycle& g, const Tensor& token, const Tensor& weight, const Tensor& offset, const Tensor* index, const Tensor* ks,
          MoeMode mode, const Type& compute, std::int64_t top_k, std::string name, MoeOffsets offsets, bool zero_fill,
          const Tensor* scores) {
         return g.graph().moe_grouped_matmul(token, weight, offset,
                                             {.name = std::move(name),
                                              .compute_data_type = compute.get(),
                                              .mode = mode,
                                              .top_k = top_k,
                                              .offsets = offsets,
                                              .zero_fill = zero_fill},
                                             given(index), given(ks), given(scores));
       },
       nb::arg("token"), nb::arg("weight"), nb::arg("first_token_offset"), nb::arg("token_index").none() = nb::none(),
       nb::arg("token_ks").none() = nb::none(), nb::arg("mode") = MoeMode::none, nb::arg("compute_data_type") = Type(),
       nb::arg("top_k") = 1, nb::arg("name") = "", nb::kw_only(), nb::arg("offsets") = MoeOffsets::first_token,
       nb::arg("zero_fill") = false, nb::arg("top_k_scores").none() = nb::none(),
       R"(A product of each group's rows with the weights of its expert, g mod experts.

Parameters
----------
token : Tensor
    (1, rows, K); for GATHER (1, tokens, K).
weight : Tensor
    (experts, K, N), whatever its strides; or passed by pointers (`Tensor.set_by_pointers`).
first_token_offset : Tensor
    (groups,) or (groups, 1, 1) of INT32 or INT64: the first row of each group, the last of which ends with the rows.
token_index, token_ks : Tensor
    (1, rows, 1) of INT32: for GATHER the token of each row; for SCATTER and COMBINE token and slot to which each row goes.
mode : moe_grouped_matmul_mode
    NONE, GATHER, SCATTER or COMBINE.
top_k : int
    SCATTER, COMBINE: slots that each token has.
offsets : moe_offsets
    END where offsets are the rows behind the groups.
zero_fill : bool
    Outputs are +0 in rows that no group owns; otherwise those rows keep what they hold.
top_k_scores : Tensor
    COMBINE: (tokens, top_k) of FLOAT, BFLOAT16 or HALF, by which products are multiplied before they are added up.

Returns
-------
Tensor
    (1, rows, N), after COMBINE (1, tokens, N); virtual until ``set_output(True)``.

Notes
-----
Offsets that fall or leave the rows, and indices out of range, are clamped or skipped, and reported by `Graph.check` and by the
next call.
)")
      .def(
          "moe_grouped_matmul_bwd",
          [](Lifecycle& g, const Tensor& token, const Tensor& dout, const Tensor& offset, const Type& compute, std::string name,
             MoeOffsets offsets, bool accumulate) {
            return g.graph().moe_grouped_matmul_bwd(
                token, dout, offset,
                {.name = std::move(name), .compute_data_type = compute.get(), .offsets = offsets, .accumulate = accumulate});
          },
          nb::arg("token"), nb::arg("dout"), nb::arg("first_token_offset"), nb::arg("compute_data_type") = Type(),
          nb::arg("name") = "", nb::kw_only(), nb::arg("offsets") = MoeOffsets::first_token, nb::arg("accumulate") = false,
          R"(The gradient of the weights of a grouped product: for each group the sum over its rows of tokenᵀ · dout.

Parameters
----------
token, dout : Tensor
    (1, rows, K) and (1, rows, N).
accumulate : bool
    The sums are added to what the output holds.

Returns
-------
Tensor
    (groups, K, N), virtual until ``set_output(True)``; of a group without rows it is 0.
)");
}

}  // namespace verglas::python
