#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/util/FunctionRef.h>

#include "base/simd/simd.h"
#include "base/tensors/param_info.h"
#include "base/tensors/params.h"
#include "base/tensors/state_list.h"
#include "optim/optimizer_options.h"
#include "optim/rules.h"
#include "optim/state_blocks.h"

/// Updates of the trainable parameters, and clipping of gradients.
namespace lockstep::optim {

/// Mapping between the float32 elements of a region and a packed tensor of its kept elements.
///
/// Symbols: [R] = elements of the region, [K] = kept ones. The region is processed in chunks. Each
/// chunk knows where its kept elements begin, so threads may process chunks in any order.
class PackedMask {
 public:
  static constexpr int64_t kChunkElements = 65536;  ///< a multiple of 64

  struct Chunk {
    int64_t begin_R = 0, num_elements = 0;
    int64_t begin_K = 0, num_kept = 0;
    const uint8_t* bits = nullptr;  ///< mask of its elements (base/simd/bit_mask.h)
  };

  /// Creates a mask of no region: nothing is packed.
  PackedMask() = default;
  /// Covers elements begin_E to begin_E + num_elements of a buffer with this mask.
  PackedMask(std::span<const uint8_t> buffer_bits, int64_t begin_E, int64_t num_elements);

  bool empty() const { return num_elements_ == 0; }
  int64_t num_elements() const { return num_elements_; }
  int64_t num_kept() const { return begins_K_.back(); }
  int64_t num_chunks() const { return static_cast<int64_t>(begins_K_.size()) - 1; }
  Chunk chunk(int64_t index) const;

  /// Returns the mask of elements begin_R to begin_R + num_elements only.
  PackedMask cut(int64_t begin_R, int64_t num_elements) const {
    return {bits_, begin_R, num_elements};
  }
  int64_t num_kept_before(int64_t at_R) const;

  /// Packs the kept elements: [R] -> [K].
  at::Tensor pack(const at::Tensor& dense_R) const;
  /// Unpacks: writes [K] into [R], zeros elsewhere.
  void unpack(const at::Tensor& packed_K, const at::Tensor& dense_R) const;
  /// Sets pruned elements to +0.
  void zero_pruned(const at::Tensor& dense_R) const;

 private:
  int64_t num_elements_ = 0;
  std::vector<uint8_t> bits_;
  std::vector<int64_t> begins_K_{0};  // begin of each chunk, and the end
};

/// Slots of one region. Symbols: [R] = elements of the region, [K] = kept ones among them.
struct SlotPart {
  ParamShard region;
  PackedMask kept;                ///< empty: the slots are dense
  std::vector<at::Tensor> slots;  ///< by slot: [R], or if packed [K] in the region's order
  /// Scales of the region's blocks by slot, if its slots are bytes (optim/state_blocks.h).
  std::vector<at::Tensor> scales;

  bool is_packed() const { return !kept.empty(); }
  bool is_quantized() const { return !scales.empty(); }
  bool holds(const ParamShard& one) const {
    return one.begin_E >= region.begin_E && one.end_E <= region.end_E;
  }
  /// Returns the region's part of a flat tensor: [E] to [R], the same memory.
  at::Tensor of(const at::Tensor& flat_E) const {
    return flat_E.narrow(0, region.begin_E, region.num_elements());
  }
};

/// Parts cut at some regions; the slots are views of the parts' memory.
struct CutParts {
  std::vector<SlotPart> others;   ///< elements outside of all regions
  std::vector<SlotPart> regions;  ///< one per region, in their order
};

/// Slots of an optimizer: only those of owned regions, and only of kept weights if a mask keeps
/// few. A matrix is never packed: its update moves all elements at once.
///
/// With quantize(), slots in parts are bytes with scales, and are not packed.
///
/// A buffer's slots have one of three forms: absent (zeros without memory), in parts (for steps),
/// or whole (dense and float32, for saves). expand() converts to the whole form and frees the
/// parts. to_parts() converts back. If a single dense part covers the whole buffer, both forms are
/// the same memory, and conversions cost nothing. One caller at a time.
class OptimizerState {
 public:
  /// Largest kept fraction of a whole buffer at which a mask packs its slots, the same for all
  /// divisions of the buffer. Measured with Adam on 20 M weights: at this value the packed update
  /// takes as long as the dense one, with half the memory.
  static constexpr double kPackBelow = 0.5;

