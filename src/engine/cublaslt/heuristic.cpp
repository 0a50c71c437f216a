#include "engine/cublaslt/heuristic.hpp"

#include <algorithm>
#include <array>

namespace verglas::cublaslt {
namespace {

/// Any address: the library looks at its alignment. Never read through.
char* const kSomewhere = reinterpret_cast<char*>(std::uintptr_t{4096});

struct Attribute {
  const char* knob;
  cuda::cublasLtMatmulAlgoConfigAttributes_t which;
  std::size_t bytes;
};
/// All that tells one algorithm from another, as cublasLt.h types it.
constexpr std::array<Attribute, 9> kAttributes = {{
    {"ALGO", cuda::CUBLASLT_ALGO_CONFIG_ID, 4},
    {"TILE", cuda::CUBLASLT_ALGO_CONFIG_TILE_ID, 4},
    {"SPLIT_K", cuda::CUBLASLT_ALGO_CONFIG_SPLITK_NUM, 4},
    {"REDUCTION", cuda::CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME, 4},
    {"SWIZZLE", cuda::CUBLASLT_ALGO_CONFIG_CTA_SWIZZLING, 4},
    {"CUSTOM", cuda::CUBLASLT_ALGO_CONFIG_CUSTOM_OPTION, 4},
    {"STAGES", cuda::CUBLASLT_ALGO_CONFIG_STAGES_ID, 4},
    {"INNER", cuda::CUBLASLT_ALGO_CONFIG_INNER_SHAPE_ID, 2},
    {"CLUSTER", cuda::CUBLASLT_ALGO_CONFIG_CLUSTER_SHAPE_ID, 2},
}};

Knobs knobs_of(const cuda::CublasLtTable& lt, const Algorithm& a) {
  Knobs knobs;
  for (const Attribute& attribute : kAttributes) {
    std::uint64_t value = 0;  // little endian: fewer bytes fill its low end
    std::size_t written = 0;
    if (lt.cublasLtMatmulAlgoConfigGetAttribute(&a.algo, attribute.which, &value, attribute.bytes, &written) ==
        cuda::CUBLAS_STATUS_SUCCESS)
      knobs[attribute.knob] = static_cast<std::int64_t>(value);
  }
  knobs["VERSION"] = lt.version;  // the numbers above mean nothing to another one
  return knobs;
}

void check(const cuda::CublasLtTable& lt, cuda::cublasStatus_t status, const char* call, const char* attempted) {
  if (status != cuda::CUBLAS_STATUS_SUCCESS) throw library_error(lt, status, call, attempted);
}

}  // namespace

Preference::Preference(const cuda::CublasLtTable& lt, const Alignments& at) : lt_(lt) {
  check(lt, lt.cublasLtMatmulPreferenceCreate(&preference_), "cublasLtMatmulPreferenceCreate", "planning a product");
  cuda::cublasStatus_t status = cuda::CUBLAS_STATUS_SUCCESS;
  const auto set = [&](cuda::cublasLtMatmulPreferenceAttributes_t attribute, auto value) {
    if (status == cuda::CUBLAS_STATUS_SUCCESS)
      status = lt.cublasLtMatmulPreferenceSetAttribute(preference_, attribute, &value, sizeof value);
  };
  set(cuda::CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, kMostWorkspaceBytes);
  // Parts of a sum over K stay in fp32: a product is rounded once (docs/numerics.md).
  set(cuda::CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, std::uint32_t{cuda::CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE});
  set(cuda::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, static_cast<std::uint32_t>(at.x));
  set(cuda::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, static_cast<std::uint32_t>(at.y));
  set(cuda::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, static_cast<std::uint32_t>(at.c));
  set(cuda::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, static_cast<std::uint32_t>(at.d));
  if (status == cuda::CUBLAS_STATUS_SUCCESS) return;
  lt.cublasLtMatmulPreferenceDestroy(preference_);
  throw library_error(lt, status, "cublasLtMatmulPreferenceSetAttribute", "planning a product");
}

Preference::~Preference() { lt_.cublasLtMatmulPreferenceDestroy(preference_); }

cuda::cublasStatus_t ask(const Library& library, const MatmulDesc& desc, const Layouts& l, const Preference& preference,
                         int wanted, Algorithm* found, int& count) noexcept {
  std::array<cuda::cublasLtMatmulHeuristicResult_t, kMostAlgorithms> results{};
  int answered = 0;
  count = 0;
  const auto status =
      library.table().cublasLtMatmulAlgoGetHeuristic(library.handle(), desc.get(), l.x.get(), l.y.get(), l.c.get(), l.d.get(),
                                                     preference.get(), wanted, results.data(), &answered);
  if (status == cuda::CUBLAS_STATUS_NOT_SUPPORTED) return cuda::CUBLAS_STATUS_SUCCESS;  // none is its way to say so
  if (status != cuda::CUBLAS_STATUS_SUCCESS) return status;
  for (int i = 0; i < answered; ++i) {
    const auto& r = results[static_cast<std::size_t>(i)];
    if (r.state == cuda::CUBLAS_STATUS_SUCCESS && r.workspaceSize <= kMostWorkspaceBytes)
      found[count++] = {r.algo, r.workspaceSize};
  }
  return status;
}

std::vector<Offer> offers_of(const Library& library, const Product& p, const Geometry& declared) {
  const cuda::CublasLtTable& lt = library.table();
  std::vector<recipe::RoleView> views(chain::kMaxRoles);
  for (recipe::RoleView& v : views) v.data = kSomewhere;
  MatmulDesc desc;
  Layouts layouts;
  check(lt, fill(lt, p, desc), "cublasLtMatmulDescSetAttribute", "describing a product");
  check(lt, address(lt, p, declared, views.data(), desc), "cublasLtMatmulDescSetAttribute", "describing an epilogue");
  check(lt, fill(lt, p, declared, layouts), "cublasLtMatrixLayoutInit", "describing matrices");
  const Preference preference(lt, alignments_of(p, declared));
  const cuda::CurrentContext here(library.driver(), library.context());
  std::array<Algorithm, kMostAlgorithms> found{};
  int count = 0;
  check(lt, ask(library, desc, layouts, preference, kMostAlgorithms, found.data(), count), "cublasLtMatmulAlgoGetHeuristic",
        "asking for algorithms");
  std::vector<Offer> offers;
  for (int i = 0; i < count; ++i) {
    Knobs knobs = knobs_of(lt, found[static_cast<std::size_t>(i)]);
    const bool is_known =
        std::any_of(offers.begin(), offers.end(), [&](Offer& o) { return (knobs[kRank] = o.knobs[kRank], o.knobs == knobs); });
    if (is_known) continue;
    knobs[kRank] = i;
    offers.push_back({std::move(knobs), found[static_cast<std::size_t>(i)]});
  }
  return offers;
}

}  // namespace verglas::cublaslt
