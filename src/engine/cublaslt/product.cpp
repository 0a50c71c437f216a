#include "engine/cublaslt/product.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <utility>

namespace verglas::cublaslt {
namespace {

using chain::FusionChain;
using chain::ValueKind;

constexpr std::int64_t kPiece = 16;  ///< bytes: what the library's fastest kernels ask of addresses and strides

const chain::Operand& operand_of(const FusionChain& c, int role) {
  return c.operands[static_cast<std::size_t>(c.roles[static_cast<std::size_t>(role)].operand)];
}

/// Reads a chain from its product on, a node at a time; each may only come behind those before it in the library's order.
class Reader {
 public:
  explicit Reader(const FusionChain& c) : c_(c) {}

  Result<Product> run() {
    if (c_.grouping.axis != chain::GroupedAxis::none) return no("a grouped product");
    if (c_.gemms.size() != 1) return no(std::to_string(c_.gemms.size()) + " products");
    if (!c_.reductions.empty()) return no("a reduction");
    if (!c_.quantised.empty()) return no("a quantised output");
    if (std::ranges::any_of(c_.steps, [](const chain::Step& s) { return s.run >= 0; })) return no("runs of columns");
    if (c_.rope.rotated != 0) return no("a rotation of columns");
    for (const chain::MatrixInput& in : c_.inputs)
      if (in.scale_role >= 0 || !in.prologue.empty())
        return no(label_of(c_, c_.roles[static_cast<std::size_t>(in.role)]) + " is changed before the product");
    const chain::Gemm& g = c_.gemms.front();
    p_.a = c_.inputs[static_cast<std::size_t>(g.a)].role;
    p_.b = c_.inputs[static_cast<std::size_t>(g.b)].role;
    p_.accumulate = g.accumulate;
    p_.is_fast = g.is_fast;
    current_ = g.value;
    for (const chain::Step& s : c_.steps)
      if (std::string fault = take(s); !fault.empty()) return no("node '" + s.name + "': " + fault);
    if (std::string fault = take_stores(); !fault.empty()) return no(fault);
    return p_;
  }

 private:
  tl::unexpected<Decline> no(const std::string& what) const { return decline(Rule::cublaslt_chain, what); }
  const chain::Value& value(int i) const { return c_.values[static_cast<std::size_t>(i)]; }

  /// The operand of a step that is not the running value; −1 when it is not a step of two with one of each.
  int other_of(const chain::Step& s) const {
    if (s.input[2] >= 0 || s.input[1] < 0 || (s.input[0] == current_) == (s.input[1] == current_)) return -1;
    return s.input[0] == current_ ? s.input[1] : s.input[0];
  }

  /// Why the node has no place in the library's order; else it is taken.
  std::string take(const chain::Step& s) {
    if (value(current_).dtype != DataType::fp32)
      return "its operand is rounded to " + std::string(name_of(value(current_).dtype)) +
             " before, which the library does not do";
    if (s.compute != DataType::fp32) return "it computes in " + std::string(name_of(s.compute));
    std::string fault;
    switch (s.mode) {
      case PointwiseMode::identity: fault = s.input[0] == current_ ? "" : "it is not on the way from the product"; break;
      case PointwiseMode::mul: fault = take_factor(s); break;
      case PointwiseMode::add: fault = take_sum(s); break;
      case PointwiseMode::relu: fault = take_relu(s); break;
      case PointwiseMode::gelu_approx_tanh: fault = take_gelu(s); break;
      case PointwiseMode::gelu_approx_tanh_bwd: fault = take_gradient(s); break;
      default: return "the library has no " + std::string(name_of(s.mode));
    }
    current_ = s.value;
    return fault;
  }

  /// Nodes before have been taken in order, and this one's kind not yet.
  bool advance(int place) { return place > std::exchange(place_, std::max(place, place_)); }

  std::string take_factor(const chain::Step& s) {
    const int other = other_of(s);
    if (other < 0 || value(other).dtype != DataType::fp32) return "the library multiplies by one fp32 number";
    if (!advance(1)) return "the library multiplies the bare product only";
    const chain::Value& v = value(other);
    if (v.kind == ValueKind::constant) {
      p_.alpha = static_cast<float>(v.constant);
      return {};
    }
    if (v.kind != ValueKind::aux || c_.roles[static_cast<std::size_t>(v.source)].kind != chain::RoleKind::host_scalar)
      return "the library multiplies by a constant, or by a number that is passed by value";
    p_.alpha_role = v.source;
    return {};
  }

