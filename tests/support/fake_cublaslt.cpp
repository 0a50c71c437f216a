#include "support/fake_cublaslt.hpp"

#include <atomic>
#include <cmath>
#include <cstring>
#include <map>
#include <mutex>
#include <optional>

#include "cuda/driver_table.hpp"
#include "engine/cublaslt/library.hpp"
#include "oracle/formats.hpp"

namespace support {

using namespace verglas::cuda;

namespace {

constexpr std::uint64_t kDescMagic = 0x4445534344455343, kLayoutMagic = 0x4c41594f55544c59;

/// What the fake keeps in a caller's memory.
struct Desc {
  std::uint64_t magic;
  LtCall call;
};
struct Layout {
  std::uint64_t magic;
  LtMatrix matrix;
};
static_assert(sizeof(Desc) <= 512 && sizeof(Layout) <= 112);
struct Preferences {
  std::uint64_t workspace = 0;
  std::uint32_t mask = 7;
  std::uint32_t alignment[4] = {256, 256, 256, 256};
};
/// An algorithm's words: what was offered, and what the library was promised of addresses.
struct Algorithm {
  std::uint32_t id, tile, split_k;
  std::uint32_t alignment[4];
  std::uint32_t padding;
  std::uint64_t workspace;
  std::uint64_t rest[3];
};
static_assert(sizeof(Algorithm) == sizeof(cublasLtMatmulAlgo_t));

}  // namespace

struct FakeCublasLt::State {
  std::mutex mutex;
  CublasLtTable table;
  std::vector<LtAlgorithm> algorithms = {{66, 24, 1, 4}, {66, 23, 1, 0}, {66, 312, 2, 1 << 20}};
  std::function<bool(const LtCall&)> refuses;
  bool multiplies = false;
  std::vector<LtCall> launches, asked;
  std::map<std::string, int, std::less<>> counts;
  int handles = 0, preferences = 0;
  struct Failure {
    std::string call;
    cublasStatus_t status;
    int after;
  };
  std::vector<Failure> failures;
  std::optional<std::pair<int, cublasStatus_t>> indexed;