  /// The buffers and the table must outlive the store.
  OptimizerState(std::vector<FlatBuffer>& buffers, const ParamTable& params);

  /// Adds a slot, absent at first. Call it before the first step. of_matrices: matrices
  /// (FlatBuffer::is_matrix) have it too; such slots come first.
  void add(std::string name, bool of_matrices) {
    names_.push_back(std::move(name));
    if (of_matrices) num_of_matrices_ = names_.size();
  }
  /// Stores the slots of float32 buffers on the CPU in 8 bits. Call it before the first step.
  void quantize();
  bool is_quantized() const { return is_quantized_; }
  /// Blocks of a buffer, if it is quantized.
  const StateBlocks& blocks(size_t buffer) const { return blocks_.at(buffer); }
  /// True if no value of the slot is ever negative.
  bool is_positive(size_t slot) const { return names_[slot] == "v"; }
  const std::vector<std::string>& names() const { return names_; }
  /// Returns the number of slots of a buffer: the first of names().
  size_t num_slots(const FlatBuffer& buffer) const {
    return buffer.is_matrix ? num_of_matrices_ : names_.size();
  }

  /// Implement the Optimizer functions of these names.
  void set_shards(const std::vector<ParamShard>& regions);
  void set_kept(size_t buffer, std::span<const uint8_t> bits);
  void rebuild(const std::vector<FlatBuffer>& buffers_before);

  /// True if the buffer's slots are sharded: set_shards() was called, and the buffer is not frozen.
  bool is_divided(size_t buffer) const { return is_divided_ && !buffers_[buffer].frozen; }

  /// Returns the elements of a parameter of that buffer that this rank owns, relative to the
  /// parameter.
  std::vector<ElementRange> owned_of(size_t buffer, const FlatSlice& slice) const;

  /// Returns [E] for each slot: owned values, zeros elsewhere. Live memory until to_parts() or a
  /// change.
  const std::vector<at::Tensor>& expand(size_t buffer);
  /// Expands like expand(), but first zeroes pruned and foreign elements that were written since.
  const std::vector<at::Tensor>& expand_clean(size_t buffer);

  /// Converts all buffers to parts. Allocates only for buffers that are not in parts.
  void to_parts();
  /// Parts of a buffer, after to_parts(). A frozen buffer is one part.
  std::vector<SlotPart>& parts(size_t buffer) { return stores_[buffer].parts; }
  /// Cuts the parts of all trainable buffers at these regions. Each region is inside one part, and
  /// regions do not overlap. Call it after to_parts(). Valid until another call; the same regions
  /// again cost nothing.
  CutParts& cut_at(const std::vector<ParamShard>& regions);

  /// Returns the part with its slots as numbers: new tensors for bytes, else the same ones.
  SlotPart as_floats(const SlotPart& part) const;
  /// Stores the slots of as_floats(part) again.
  void put_back(const SlotPart& floats, const SlotPart& part) const;

  /// Bytes that the slots use now.
  int64_t num_bytes() const;

 private:
  struct BufferStore {
    std::vector<SlotPart> parts;    // ascending; their slots exist only in this form
    std::vector<at::Tensor> whole;  // by slot [E]; only in the whole form
    bool is_in_parts = false;

    bool is_absent() const { return whole.empty() && !is_in_parts; }
  };