  std::string take_sum(const chain::Step& s) {
    const int other = other_of(s);
    if (other < 0 || value(other).kind != ValueKind::aux) return "the library adds an operand";
    const chain::Value& v = value(other);
    if (v.varies[1] && v.varies[2]) {
      if (!advance(2)) return "the library adds one matrix, before a row or column";
      p_.c = v.source;
      return {};
    }
    if (v.varies[1] == v.varies[2]) return "the library adds a matrix, a row or a column";
    if (!advance(3)) return "the library adds one row or column, before an activation";
    p_.bias = v.source;
    p_.bias_type = v.dtype;
    bias_along_n_ = v.varies[2];
    return {};
  }

  std::string take_relu(const chain::Step& s) {
    const PointwiseParameters& q = s.parameters;
    if (s.input[0] != current_ || q.upper_clip || q.negative_slope || q.lower_clip.value_or(0.0F) != 0.0F)
      return "the library has relu without clips and slope";
    if (!advance(4)) return "the library has one activation";
    p_.activation = Activation::relu;
    return {};
  }

  std::string take_gelu(const chain::Step& s) {
    if (s.input[0] != current_ || !advance(4)) return "the library has one activation";
    p_.activation = Activation::gelu;
    before_activation_ = current_;
    return {};
  }

  std::string take_gradient(const chain::Step& s) {
    if (s.input[0] != current_ || s.input[1] < 0 || value(s.input[1]).kind != ValueKind::aux ||
        !(value(s.input[1]).varies[1] && value(s.input[1]).varies[2]))
      return "the library takes the product as loss and a matrix as the argument of gelu";
    if (place_ > 1 || !advance(4)) return "the library has the gradient of gelu on the bare product";
    p_.activation = Activation::gelu_gradient;
    p_.aux = value(s.input[1]).source;
    p_.aux_type = value(s.input[1]).dtype;
    return {};
  }

  std::string take_stores() {
    bool is_stored = false;
    for (const chain::Store& s : c_.stores) {
      if (s.value == current_ && !is_stored) {
        p_.d = s.role;
        is_stored = true;
      } else if (s.value == before_activation_ && p_.activation == Activation::gelu && p_.aux < 0) {
        p_.aux = s.role;
        p_.aux_type = value(s.value).dtype;
      } else {
        return "output '" + operand_of(c_, s.role).name + "' is neither the last value nor the argument of gelu";
      }
    }
    if (!is_stored) return "the last value is not stored";
    p_.a_type = operand_of(c_, p_.a).dtype;
    p_.b_type = operand_of(c_, p_.b).dtype;
    p_.d_type = operand_of(c_, p_.d).dtype;
    return {};
  }

  const FusionChain& c_;
  Product p_;
  int current_ = -1, before_activation_ = -1;
  int place_ = 0;  ///< of the last node taken: 1 factor, 2 matrix, 3 row or column, 4 activation