  cublasStatus_t enter(std::string_view call) {
    ++counts[std::string(call)];
    if (indexed && indexed->first-- == 0) {
      const auto status = indexed->second;
      indexed.reset();
      return status;
    }
    for (std::size_t i = 0; i < failures.size(); ++i)
      if (failures[i].call == call && failures[i].after-- == 0) {
        const auto status = failures[i].status;
        failures.erase(failures.begin() + static_cast<std::ptrdiff_t>(i));
        return status;
      }
    return CUBLAS_STATUS_SUCCESS;
  }
};

namespace {

std::atomic<FakeCublasLt::State*> g_lt{nullptr};

#define ENTER(call)                      \
  FakeCublasLt::State& s = *g_lt.load(); \
  std::unique_lock lock(s.mutex);        \
  if (const cublasStatus_t failure = s.enter(#call); failure != CUBLAS_STATUS_SUCCESS) return failure
#define REQUIRE(condition) \
  if (!(condition)) return CUBLAS_STATUS_INVALID_VALUE

oracle::Format format_of(std::int32_t type) {
  switch (type) {
    case CUDA_R_16F: return oracle::Format::fp16;
    case CUDA_R_16BF: return oracle::Format::bf16;
    case CUDA_R_8I: return oracle::Format::int8;
    case CUDA_R_32I: return oracle::Format::int32;
    case CUDA_R_8F_E4M3: return oracle::Format::e4m3;
    case CUDA_R_8F_E5M2: return oracle::Format::e5m2;
    default: return oracle::Format::fp32;
  }
}
std::size_t bytes_of(std::int32_t type) { return static_cast<std::size_t>(oracle::bits_of(format_of(type))) / 8; }
double read(const void* data, std::int32_t type, std::int64_t at) {
  std::uint64_t bits = 0;
  std::memcpy(&bits, static_cast<const char*>(data) + at * static_cast<std::int64_t>(bytes_of(type)), bytes_of(type));
  return oracle::decode(format_of(type), bits);
}
void write(void* data, std::int32_t type, std::int64_t at, double v) {
  const std::uint64_t bits = oracle::encode(format_of(type), v);
  std::memcpy(static_cast<char*>(data) + at * static_cast<std::int64_t>(bytes_of(type)), &bits, bytes_of(type));
}

bool is_current_context() {
  CUcontext now = nullptr;
  return (*verglas::cuda::driver())->cuCtxGetCurrent(&now) == CUDA_SUCCESS && now != nullptr;
}

double gelu_t(double x) { return std::tanh(0.7978845608028654 * (x + 0.044715 * x * x * x)); }

/// The product that the descriptors describe, one element after the other.
void run(const LtCall& p) {
  const auto k = static_cast<std::int64_t>(p.x_transposed ? p.x.rows : p.x.cols);
  for (std::int64_t l = 0; l < p.d.batches; ++l)
    for (std::int64_t col = 0; col < static_cast<std::int64_t>(p.d.cols); ++col)
      for (std::int64_t row = 0; row < static_cast<std::int64_t>(p.d.rows); ++row) {
        double sum = 0;
        for (std::int64_t i = 0; i < k; ++i) {
          const std::int64_t x = l * p.x.batch_stride + (p.x_transposed ? i + row * p.x.ld : row + i * p.x.ld);
          const std::int64_t y = l * p.y.batch_stride + (p.y_transposed ? col + i * p.y.ld : i + col * p.y.ld);
          sum += read(p.x_data, p.x.type, x) * read(p.y_data, p.y.type, y);
        }
        double v = p.alpha * sum;
        if (p.beta != 0) v += p.beta * read(p.c_data, p.c.type, l * p.c.batch_stride + row + col * p.c.ld);
        if (p.epilogue & CUBLASLT_EPILOGUE_BIAS && p.epilogue != CUBLASLT_EPILOGUE_DEFAULT)
          v += read(p.bias, p.bias_type, l * p.bias_stride + row);
        const std::int64_t aux = l * p.aux_stride + row + col * p.aux_ld;
        if (p.epilogue & 2) v = std::isnan(v) ? v : std::max(v, 0.0);
        if (p.epilogue & 32) {
          if (p.epilogue & 128) write(p.aux, p.aux_type, aux, v);
          v = 0.5 * v * (1 + gelu_t(v));
        }
        if (p.epilogue & 64) {
          const double x = read(p.aux, p.aux_type, aux), t = gelu_t(x);
          v *= 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * 0.7978845608028654 * (1 + 0.134145 * x * x);
        }
        write(p.d_data, p.d.type, l * p.d.batch_stride + row + col * p.d.ld, v);
      }
}

cublasStatus_t cublasLtCreate(cublasLtHandle_t* handle) {
  ENTER(cublasLtCreate);
  if (!is_current_context()) return CUBLAS_STATUS_NOT_INITIALIZED;
  *handle = reinterpret_cast<cublasLtHandle_t>(&s);
  ++s.handles;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle) {
  FakeCublasLt::State& s = *g_lt.load();
  const std::lock_guard lock(s.mutex);
  REQUIRE(handle == reinterpret_cast<cublasLtHandle_t>(&s));
  --s.handles;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescInit_internal(cublasLtMatmulDesc_t desc, std::size_t bytes, cublasComputeType_t compute,
                                               cudaDataType_t scale) {
  ENTER(cublasLtMatmulDescInit_internal);
  if (bytes < 256) return CUBLAS_STATUS_ALLOC_FAILED;
  Desc d{kDescMagic, {}};
  d.call.compute = compute;
  d.call.scale = scale;
  std::memcpy(static_cast<void*>(desc), &d, sizeof d);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t desc, cublasLtMatmulDescAttributes_t attribute,
                                              const void* value, std::size_t bytes) {
  ENTER(cublasLtMatmulDescSetAttribute);
  LtCall& c = reinterpret_cast<Desc*>(desc)->call;
  REQUIRE(reinterpret_cast<Desc*>(desc)->magic == kDescMagic);
  std::int64_t v = 0;
  std::memcpy(&v, value, bytes);
  const auto is = [&](std::size_t want) { return bytes == want; };
  switch (attribute) {
    case CUBLASLT_MATMUL_DESC_TRANSA:
      REQUIRE(is(4));
      c.x_transposed = v != 0;
      break;
    case CUBLASLT_MATMUL_DESC_TRANSB:
      REQUIRE(is(4));
      c.y_transposed = v != 0;
      break;
    case CUBLASLT_MATMUL_DESC_EPILOGUE:
      REQUIRE(is(4));
      c.epilogue = static_cast<std::uint32_t>(v);
      break;
    case CUBLASLT_MATMUL_DESC_BIAS_POINTER:
      REQUIRE(is(8));
      c.bias = reinterpret_cast<void*>(v);
      break;
    case CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE:
      REQUIRE(is(4));
      c.bias_type = static_cast<std::int32_t>(v);
      break;
    case CUBLASLT_MATMUL_DESC_BIAS_BATCH_STRIDE:
      REQUIRE(is(8));
      c.bias_stride = v;
      break;
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER:
      REQUIRE(is(8));
      c.aux = reinterpret_cast<void*>(v);
      break;
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_DATA_TYPE:
      REQUIRE(is(4));
      c.aux_type = static_cast<std::int32_t>(v);
      break;
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD:
      REQUIRE(is(8));
      c.aux_ld = v;
      break;
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_BATCH_STRIDE:
      REQUIRE(is(8));
      c.aux_stride = v;
      break;
    case CUBLASLT_MATMUL_DESC_FAST_ACCUM:
      REQUIRE(is(1));
      c.is_fast = v != 0;
      break;
    default: return CUBLAS_STATUS_INVALID_VALUE;
  }
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatrixLayoutInit_internal(cublasLtMatrixLayout_t layout, std::size_t bytes, cudaDataType_t type,
                                                 std::uint64_t rows, std::uint64_t cols, std::int64_t ld) {
  ENTER(cublasLtMatrixLayoutInit_internal);
  if (bytes < 112) return CUBLAS_STATUS_ALLOC_FAILED;
  const Layout l{kLayoutMagic, {type, rows, cols, ld, 1, 0}};
  std::memcpy(static_cast<void*>(layout), &l, sizeof l);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayout_t layout, cublasLtMatrixLayoutAttribute_t attribute,
                                                const void* value, std::size_t bytes) {
  ENTER(cublasLtMatrixLayoutSetAttribute);
  auto& l = *reinterpret_cast<Layout*>(layout);
  REQUIRE(l.magic == kLayoutMagic);
  if (attribute == CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT && bytes == 4)
    std::memcpy(&l.matrix.batches, value, bytes);
  else if (attribute == CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET && bytes == 8)
    std::memcpy(&l.matrix.batch_stride, value, bytes);
  else
    return CUBLAS_STATUS_INVALID_VALUE;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t* preference) {
  ENTER(cublasLtMatmulPreferenceCreate);
  *preference = reinterpret_cast<cublasLtMatmulPreference_t>(new Preferences);
  ++s.preferences;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference) {
  FakeCublasLt::State& s = *g_lt.load();  // never fails: nobody could do anything about it
  const std::lock_guard lock(s.mutex);
  delete reinterpret_cast<Preferences*>(preference);
  --s.preferences;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t preference,
                                                    cublasLtMatmulPreferenceAttributes_t attribute, const void* value,
                                                    std::size_t bytes) {
  ENTER(cublasLtMatmulPreferenceSetAttribute);
  auto& p = *reinterpret_cast<Preferences*>(preference);
  std::uint64_t v = 0;
  std::memcpy(&v, value, bytes);
  switch (attribute) {
    case CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES:
      REQUIRE(bytes == 8);
      p.workspace = v;
      break;
    case CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK:
      REQUIRE(bytes == 4);
      p.mask = static_cast<std::uint32_t>(v);
      break;
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES:
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES:
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES:
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES:
      REQUIRE(bytes == 4);
      p.alignment[attribute - CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES] = static_cast<std::uint32_t>(v);
      break;
    default: return CUBLAS_STATUS_INVALID_VALUE;
  }
  return CUBLAS_STATUS_SUCCESS;
}

/// Everything told, put together; its faults as the library finds them.
cublasStatus_t gather(cublasLtMatmulDesc_t desc, cublasLtMatrixLayout_t x, cublasLtMatrixLayout_t y, cublasLtMatrixLayout_t c,
                      cublasLtMatrixLayout_t d, LtCall& out) {
  REQUIRE(reinterpret_cast<const Desc*>(desc)->magic == kDescMagic);
  out = reinterpret_cast<const Desc*>(desc)->call;
  for (const auto& [from, to] : {std::pair{x, &out.x}, {y, &out.y}, {c, &out.c}, {d, &out.d}}) {
    REQUIRE(reinterpret_cast<const Layout*>(from)->magic == kLayoutMagic);
    *to = reinterpret_cast<const Layout*>(from)->matrix;
    REQUIRE(to->rows > 0 && to->cols > 0 && to->ld >= static_cast<std::int64_t>(to->rows));
    REQUIRE(to->batches == reinterpret_cast<const Layout*>(d)->matrix.batches);
  }
  const auto x_rows = out.x_transposed ? out.x.cols : out.x.rows, x_k = out.x_transposed ? out.x.rows : out.x.cols;
  const auto y_cols = out.y_transposed ? out.y.rows : out.y.cols, y_k = out.y_transposed ? out.y.cols : out.y.rows;
  REQUIRE(x_rows == out.d.rows && y_cols == out.d.cols && x_k == y_k);
  REQUIRE(out.c.rows == out.d.rows && out.c.cols == out.d.cols && out.c.type == out.d.type);
  const bool biased = out.epilogue != CUBLASLT_EPILOGUE_DEFAULT && (out.epilogue & CUBLASLT_EPILOGUE_BIAS);
  REQUIRE(!biased || (out.bias && out.bias_type == out.d.type && reinterpret_cast<std::uintptr_t>(out.bias) % 16 == 0));
  REQUIRE(!(out.epilogue & 128) ||
          (out.aux && out.aux_type == out.d.type && out.aux_ld >= static_cast<std::int64_t>(out.d.rows)));
  return CUBLAS_STATUS_SUCCESS;
}

/// The types and extents that cuBLASLt 13.1 took on an H200.
bool has_algorithm(const LtCall& p) {
  const auto in = p.x.type;
  const bool tn = p.x_transposed && !p.y_transposed;
  if (in == CUDA_R_8I) {
    if (p.d.type != CUDA_R_32I || p.epilogue != CUBLASLT_EPILOGUE_DEFAULT || p.compute != CUBLAS_COMPUTE_32I) return false;
    return p.x.rows % 4 == 0 && p.y.rows % 4 == 0 && (tn || p.d.rows % 4 == 0);
  }
  if (in == CUDA_R_8F_E4M3 || in == CUDA_R_8F_E5M2) {
    if (in == CUDA_R_8F_E5M2 && p.y.type == CUDA_R_8F_E5M2) return false;
    return tn && p.x.rows % 16 == 0 && p.d.rows * bytes_of(p.d.type) % 16 == 0;
  }
  return in == p.y.type && (p.d.type == in || p.d.type == CUDA_R_32F);
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t handle, cublasLtMatmulDesc_t desc, cublasLtMatrixLayout_t x,
                                              cublasLtMatrixLayout_t y, cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                              cublasLtMatmulPreference_t preference, int requested,
                                              cublasLtMatmulHeuristicResult_t* results, int* returned) {
  ENTER(cublasLtMatmulAlgoGetHeuristic);
  REQUIRE(handle == reinterpret_cast<cublasLtHandle_t>(&s) && requested > 0);
  *returned = 0;
  LtCall call;
  if (const auto status = gather(desc, x, y, c, d, call); status != CUBLAS_STATUS_SUCCESS) return status;
  s.asked.push_back(call);
  if (!has_algorithm(call) || (s.refuses && s.refuses(call))) return CUBLAS_STATUS_NOT_SUPPORTED;
  const auto& p = *reinterpret_cast<const Preferences*>(preference);
  for (const LtAlgorithm& a : s.algorithms) {
    if (*returned == requested) break;
    if (a.workspace_bytes > p.workspace || (a.split_k > 1 && !(p.mask & CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE))) continue;
    Algorithm algo{
        a.id, a.tile, a.split_k, {p.alignment[0], p.alignment[1], p.alignment[2], p.alignment[3]}, 0, a.workspace_bytes, {}};
    cublasLtMatmulHeuristicResult_t& r = results[(*returned)++];
    std::memcpy(&r.algo, &algo, sizeof algo);
    r.workspaceSize = a.workspace_bytes;
    r.state = CUBLAS_STATUS_SUCCESS;
    r.wavesCount = 1;
  }
  return *returned > 0 ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_NOT_SUPPORTED;
}
cublasStatus_t cublasLtMatmulAlgoConfigGetAttribute(const cublasLtMatmulAlgo_t* algo,
                                                    cublasLtMatmulAlgoConfigAttributes_t attribute, void* value,
                                                    std::size_t bytes, std::size_t* written) {
  ENTER(cublasLtMatmulAlgoConfigGetAttribute);
  const bool narrow = attribute == CUBLASLT_ALGO_CONFIG_INNER_SHAPE_ID || attribute == CUBLASLT_ALGO_CONFIG_CLUSTER_SHAPE_ID;
  REQUIRE(bytes == (narrow ? 2U : 4U));
  Algorithm a;
  std::memcpy(&a, algo, sizeof a);
  const std::uint32_t v = attribute == CUBLASLT_ALGO_CONFIG_ID           ? a.id
                          : attribute == CUBLASLT_ALGO_CONFIG_TILE_ID    ? a.tile
                          : attribute == CUBLASLT_ALGO_CONFIG_SPLITK_NUM ? a.split_k
                                                                         : 0;
  std::memcpy(value, &v, bytes);
  *written = bytes;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t desc, const void* alpha, const void* x_data,
                              cublasLtMatrixLayout_t x, const void* y_data, cublasLtMatrixLayout_t y, const void* beta,
                              const void* c_data, cublasLtMatrixLayout_t c, void* d_data, cublasLtMatrixLayout_t d,
                              const cublasLtMatmulAlgo_t* algo, void* workspace, std::size_t workspace_bytes, CUstream stream) {
  ENTER(cublasLtMatmul);
  REQUIRE(handle == reinterpret_cast<cublasLtHandle_t>(&s));
  if (!is_current_context()) return CUBLAS_STATUS_NOT_INITIALIZED;
  LtCall call;
  if (const auto status = gather(desc, x, y, c, d, call); status != CUBLAS_STATUS_SUCCESS) return status;
  if (!has_algorithm(call)) return CUBLAS_STATUS_NOT_SUPPORTED;
  Algorithm a;
  std::memcpy(&a, algo, sizeof a);
  REQUIRE(a.id != 0 && workspace_bytes >= a.workspace && (a.workspace == 0 || workspace));
  const void* const data[4] = {x_data, y_data, c_data, d_data};
  for (int i = 0; i < 4; ++i) REQUIRE(reinterpret_cast<std::uintptr_t>(data[i]) % a.alignment[i] == 0);
  const auto number = [&](const void* from) {
    return call.scale == CUDA_R_32I ? *static_cast<const std::int32_t*>(from) : double{*static_cast<const float*>(from)};
  };
  call.alpha = number(alpha);
  call.beta = number(beta);
  call.x_data = x_data;
  call.y_data = y_data;
  call.c_data = c_data;
  call.d_data = d_data;
  call.algorithm = a.tile;
  call.workspace = workspace;
  call.workspace_bytes = workspace_bytes;
  call.stream = stream;
  s.launches.push_back(call);
  const bool multiplies = s.multiplies;
  lock.unlock();
  if (multiplies) run(call);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t*, cublasComputeType_t, cudaDataType_t) {
  return CUBLAS_STATUS_NOT_SUPPORTED;
}
cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t) { return CUBLAS_STATUS_NOT_SUPPORTED; }
cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t*, cudaDataType_t, std::uint64_t, std::uint64_t, std::int64_t) {
  return CUBLAS_STATUS_NOT_SUPPORTED;
}
cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t) { return CUBLAS_STATUS_NOT_SUPPORTED; }
cublasStatus_t cublasLtMatmulAlgoCheck(cublasLtHandle_t, cublasLtMatmulDesc_t, cublasLtMatrixLayout_t, cublasLtMatrixLayout_t,
                                       cublasLtMatrixLayout_t, cublasLtMatrixLayout_t, const cublasLtMatmulAlgo_t*,
                                       cublasLtMatmulHeuristicResult_t*) {
  return CUBLAS_STATUS_NOT_SUPPORTED;
}

std::size_t version_now() { return static_cast<std::size_t>(g_lt.load()->table.version); }
const char* status_name(cublasStatus_t status) {
  switch (status) {
    case CUBLAS_STATUS_SUCCESS: return "CUBLAS_STATUS_SUCCESS";
    case CUBLAS_STATUS_ALLOC_FAILED: return "CUBLAS_STATUS_ALLOC_FAILED";
    case CUBLAS_STATUS_EXECUTION_FAILED: return "CUBLAS_STATUS_EXECUTION_FAILED";
    case CUBLAS_STATUS_INTERNAL_ERROR: return "CUBLAS_STATUS_INTERNAL_ERROR";
    case CUBLAS_STATUS_INVALID_VALUE: return "CUBLAS_STATUS_INVALID_VALUE";
    default: return "CUBLAS_STATUS_OTHER";
  }
}

std::unique_ptr<FakeCublasLt::State> make_state(int version) {
  auto state = std::make_unique<FakeCublasLt::State>();
#define VERGLAS_CUBLASLT_CALL(name, parameters) state->table.name = name;
#include "cuda/cublaslt_calls.def"
#undef VERGLAS_CUBLASLT_CALL
  state->table.cublasLtGetVersion = version_now;
  state->table.cublasLtGetStatusName = status_name;
  state->table.version = version;
  g_lt = state.get();
  return state;
}

}  // namespace

FakeCublasLt::FakeCublasLt(int version) : state_(make_state(version)), override_(&state_->table) {}
FakeCublasLt::~FakeCublasLt() {
  verglas::cublaslt::forget_libraries();
  g_lt = nullptr;
}

void FakeCublasLt::offer(std::vector<LtAlgorithm> algorithms) {
  const std::lock_guard lock(state_->mutex);
  state_->algorithms = std::move(algorithms);
}
void FakeCublasLt::refuse(std::function<bool(const LtCall&)> has_none) {
  const std::lock_guard lock(state_->mutex);
  state_->refuses = std::move(has_none);
}
void FakeCublasLt::multiply() {
  const std::lock_guard lock(state_->mutex);
  state_->multiplies = true;
}
std::vector<LtCall> FakeCublasLt::launches() const {
  const std::lock_guard lock(state_->mutex);
  return state_->launches;
}
std::vector<LtCall> FakeCublasLt::asked() const {
  const std::lock_guard lock(state_->mutex);
  return state_->asked;
}
int FakeCublasLt::count(std::string_view call) const {
  const std::lock_guard lock(state_->mutex);
  const auto it = state_->counts.find(call);
  return it == state_->counts.end() ? 0 : it->second;
}
void FakeCublasLt::clear() {
  const std::lock_guard lock(state_->mutex);
  state_->launches.clear();
  state_->asked.clear();
  state_->counts.clear();
}
int FakeCublasLt::live_handles() const { return state_->handles; }
int FakeCublasLt::live_preferences() const { return state_->preferences; }
void FakeCublasLt::fail_next(std::string_view call, cublasStatus_t status, int after) {
  const std::lock_guard lock(state_->mutex);
  state_->failures.push_back({std::string(call), status, after});
}
void FakeCublasLt::fail_call(int index, cublasStatus_t status) {
  const std::lock_guard lock(state_->mutex);
  state_->indexed = {index, status};
}
bool FakeCublasLt::failure_pending() const {
  const std::lock_guard lock(state_->mutex);
  return state_->indexed.has_value() || !state_->failures.empty();
}
void FakeCublasLt::clear_failures() {
  const std::lock_guard lock(state_->mutex);
  state_->indexed.reset();
  state_->failures.clear();
}

}  // namespace support
