#include "engine/sm90/launcher.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <new>

#include "cuda/context.hpp"
#include "cuda/host_words.hpp"
#include "cuda/plan_context.hpp"
#include "engine/sm90/exchange.hpp"
#include "engine/sm90/problem.hpp"
#include "engine/sm90/prologue.hpp"
#include "engine/sm90/runs.hpp"
#include "engine/sm90/scratch.hpp"

namespace verglas::sm90 {
namespace {

using recipe::RoleView;

constexpr std::size_t kMostStaged = 1 + StagedRoles::kMaxFurther, kMostLoaded = 5 + kMostStaged + 1;
/// Of the epilogue of any chain, rounded up to the alignment of the kernel's parameter.
constexpr std::size_t kMostArgumentBytes = 64 * chain::kMaxRoles + kMostStaged * kMapBytes;

bool same_layout(const RoleView& x, const RoleView& y) noexcept {
  std::int64_t differs = 0;
  for (int i = 0; i < 3; ++i) differs |= (x.extent[i] ^ y.extent[i]) | (x.stride[i] ^ y.stride[i]);
  return differs == 0;
}

/// The kernel's parameter as the last call of one layout left it. The next one changes what is new for it: mostly a few
/// addresses, often nothing. Whoever finds it taken goes to another, and builds one of his own when all are: nobody waits.
struct alignas(64) Slot {
  std::byte memory[sizeof(ParameterBlock) + kMostArgumentBytes];
  void* addresses[kMostLoaded];  ///< of a…, b…, d and what is staged like it: what the maps were made of
  RoleView views[kMostLoaded];   ///< and how they lie
  ScratchNeed need;              ///< follows from the extents, without groups
  bool is_whole = false;         ///< views and maps belong together
  bool is_declared = false;      ///< they lie as declared
  bool has_arguments = false;    ///< the epilogue's arguments are those of a call whose operands all lie as declared
  std::atomic<bool> is_taken{false};
};
constexpr std::size_t kSlots = 4;
constexpr int kWidths[] = {128, 64, 32};  ///< of boxes of D

/// Where a call of these extents, by Symbol, looks first. Those of groups are not filled in: there are none here.
std::size_t slot_of(const std::int64_t (&live)[recipe::kSymbols]) noexcept {
  std::uint64_t hash = 0;
  for (std::size_t i = 0; i < 5; ++i) hash = (hash ^ static_cast<std::uint64_t>(live[i])) * 0x9e3779b97f4a7c15;
  return hash >> 62;
}

class Sm90Launcher final : public recipe::Launcher {
 public:
  Sm90Launcher(chain::FusionChain chain, bool is_exchanged, const KernelConfig& config, EpiloguePlan epilogue,
               std::shared_ptr<const jit::LoadedKernel> kernel, Device device, int sm_count)
      : chain_(std::move(chain)),
        is_exchanged_(is_exchanged),
        config_(config),
        epilogue_(std::move(epilogue)),
        kernel_(std::move(kernel)),
        driver_(kernel_->driver()),
        device_(device),
        sm_count_(sm_count),
        raster_group_(raster_group(config, sm_count)),
        context_(driver_, (kernel_->prepare(device.id), kernel_->context(device.id))),
        roles_(product_roles(chain_)) {
    function_ = kernel_->function(device.id);
    if (config_.groups > 0) {
      const cuda::CurrentContext here(driver_, context_.handle());
      faults_ = std::make_unique<cuda::HostWords>(driver_, context_.handle());
    }
    if (!epilogue_.reductions.empty() || map_bytes(config_) > 0 || config_.claims || meets(config_))
      scratch_ = std::make_unique<ScratchPool>(driver_, context_.handle());
    for (int i = 0; i < roles_.a_count; ++i) loaded_[loaded_count_++] = roles_.a[static_cast<std::size_t>(i)];
    for (int i = 0; i < roles_.b_count; ++i) loaded_[loaded_count_++] = roles_.b[static_cast<std::size_t>(i)];
    if (roles_.d >= 0) loaded_[loaded_count_++] = roles_.d;
    for (const StagedRole& s : epilogue_.maps) loaded_[loaded_count_++] = s.role;
    if (const int lists = std::max(roles_.row_list, roles_.scores); lists >= 0) loaded_[loaded_count_++] = lists;
    if (meets(config_)) {
      attribute_.id = cuda::CU_LAUNCH_ATTRIBUTE_COOPERATIVE;
      attribute_.value.cooperative = 1;
    } else {
      attribute_.id = cuda::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION;
      attribute_.value.programmaticStreamSerializationAllowed = 1;
    }
    launch_.gridDimY = launch_.gridDimZ = 1;
    launch_.blockDimX = static_cast<unsigned>(threads_of(config));
    launch_.blockDimY = launch_.blockDimZ = 1;
    launch_.sharedMemBytes = static_cast<unsigned>(smem_bytes(config));
    launch_.attrs = &attribute_;
    launch_.numAttrs = config_.programmatic || meets(config_) ? 1U : 0U;
    for (const int width : kWidths) widths_ |= stores_width(config_, width) ? width : 0;
    constexpr std::size_t kMap = sizeof(cuda::CUtensorMap);
    const auto moves = [&](bool used, std::size_t offset, int loaded) {
      if (used) moving_[moving_count_++] = {static_cast<std::uint16_t>(offset), static_cast<std::uint16_t>(loaded)};
    };
    for (int i = 0; i < roles_.a_count; ++i) moves(config_.a_path == Path::tma, static_cast<std::size_t>(i) * kMap, i);
    moves(config_.tail_rows != 0, kMap, 0);
    for (int i = 0; i < roles_.b_count; ++i)
      moves(config_.b_path == Path::tma && config_.addressed == 0, static_cast<std::size_t>(2 + i) * kMap, roles_.a_count + i);
    const int d = roles_.a_count + roles_.b_count;
    const int staged = roles_.d >= 0 ? d + 1 : d;
    for (std::size_t i = 0; i < 3; ++i) {
      moves(stores_width(config_, kWidths[i]), (4 + i) * kMap, d);
      for (std::size_t j = 0; j < epilogue_.maps.size(); ++j)
        moves(has_map(epilogue_.maps[j], kWidths[i]), kEpilogueOffset + j * kMapBytes + i * kMap, staged + static_cast<int>(j));
    }
    // What is declared is ready for the first call. It may be extents that nothing is launched for.
    const std::vector<RoleView> declared = declared_views(chain_);
    const auto& e = chain_.declared;
    if (e[0] == 0 || e[1] == 0 || e[2] == 0) return;
    const cuda::CurrentContext here(driver_, context_.handle());  // hazard: maps cannot be encoded without a context
    const std::int64_t live[recipe::kSymbols] = {1, e[0], e[1], e[2], e[3]};
    Slot& slot = slots_[slot_of(live)];
    static_cast<void>(bring_up_to_date(slot, declared.data(), live, false));
    if (!slot.is_whole) return;
    begins_with_address_ = std::all_of(moving_, moving_ + moving_count_,
                                       [&](const Moving& m) { return begins_with_address(slot.memory + m.offset); });
  }