  void own_all();
  void drop_cut();
  bool quantizes(const FlatBuffer& buffer) const;
  void allocate(const FlatBuffer& buffer, size_t slot, SlotPart* part) const;
  void take_from(const at::Tensor& whole_E, const FlatBuffer& buffer, size_t slot,
                 SlotPart* part) const;
  at::Tensor joined(const FlatBuffer& buffer, const std::vector<SlotPart>& parts,
                    const std::vector<StateBlocks>& blocks, size_t slot) const;
  const std::vector<at::Tensor>& expand(const FlatBuffer& buffer,
                                        const std::vector<StateBlocks>& blocks,
                                        BufferStore* store) const;
  void to_parts(size_t buffer);

  std::vector<FlatBuffer>& buffers_;
  const ParamTable& params_;
  std::vector<std::string> names_;
  size_t num_of_matrices_ = 0;
  bool is_quantized_ = false;
  std::vector<StateBlocks> blocks_;      // by buffer, if quantized
  std::vector<BufferStore> stores_;      // by buffer
  std::vector<ParamShard> cut_regions_;  // regions of cut_; empty: none
  CutParts cut_;
  bool is_divided_ = false;
};

/// Updates the trainable parameters in their flat buffers (docs/optimizers.md). The same rule
/// applies to dense buffers and to kept elements of masked ones. It runs in own kernels for float32
/// on the CPU, otherwise in ATen's operations. One caller at a time.
///
/// Stores only the slots (moments) that its own updates need: those of the regions that this rank
/// owns (ZeRO-1). If a mask keeps at most OptimizerState::kPackBelow of a buffer, only kept weights
/// have slots there. Slots of a pruned weight would stay 0
/// (docs/decisions/0028-slots-start-at-zero.md).
///
/// Float32 on the CPU: no bit of a weight or slot depends on the division into regions or on
/// packing (tests/optim). Nor does it depend on the number of threads, except in matrices.
/// Elsewhere ATen's rounding applies, and an element may differ near the end of a region.
class Optimizer {
 public:
  /// Owns all regions; nothing is pruned. The buffers and the table must outlive the optimizer.
  /// counts_own_updates: updates are counted by parameter.
  Optimizer(const OptimizerOptions& options, std::vector<FlatBuffer>& buffers,
            const ParamTable& params, bool counts_own_updates = false)
      : options_(options),
        buffers_(buffers),
        params_(params),
        counts_own_updates_(counts_own_updates),
        slots_(buffers, params),
        own_updates_(params.size(), 0) {}
  virtual ~Optimizer() = default;

  /// Sets the regions that this rank updates: disjoint, in any order. A buffer without a region is
  /// not updated. Regions of frozen buffers are ignored; their slots stay complete on every rank.
  /// Drops the masks, so call set_kept() afterwards. Newly owned elements start at 0, unless
  /// sharded_state() was consolidated right before.
  void set_shards(const std::vector<ParamShard>& regions) { slots_.set_shards(regions); }

  /// Sets the kept elements of a buffer (base/simd/bit_mask.h; the buffer's elements as items),
  /// copied; empty: all. Call it at each change of masks, with the same bits on all ranks. Slots of
  /// weights that stay kept keep their values, others become 0. Ignored for a frozen buffer.
  virtual void set_kept(size_t buffer, std::span<const uint8_t> bits) {
    slots_.set_kept(buffer, bits);
  }

  /// True if step() reads only the gradients of kept elements, for a buffer that is not frozen.
  /// Those of pruned elements are then unused; otherwise they must be +0. Valid until the next
  /// set_kept(), set_shards() or rebuild().
  bool reads_kept_alone(size_t buffer);