 public:
  bool bias_along_n_ = true;
};

bool is_fp8_input(DataType t) { return t == DataType::fp8_e4m3 || t == DataType::fp8_e5m2; }
bool is_half(DataType t) { return t == DataType::bf16 || t == DataType::fp16; }

/// Why the library does not compute this as docs/numerics.md asks, or empty.
std::string type_fault(const FusionChain& c, const Product& p) {
  const std::string types = std::string(name_of(p.a_type)) + " · " + std::string(name_of(p.b_type)) + " → " +
                            std::string(name_of(p.d_type)) + " in " + std::string(name_of(p.accumulate));
  const bool same = p.a_type == p.b_type;
  bool served = false;
  if (is_half(p.a_type))
    served = same && p.accumulate == DataType::fp32 && (p.d_type == p.a_type || p.d_type == DataType::fp32);
  else if (p.a_type == DataType::fp32)
    served = same && !p.is_integer() && p.d_type == DataType::fp32;
  else if (p.a_type == DataType::int8)
    served = same && p.is_integer() && p.d_type == DataType::int32;
  else if (is_fp8_input(p.a_type) && is_fp8_input(p.b_type))  // not both e5m2
    served = (p.a_type == DataType::fp8_e4m3 || p.b_type == DataType::fp8_e4m3) && p.accumulate == DataType::fp32 &&
             (is_half(p.d_type) || p.d_type == DataType::fp32);
  if (!served) return types;
  if (p.c >= 0 && operand_of(c, p.c).dtype != p.d_type)
    return "a matrix of " + std::string(name_of(operand_of(c, p.c).dtype)) + " is added to " + std::string(name_of(p.d_type));
  // The library's rule, and the reason why gelu's argument is stored beside fp32 only: what it stores it has not rounded before.
  for (const auto& [role, type] : {std::pair{p.bias, p.bias_type}, {p.aux, p.aux_type}})
    if (role >= 0 && type != p.d_type)
      return label_of(c, c.roles[static_cast<std::size_t>(role)]) + " is " + std::string(name_of(type)) + " and D " +
             std::string(name_of(p.d_type));
  return {};
}

/// Contiguous along canonical axis `axis`; an axis of extent 1 is what it needs to be.
bool is_contiguous(const recipe::RoleView& v, int axis) { return v.stride[axis] == 1 || v.extent[axis] == 1; }
bool clears(const recipe::RoleView& v, int axis) { return v.extent[3 - axis] <= 1 || v.stride[3 - axis] >= v.extent[axis]; }

/// Settles majors from the declared layouts; why the library cannot read or write one, or empty.
std::string settle_layouts(const FusionChain& c, bool bias_along_n, Product& p) {
  if (std::find(c.declared.begin(), c.declared.end(), 0) != c.declared.end()) return "an extent of 0";
  const auto views = recipe::declared_views(c);
  const auto view = [&](int role) -> const recipe::RoleView& { return views[static_cast<std::size_t>(role)]; };
  const auto label = [&](int role) { return label_of(c, c.roles[static_cast<std::size_t>(role)]); };
  for (const auto& [role, k_major] : {std::pair{p.a, &p.a_k_major}, {p.b, &p.b_k_major}, {p.d, &p.is_transposed}}) {
    if (!is_contiguous(view(role), 1) && !is_contiguous(view(role), 2)) return label(role) + " has no contiguous axis";
    *k_major = is_contiguous(view(role), 2);
    if (!clears(view(role), *k_major ? 2 : 1)) return label(role) + " has lines that overlap";
  }
  if (is_fp8_input(p.a_type) && !(p.a_k_major && p.b_k_major)) return "fp8 that is not contiguous along K";
  const int axis = p.is_transposed ? 2 : 1;
  for (const int role : {p.c, p.aux})
    if (role >= 0 && (!is_contiguous(view(role), axis) || !clears(view(role), axis)))
      return label(role) + " does not lie as D does";
  if (p.bias >= 0 && (bias_along_n != p.is_transposed || !is_contiguous(view(p.bias), axis)))
    return label(p.bias) + " is not contiguous along the axis along which D is";
  // Kernels for aligned matrices read it in whole pieces, and fault elsewhere (seen on an H200).
  if (p.bias >= 0 && view(p.bias).extent[0] > 1 && view(p.bias).stride[0] * bytes_of(p.bias_type) % kPiece != 0)
    return label(p.bias) + " begins in the middle of 16 bytes in some batch";
  return {};
}

/// Lines along the contiguous axis. The stride between lines means nothing where there is one.
Lines lines_of(const recipe::RoleView& v, bool k_major, int bytes) noexcept {
  const int along = k_major ? 2 : 1, beside = 3 - along;
  const std::int64_t piece = kPiece / bytes, rows = v.extent[along];
  return {.rows = rows,
          .cols = v.extent[beside],
          .ld = v.extent[beside] > 1 ? v.stride[beside] : (std::max<std::int64_t>(rows, 1) + piece - 1) / piece * piece,
          .batch_stride = v.extent[0] > 1 ? v.stride[0] : 0};
}

int alignment_of(const Lines& l, int bytes) noexcept {
  const auto bits = static_cast<std::uint64_t>((l.ld | l.batch_stride) * bytes) | static_cast<std::uint64_t>(kPiece);
  return 1 << std::countr_zero(bits);
}

}  // namespace

Result<Product> product_of(const FusionChain& c) {
  Reader reader(c);
  Result<Product> read = reader.run();
  if (!read) return read;
  if (std::string fault = type_fault(c, *read); !fault.empty()) return decline(Rule::cublaslt_types, std::move(fault));
  if (std::string fault = settle_layouts(c, reader.bias_along_n_, *read); !fault.empty())
    return decline(Rule::cublaslt_layout, std::move(fault));
  return read;
}

Geometry geometry_of(const Product& p, const recipe::RoleView* views) noexcept {
  Geometry g;
  g.batches = views[p.d].extent[0];
  g.x = lines_of(views[p.x()], p.x_k_major(), bytes_of(p.a_type));
  g.y = lines_of(views[p.y()], p.y_k_major(), bytes_of(p.a_type));
  g.d = lines_of(views[p.d], p.is_transposed, bytes_of(p.d_type));
  g.c = p.c >= 0 ? lines_of(views[p.c], p.is_transposed, bytes_of(p.d_type)) : g.d;
  const auto batch_stride = [&](int role) { return views[role].extent[0] > 1 ? views[role].stride[0] : 0; };
  if (p.bias >= 0) g.bias_stride = batch_stride(p.bias);
  if (p.aux >= 0) {
    const Lines l = lines_of(views[p.aux], p.is_transposed, bytes_of(p.aux_type));
    g.aux_ld = l.ld;
    g.aux_stride = l.batch_stride;
  }
  return g;
}

Alignments alignments_of(const Product& p, const Geometry& g) noexcept {
  const int in = bytes_of(p.a_type), out = bytes_of(p.d_type);
  return {alignment_of(g.x, in), alignment_of(g.y, in), alignment_of(g.c, out), alignment_of(g.d, out)};
}

recipe::Requirements requirements_of(const FusionChain& c, const Product& p, Device device) {
  recipe::Requirements q;
  q.device = device;
  q.inner = true;
  const auto views = recipe::declared_views(c);
  const Geometry g = geometry_of(p, views.data());
  const Alignments at = alignments_of(p, g);
  const auto matrix = [](bool k_major, int modulus, int alignment) {
    return recipe::Requirements::Matrix{.k_major = k_major,
                                        .modulus = modulus,
                                        .stride_multiple = alignment,
                                        .stride_limit = false,
                                        .alignment = alignment,
                                        .pitch = true};
  };
  // What the library takes of these types, asked on an H200.
  const bool along_k = p.a_k_major && p.b_k_major, is_fp8 = is_fp8_input(p.a_type);
  const int modulus = p.is_integer() ? 4 : is_fp8 ? 16 : 1;
  const int result_modulus = is_fp8 ? static_cast<int>(kPiece) / bytes_of(p.d_type) : p.is_integer() && !along_k ? 4 : 1;
  q.matrix.emplace_back(p.x(), matrix(p.x_k_major(), modulus, at.x));
  q.matrix.emplace_back(p.y(), matrix(p.y_k_major(), modulus, at.y));
  q.matrix.emplace_back(p.d, matrix(p.is_transposed, result_modulus, at.d));
  if (p.c >= 0) q.aux.emplace_back(p.c, matrix(p.is_transposed, 1, at.c));
  if (p.bias >= 0) {
    recipe::Requirements::Matrix along = matrix(p.is_transposed, 1, static_cast<int>(kPiece));
    along.pitch = false;
    q.aux.emplace_back(p.bias, along);
  }
  if (p.aux >= 0) {
    const int alignment =
        alignment_of({.rows = 0, .cols = 0, .ld = g.aux_ld, .batch_stride = g.aux_stride}, bytes_of(p.aux_type));
    (p.activation == Activation::gelu ? q.matrix : q.aux).emplace_back(p.aux, matrix(p.is_transposed, 1, alignment));
  }
  return q;
}

cuda::cudaDataType_t type_of(DataType t) noexcept {
  switch (t) {
    case DataType::fp16: return cuda::CUDA_R_16F;
    case DataType::bf16: return cuda::CUDA_R_16BF;
    case DataType::int8: return cuda::CUDA_R_8I;
    case DataType::int32: return cuda::CUDA_R_32I;
    case DataType::fp8_e4m3: return cuda::CUDA_R_8F_E4M3;
    case DataType::fp8_e5m2: return cuda::CUDA_R_8F_E5M2;
    default: return cuda::CUDA_R_32F;
  }
}

cuda::cublasComputeType_t compute_of(const Product& p) noexcept {
  if (p.is_integer()) return cuda::CUBLAS_COMPUTE_32I;
  return p.accumulate == DataType::tf32 ? cuda::CUBLAS_COMPUTE_32F_FAST_TF32 : cuda::CUBLAS_COMPUTE_32F;
}

cuda::cudaDataType_t scale_type_of(const Product& p) noexcept { return p.is_integer() ? cuda::CUDA_R_32I : cuda::CUDA_R_32F; }

cuda::cublasLtEpilogue_t epilogue_of(const Product& p) noexcept {
  const bool biased = p.bias >= 0;
  switch (p.activation) {
    case Activation::none: return biased ? cuda::CUBLASLT_EPILOGUE_BIAS : cuda::CUBLASLT_EPILOGUE_DEFAULT;
    case Activation::relu: return biased ? cuda::CUBLASLT_EPILOGUE_RELU_BIAS : cuda::CUBLASLT_EPILOGUE_RELU;
    case Activation::gelu:
      if (p.aux >= 0) return biased ? cuda::CUBLASLT_EPILOGUE_GELU_AUX_BIAS : cuda::CUBLASLT_EPILOGUE_GELU_AUX;
      return biased ? cuda::CUBLASLT_EPILOGUE_GELU_BIAS : cuda::CUBLASLT_EPILOGUE_GELU;
    case Activation::gelu_gradient: return cuda::CUBLASLT_EPILOGUE_DGELU;
  }
  return cuda::CUBLASLT_EPILOGUE_DEFAULT;
}

}  // namespace verglas::cublaslt