  Status launch(const recipe::Binding& b, const recipe::Call& call) const noexcept override {
    if (!writes_something(b)) return {};
    if (context_.is_of_parent()) return failed(cuda::CUDA_ERROR_NOT_INITIALIZED);
    if (b.is_ready) [[likely]]
      return turn_and_enqueue(b, call);
    if (const cuda::CUresult code = context_.borrow(); code != cuda::CUDA_SUCCESS) return failed(code);
    const Status status = turn_and_enqueue(b, call);
    context_.give_back();
    return status;
  }

  std::uint32_t data_faults() const noexcept override { return faults_ ? faults_->bits() : 0; }
  std::uint32_t take_data_faults() const noexcept override { return faults_ ? faults_->take() : 0; }

  Device current_device(Device plan, bool& is_ready) const noexcept override { return context_.current_device(plan, is_ready); }

  Error failure(Status status) const override {
    if (context_.is_of_parent())
      return {ErrorCode::driver_failed, info_of(Rule::driver_call).id,
              "kernel " + kernel_->name() +
                  " belongs to the process before fork(): a child makes plans of its own, and cannot where "
                  "its parent has used the driver"};
    return cuda::driver_error(driver_, static_cast<cuda::CUresult>(status.driver), "cuLaunchKernelEx",
                              "launching " + kernel_->name() + " on device " + std::to_string(device_.id));
  }