  /// Makes one update with the gradients in the buffers, which are undefined afterwards. Unchanged
  /// are elements that this rank does not own, frozen buffers and their slots, and pruned weights
  /// of packed buffers. Allocates no tensor, except for matrices, in the first step, and in the
  /// first one after state() or slots_of().
  ///
  /// found_inf: float32 [1] on the device, as in PyTorch's fused optimizers. If it is 1 (not 0)
  /// when the device reaches this update, nothing changes. The caller, which learns this later,
  /// then calls uncount(). Requires takes_found_inf() and no late regions.
  ///
  /// late: regions of float32 buffers on the CPU inside owned ones, without overlap. All else is
  /// updated first, then each late region after a wait_for_next(). With 8-bit slots all are waited
  /// for first. The bits are the same.
  void step(const StepRates& rates, const PendingShards& late = {},
            const at::Tensor& found_inf = {});
  /// True if the rule has kernels that read found_inf and uses them for these buffers.
  virtual bool takes_found_inf() const { return false; }
  /// Reverts the count of an update that the device has skipped.
  void uncount();
  /// Excludes these parameters and their slots from the next step(), which counts no update for
  /// them, like PyTorch if `grad` is None. Ascending.
  void exclude(std::vector<int64_t> params) { excluded_ = std::move(params); }

  /// Slots by parameter in its shape, `optimizer/<name>/<slot>`, and the number of updates, for
  /// some rules per parameter (`optimizer/<name>/updates`): for saves and restores. Contains values
  /// that this rank owns, zeros for other elements and for those that packing omits. Live memory
  /// until step(), set_shards(), set_kept() or rebuild(), which take over its contents. Another
  /// call returns the same memory, with those zeros restored. Until then each rank needs the memory
  /// of dense slots of all parameters. Nothing is copied if no slot is packed or sharded.
  StateList state();
  /// Entries of state() that set_shards() has sharded: their sum over the ranks is the complete
  /// tensor. Equal names on all ranks. The same memory as that of state().
  StateList sharded_state();
  /// Slots of one parameter in its shape, under the conditions of state(), but without restoring
  /// zeros.
  std::vector<at::Tensor> slots_of(int64_t param);
  /// Zeroes the parameter's momentum (slots `momentum` and `m`). Sums and means of squares stay:
  /// without them an update would be many times too large.
  void reset_momentum(int64_t param);

  /// Adapts the slots to the buffers' new layout and keeps their values. Call it after
  /// FlatParams::flatten(), before which sharded slots must be consolidated (sharded_state()).
  /// Slots are dense until the next step() or set_kept(), complete until set_shards().
  void rebuild(const std::vector<FlatBuffer>& buffers_before) { slots_.rebuild(buffers_before); }

  /// Bytes that the slots use now.
  int64_t slot_bytes() const { return slots_.num_bytes(); }

 protected:
  /// Updates one owned region of a buffer that is not frozen. Slots are in the order of add_slot().
  virtual void update(const FlatBuffer& buffer, SlotPart* part, const GroupRates& rates) = 0;
  /// Called after the updates of one step's regions.
  virtual void end_step() {}

  /// Slots of all buffers.
  OptimizerState& slots() { return slots_; }
  /// Adds a slot: a tensor of zeros for each buffer's values.
  void add_slot(std::string name, bool of_matrices = true) {
    slots_.add(std::move(name), of_matrices);
  }
  /// Number of updates of the region passed to update(), including this one.
  int64_t num_updates() const { return updates_of_part_; }
  /// Argument of the current step(); undefined: the step counts.
  const at::Tensor& found_inf() const { return found_inf_; }
  const OptimizerOptions& options() const { return options_; }
  const std::vector<FlatBuffer>& buffers() const { return buffers_; }
  const ParamTable& params() const { return params_; }

 private:
  /// A region that the next update treats differently: excluded (0), or with another number of
  /// updates.
  struct Apart {
    ParamShard region;
    int64_t num_updates = 0;
  };

  void list_slots(size_t buffer, StateList* list);
  bool is_excluded(int64_t param) const;
  void count_updates();
  int64_t updates_of(int64_t param) const;
  int64_t usual_updates() const;
  std::vector<Apart> regions_apart();
  void update_with_own_counts(const std::vector<Apart>& apart, const StepRates& rates);
  void update_in_turn(const PendingShards& late, const StepRates& rates);
  void update_part(SlotPart& part, const StepRates& rates);

  const OptimizerOptions options_;
  std::vector<FlatBuffer>& buffers_;
  const ParamTable& params_;
  const bool counts_own_updates_;
  OptimizerState slots_;
  int64_t num_updates_ = 0;
  std::vector<int64_t> own_updates_;  ///< by parameter; below 0: equal to num_updates_
  std::vector<int64_t> excluded_;     ///< parameters that the next step excludes
  std::vector<int64_t> counted_;      ///< parameters whose own updates the last step counted
  int64_t updates_of_part_ = 0;       ///< of the region that is being updated
  at::Tensor found_inf_;
};

/// Creates the optimizer of options.type. The buffers and the table must outlive it. Throws
/// Error(kConfig) if the type of the moments does not fit the buffers.
std::unique_ptr<Optimizer> make_optimizer(const OptimizerOptions& options,
                                          std::vector<FlatBuffer>& buffers,
                                          const ParamTable& params);

/// Clips the gradients within the regions in place, first by norm, then by value. By norm: if the
/// square root of squared_grad_norm exceeds the limit, each gradient is multiplied by limit / norm,
/// like tf.clip_by_global_norm. squared_grad_norm covers the gradients of all parameters on all
/// ranks, with 0 for pruned weights (dist::GlobalStepStats). Gradients must be finite means. Equal
/// gradients and sums give equal bits on every rank. Returns the norm before clipping; nullopt
/// without clipping by norm.
std::optional<double> clip_gradients(const ClipOptions& options, std::vector<FlatBuffer>& buffers,
                                     const std::vector<ParamShard>& regions,
                                     std::optional<double> squared_grad_norm);

/// Values and gradients of one region, float32 on the CPU, [R] each.
struct RegionData {
  int64_t num_elements = 0;
  float* values_R = nullptr;
  float* grads_R = nullptr;
};

/// Addresses of a region's slots: [R], or [K] in the region's order if packed. Null: no such slot.
struct SlotData {
  float* first = nullptr;
  float* second = nullptr;
};

/// True if the buffer is float32 on the CPU.
bool takes_kernels(const FlatBuffer& buffer);
/// Returns the addresses of a region of such a buffer.
RegionData data_of(const FlatBuffer& buffer, const ParamShard& region);
SlotData data_of(const std::vector<at::Tensor>& slots);

/// Rule applied to `num` contiguous elements. begin: index of the first one among the slots.
using UpdateBlock =
    c10::function_ref<void(int64_t num, float* values, float* grads, int64_t begin)>;

/// Updates a whole region, or its kept elements only, in one pass. Kept elements are packed in
/// small blocks, updated there and written back; pruned elements do not change. Uses ATen's
/// threads. The bits of an element depend neither on threads, nor on the SIMD path, nor on its
/// position.
void update_dense(const RegionData& data, UpdateBlock update);
void update_kept(const PackedMask& kept, const RegionData& data, UpdateBlock update,
                 SimdPath path = fastest_simd_path());

/// Updates a region by a rule with its parameters. Empty `kept`: all elements.
template <typename Rule>
void update_region(const PackedMask& kept, const RegionData& data, const SlotData& slots,
                   const rules::WeightDecay<float>& decay, const Rule& rule,
                   SimdPath path = fastest_simd_path()) {
  const auto block = [&, kernel = update_kernels(path).of<Rule>()](int64_t num, float* values,
                                                                   float* grads, int64_t begin) {
    kernel(num, values, grads, slots.first != nullptr ? slots.first + begin : nullptr,
           slots.second != nullptr ? slots.second + begin : nullptr, decay, rule);
  };
  if (kept.empty())
    update_dense(data, block);
  else
    update_kept(kept, data, block, path);
}

}  // namespace lockstep::optim