 private:
  Status turn_and_enqueue(const recipe::Binding& b, const recipe::Call& call) const noexcept {
    if (!is_exchanged_) return prepare_and_enqueue(b, call);
    recipe::Binding turned;
    exchange(chain_, b, turned);
    return prepare_and_enqueue(turned, call);
  }

  Status prepare_and_enqueue(const recipe::Binding& b, const recipe::Call& call) const noexcept {
    const std::size_t first = slot_of(b.live);
    for (std::size_t i = 0; i < kSlots; ++i) {
      Slot& slot = slots_[first ^ i];
      if (slot.is_taken.exchange(true, std::memory_order_acquire)) continue;
      cuda::CUresult code = bring_up_to_date(slot, b.role, b.live, b.is_declared);
      if (code == cuda::CUDA_SUCCESS)
        code = enqueue(slot.memory, config_.groups > 0 ? need_for(b.live) : slot.need, b, call.stream,
                       b.is_declared && slot.has_arguments);
      slot.has_arguments = b.is_declared && code == cuda::CUDA_SUCCESS;
      slot.is_taken.store(false, std::memory_order_release);
      return code == cuda::CUDA_SUCCESS ? Status{} : failed(code);
    }
    // As many threads as slots are in here already.
    alignas(64) std::byte memory[sizeof(ParameterBlock) + kMostArgumentBytes];
    cuda::CUresult code = build(memory, b.role);
    if (code == cuda::CUDA_SUCCESS) code = enqueue(memory, need_for(b.live), b, call.stream, false);
    return code == cuda::CUDA_SUCCESS ? Status{} : failed(code);
  }

  static ParameterBlock& block_in(std::byte* memory) noexcept { return *std::launder(reinterpret_cast<ParameterBlock*>(memory)); }

  /// The block of a taken slot becomes that of these views: whole where their layout is another, else where an address is.
  cuda::CUresult bring_up_to_date(Slot& slot, const RoleView* views, const std::int64_t (&live)[recipe::kSymbols],
                                  bool is_declared) const noexcept {
    bool is_same = slot.is_whole;
    if (!(is_declared && slot.is_declared))
      for (int i = 0; is_same && i < loaded_count_; ++i) is_same = same_layout(views[loaded_[i]], slot.views[i]);
    slot.is_whole = false;
    if (is_same) {
      if (const cuda::CUresult code = readdress(block_in(slot.memory), slot, views); code != cuda::CUDA_SUCCESS) return code;
      slot.is_declared |= is_declared;
    } else {
      slot.has_arguments = false;
      if (const cuda::CUresult code = build(slot.memory, views); code != cuda::CUDA_SUCCESS) return code;
      slot.need = need_for(live);
      const ParameterBlock& block = block_in(slot.memory);
      if (block.k == 0 || block.tiles == 0) return cuda::CUDA_SUCCESS;  // its maps are not those of its operands
      for (int i = 0; i < loaded_count_; ++i) slot.views[i] = views[loaded_[i]];
      slot.is_declared = is_declared;
    }
    for (int i = 0; i < loaded_count_; ++i) slot.addresses[i] = views[loaded_[i]].data;
    slot.is_whole = true;
    return cuda::CUDA_SUCCESS;
  }

  bool writes_something(const recipe::Binding& b) const noexcept {
    if (roles_.d >= 0 && b.role[roles_.d].reach != 0) return true;
    for (const chain::Reduction& r : epilogue_.reductions)
      if (b.role[r.role].reach != 0) return true;
    for (const int role : epilogue_.run_outputs)
      if (b.role[role].reach != 0) return true;
    for (const chain::Quantise& q : chain_.quantised)
      if (b.role[q.role].reach != 0) return true;
    return false;
  }

  /// Whether an output or operand beside D is moved in boxes of so many bytes a row.
  bool has_map(const StagedRole& s, int width) const noexcept {
    return config_.run_bytes > 0 ? width == s.width : (widths_ & width) != 0;
  }

  static Status failed(cuda::CUresult code) noexcept { return {ErrorCode::driver_failed, -1, static_cast<std::int32_t>(code)}; }

  cuda::CUresult encode(cuda::CUtensorMap& map, const MapRequest& r) const noexcept {
    constexpr std::uint32_t kOnes[3] = {1, 1, 1};
    return driver_.cuTensorMapEncodeTiled(&map, r.type, 3, reinterpret_cast<void*>(r.address), r.extents.data(), r.strides.data(),
                                          r.box.data(), kOnes, cuda::CU_TENSOR_MAP_INTERLEAVE_NONE, r.swizzle,
                                          cuda::CU_TENSOR_MAP_L2_PROMOTION_L2_256B, cuda::CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  }

  /// The whole block for these views. With K = 0 no operand is read: the maps describe one column of memory that is there, since
  /// the copy engine looks its base up even when all of a box lies outside (measured).
  cuda::CUresult build(std::byte* memory, const RoleView* views) const noexcept {
    Problem p = problem_of(roles_, views, input_bytes(config_), bytes_of(config_.output));
    ParameterBlock& block = *new (memory) ParameterBlock(make_block(config_, p, raster_group_));
    if (block.tiles == 0) return cuda::CUDA_SUCCESS;  // reductions of nothing: no operand is looked at
    const int output = roles_.d >= 0                    ? roles_.d
                       : !epilogue_.run_outputs.empty() ? epilogue_.run_outputs[0]
                       : !epilogue_.reductions.empty()  ? epilogue_.reductions[0].role
                                                        : chain_.quantised[0].role;
    const auto anywhere = reinterpret_cast<std::uint64_t>(views[output].data) & ~std::uint64_t{15};
    if (roles_.has_experts && (config_.addressed != 0 || views[roles_.b[0]].extent[0] == 0))
      for (Matrix& b : p.b) b.address = anywhere;  // blocks put addresses in; without experts nothing goes by it
    if (config_.combines && p.tokens == 0) {
      p.tokens = 1;
      p.a.fill(Matrix{anywhere, 64, 1, 64});
    }
    if (p.k == 0) {
      p.k = 1;
      p.a.fill(config_.a_major == Major::k ? Matrix{anywhere, 64, 1, 64} : Matrix{anywhere, 1, 64, 64});
      p.b.fill(config_.b_major == Major::k ? Matrix{anywhere, 64, 1, 64} : Matrix{anywhere, 1, 64, 64});
    }
    cuda::CUresult code = cuda::CUDA_SUCCESS;
    const auto put = [&](cuda::CUtensorMap& map, const MapRequest& r) {
      if (code == cuda::CUDA_SUCCESS) code = encode(map, r);
    };
    for (std::size_t i = 0; config_.a_path == Path::tma && i < static_cast<std::size_t>(roles_.a_count); ++i)
      put(block.a[i], map_of_a(config_, p, i));
    if (config_.tail_rows != 0) put(block.a[1], map_of_tail(config_, p));
    for (std::size_t i = 0; config_.b_path == Path::tma && i < static_cast<std::size_t>(roles_.b_count); ++i)
      put(block.b[i], map_of_b(config_, p, i));
    cuda::CUtensorMap* const maps[] = {&block.d, &block.d_half, &block.d_quarter};
    for (std::size_t i = 0; i < 3; ++i)
      if ((widths_ & kWidths[i]) != 0) put(*maps[i], map_of_d(config_, p, kWidths[i]));
    std::byte* to = memory + kEpilogueOffset;
    for (const StagedRole& s : epilogue_.maps) {
      const RoleView& v = views[s.role];
      const Matrix x = matrix_of(v, bytes_of(s.type));
      const bool runs = config_.run_bytes > 0;
      for (const int width : kWidths) {
        if (has_map(s, width))
          put(*new (to) cuda::CUtensorMap,
              map_of_chunks(x, s.type, s.along_m, s.is_output, p.m, runs ? v.extent[2] : p.n, p.batches, width / s.shrink));
        to += sizeof(cuda::CUtensorMap);
      }
    }
    return code;
  }

  /// True where this driver's map is an address and, behind it, bytes that no bit of the address has a part in. What is in a map
  /// is the driver's own affair, so it is asked, for two addresses that differ in every bit that an address can have.
  bool begins_with_address(const std::byte* map) const noexcept {
    for (const std::uint64_t address : {std::uint64_t{0x5555'5555'5550}, std::uint64_t{0x2aaa'aaaa'aaa0}}) {
      cuda::CUtensorMap moved;
      std::memcpy(&moved, map, sizeof moved);
      if (driver_.cuTensorMapReplaceAddress(&moved, reinterpret_cast<void*>(address)) != cuda::CUDA_SUCCESS) return false;
      std::byte want[sizeof moved];
      std::memcpy(want, map, sizeof want);
      std::memcpy(want, &address, sizeof address);
      if (std::memcmp(&moved, want, sizeof want) != 0) return false;
    }
    return true;
  }

  /// Layouts are the same; addresses may be new.
  cuda::CUresult readdress(ParameterBlock& block, Slot& slot, const RoleView* views) const noexcept {
    for (int i = 0; i < moving_count_; ++i) {
      void* const address = views[loaded_[moving_[i].loaded]].data;
      if (address == slot.addresses[moving_[i].loaded]) continue;
      if (begins_with_address_) {
        std::memcpy(slot.memory + moving_[i].offset, &address, sizeof address);
        continue;
      }
      auto* const map = std::launder(reinterpret_cast<cuda::CUtensorMap*>(slot.memory + moving_[i].offset));
      if (const auto code = driver_.cuTensorMapReplaceAddress(map, address); code != cuda::CUDA_SUCCESS) return code;
    }
    const auto address = [views](int role) { return reinterpret_cast<std::uint64_t>(views[role].data); };
    for (std::size_t i = 0; i < 2; ++i) {
      block.a_view[i].address = address(roles_.a[i]);
      block.b_view[i].address = address(roles_.b[i]);
    }
    if (roles_.d >= 0) block.d_view.address = address(roles_.d);
    return cuda::CUDA_SUCCESS;
  }

  ScratchNeed need_for(const std::int64_t (&live)[recipe::kSymbols]) const noexcept {
    return scratch_ ? scratch_need(config_, epilogue_.reductions, live, chain_.grouping.top_k, sm_count_) : ScratchNeed{};
  }

  /// Where the offsets lie, and how many there are.
  void put_groups(ParameterBlock& block, const recipe::Binding& b) const noexcept {
    const RoleView& offsets = b.role[chain_.grouping.offset_role];
    block.offsets = reinterpret_cast<std::uint64_t>(offsets.data);
    block.offset_stride = offsets.extent[0] > 1 ? offsets.stride[0] : 0;
    block.faults = faults_->address();
    block.groups = static_cast<std::int32_t>(b.live[static_cast<std::size_t>(chain::Symbol::g)]);
    const auto list = [&](int role, std::uint64_t& address, std::int64_t& stride) {
      const RoleView& v = b.role[role];
      address = reinterpret_cast<std::uint64_t>(v.data);
      stride = v.extent[1] > 1 ? v.stride[1] : v.extent[0] > 1 ? v.stride[0] : 0;
    };
    const bool has_slots = config_.scatters || config_.combines;
    if (config_.gathers || has_slots) list(chain_.grouping.index_role, block.indices, block.index_stride);
    if (has_slots) list(chain_.grouping.slot_role, block.slots, block.slot_stride);
    block.top_k = static_cast<std::int32_t>(chain_.grouping.top_k);
    block.tokens =
        config_.scatters ? block.m / block.top_k : static_cast<std::int32_t>(b.live[static_cast<std::size_t>(chain::Symbol::t)]);
    block.experts = static_cast<std::int32_t>(b.live[static_cast<std::size_t>(chain::Symbol::e)]);
  }

  /// Puts the epilogue's arguments behind the block, or of them only what can be new, and launches from there.
  cuda::CUresult enqueue(std::byte* memory, const ScratchNeed& need, const recipe::Binding& b, Stream stream,
                         bool has_arguments) const noexcept {
    if (config_.groups > 0) put_groups(block_in(memory), b);
    cuda::CUlaunchConfig launch = launch_;
    launch.gridDimX = grid_of(config_, block_in(memory), sm_count_);
    launch.hStream = static_cast<cuda::CUstream>(stream.handle);
    Scratch scratch;
    if (scratch_)
      if (const cuda::CUresult code = scratch_->find(launch.hStream, need, scratch); code != cuda::CUDA_SUCCESS) return code;
    if (config_.addressed != 0) block_in(memory).maps = scratch.plain;
    if (config_.combines) block_in(memory).products = scratch.plain + need.products;
    if (config_.claims || meets(config_)) block_in(memory).claimed = scratch.zeroed;
    if (has_arguments)
      write_addresses(epilogue_, chain_, b, need, scratch, memory + kEpilogueOffset);
    else
      write_arguments(epilogue_, chain_, b, need, scratch, memory + kEpilogueOffset);
    void* parameters[] = {memory};
    return driver_.cuLaunchKernelEx(&launch, function_, parameters, nullptr);
  }

  chain::FusionChain chain_;  ///< as the kernel sees it
  bool is_exchanged_;
  KernelConfig config_;
  EpiloguePlan epilogue_;
  std::shared_ptr<const jit::LoadedKernel> kernel_;
  const cuda::DriverTable& driver_;
  Device device_;
  int sm_count_;
  int raster_group_;
  cuda::PlanContext context_;
  ProductRoles roles_;
  std::unique_ptr<ScratchPool> scratch_;
  int loaded_[kMostLoaded]{};  ///< roles of a…, b…, d and what is staged like it, and of what else says how many rows there are
  int loaded_count_ = 0;
  cuda::CUfunction function_ = nullptr;
  cuda::CUlaunchAttribute attribute_{};
  cuda::CUlaunchConfig launch_{};  ///< all but grid and stream
  struct Moving {
    std::uint16_t offset = 0, loaded = 0;  ///< of the map in the block
  };
  int widths_ = 0;                      ///< of kWidths, powers of two, those in which D is moved
  Moving moving_[7 + 3 * kMostStaged];  ///< maps that follow an operand's address
  int moving_count_ = 0;
  std::unique_ptr<cuda::HostWords> faults_;
  bool begins_with_address_ = false;  ///< maps do: then the driver need not be called for a new one
  mutable Slot slots_[kSlots];
};

}  // namespace

std::unique_ptr<recipe::Launcher> make_launcher(chain::FusionChain chain, bool is_exchanged, const KernelConfig& config,
                                                EpiloguePlan epilogue, std::shared_ptr<const jit::LoadedKernel> kernel,
                                                Device device, int sm_count) {
  return std::make_unique<Sm90Launcher>(std::move(chain), is_exchanged, config, std::move(epilogue), std::move(kernel), device,
                                        sm_count);
}

recipe::Requirements requirements_of(const chain::FusionChain& chain, bool is_exchanged, const KernelConfig& config,
                                     std::span<const StagedRole> maps, Device device) {
  recipe::Requirements q;
  q.device = device;
  q.tiles = {config.block_m, config.block_n};
  if (is_exchanged) std::swap(q.tiles.m, q.tiles.n);
  if (config.groups > 0) q.most_groups = config.groups;
  const ProductRoles roles = product_roles(chain);
  // The copy engine, and threads that move pieces, want addresses and rows in whole pieces; single elements want nothing.
  const auto ask = [&](int role, Path path, bool along_k, DataType type) {
    const int piece = path == Path::tma ? 16 : piece_bytes(path);
    const int stride = piece * 8 / bits_of(type) * bytes_of(type);  // strides of fp4 are counted as if its elements were bytes
    if (path != Path::tma && piece <= bytes_of(type)) return;
    q.matrix.push_back(
        {role,
         {.k_major = along_k, .modulus = 1, .stride_multiple = stride, .stride_limit = path == Path::tma, .alignment = piece}});
  };
  // Where one plan casts what the copy engine brings, the others ask for the same, so that all of a chain take the same calls.
  const bool groups = chain.grouping.axis != chain::GroupedAxis::none;
  if (!config.casts && may_be_cast(chain)) ask(roles.a[0], Path::tma, true, stored_type(chain, first_input(chain, 0)));
  if (!config.casts && !groups && may_be_cast(exchanged(chain)))
    ask(roles.b[0], Path::tma, true, stored_type(chain, first_input(chain, 1)));
  for (int i = 0; i < roles.a_count; ++i)
    ask(roles.a[static_cast<std::size_t>(i)], config.a_path, config.a_major == Major::k && !config.a_turned, stored_a(config));
  for (int i = 0; i < roles.b_count; ++i)
    if ((roles.addressed >> i & 1) == 0)
      ask(roles.b[static_cast<std::size_t>(i)], config.b_path, config.b_major == Major::k && !config.b_turned, stored_b(config));
  // Rows and columns as the caller has them. An exchanged D that the copy engine does not take goes by single elements, and is
  // asked for what the other plans ask, so that all of a chain take the same calls.
  const auto lies_along_n = [&](bool along_m) { return along_m == is_exchanged; };
  if (config.has_d) {
    const Problem p = problem_of(roles, declared_views(chain).data(), input_bytes(config), bytes_of(config.output));
    const bool by_map = config.d_path == Path::tma;
    const Path d_path =
        is_exchanged && !by_map ? best_path(p.d, false, p.m, p.n, p.batches, bytes_of(config.output)) : config.d_path;
    ask(roles.d, d_path, !by_map || lies_along_n(config.d_along_m), config.output);
  }
  for (const StagedRole& s : maps)
    if (config.run_bytes > 0) ask(s.role, Path::tma, !s.along_m, s.type);
  const StagedRoles staged = staged_roles(chain);
  for (std::size_t i = 0; i < static_cast<std::size_t>(staged.further_count); ++i)
    ask(staged.further[i].role, Path::tma, lies_along_n(staged.further[i].along_m), staged.further[i].type);
  if (staged.tile.role >= 0)
    q.aux.push_back({staged.tile.role,
                     {.k_major = lies_along_n(staged.tile.along_m),
                      .modulus = 1,
                      .stride_multiple = 16,
                      .stride_limit = true,
                      .alignment = 16}});
  if (config.rotates)
    for (const int role : {chain.rope.cos_role, chain.rope.sin_role})
      q.aux.push_back({role, {.k_major = true, .modulus = 1, .stride_multiple = 2, .stride_limit = false, .alignment = 2}});
  return q;
}

}  // namespace verglas::sm90
