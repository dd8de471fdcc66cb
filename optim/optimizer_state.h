#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "base/tensors/param_info.h"
#include "base/tensors/params.h"
#include "base/tensors/state_list.h"

/// Slots of an optimizer, and the mask that packs them.
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

  bool is_packed() const { return !kept.empty(); }
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
/// few.
///
/// A buffer's slots have one of three forms: absent (zeros without memory), in parts (for steps),
/// or whole (dense, for saves). expand() creates the whole form from the other two and frees the
/// parts; take_back() does the reverse. If a single dense part covers the whole buffer, both forms
/// are the same memory, and conversions cost nothing.
///
/// One caller at a time.
class OptimizerState {
 public:
  /// Largest kept fraction of a buffer at which a mask packs its slots. Measured with Adam on 20 M
  /// weights: at this value the packed update takes as long as the dense one, with half the memory.
  /// Depends only on the mask of the whole buffer, so ranks, resumed runs and all divisions of the
  /// buffer choose alike.
  static constexpr double kPackBelow = 0.5;

  /// The buffers and the table must outlive the store.
  OptimizerState(std::vector<FlatBuffer>& buffers, const ParamTable& params);

  /// Adds a slot, absent at first. Call it before the first step.
  void add(std::string name) { names_.push_back(std::move(name)); }
  const std::vector<std::string>& names() const { return names_; }

  /// Implement the Optimizer functions of these names.
  void set_shards(const std::vector<ParamShard>& regions);
  void set_kept(size_t buffer, std::span<const uint8_t> bits);
  void rebuild(const std::vector<FlatBuffer>& buffers_before);

  /// True if the buffer's slots are sharded: set_shards() was called, and the buffer is not frozen.
  bool is_divided(size_t buffer) const { return is_divided_ && !buffers_[buffer].frozen; }

  /// Returns the elements of a parameter of that buffer that this rank owns, relative to the
  /// parameter.
  std::vector<ElementRange> owned_of(size_t buffer, const FlatSlice& slice) const;

  /// Returns [E] for each slot: owned values, zeros elsewhere. Live memory until take_back() or a
  /// change.
  const std::vector<at::Tensor>& expand(size_t buffer);
  /// Expands like expand(), but first zeroes pruned and foreign elements that were written since.
  const std::vector<at::Tensor>& expand_clean(size_t buffer);

  /// Converts all buffers to parts. Allocates only for buffers that are not in parts.
  void take_back();
  /// Parts of a buffer, after take_back(). A frozen buffer is one part.
  std::vector<SlotPart>& parts(size_t buffer) { return stores_[buffer].parts; }
  /// Cuts the parts of all trainable buffers at these regions. Each region is inside one part, and
  /// regions do not overlap. Call it after take_back(). Valid until another call; the same regions
  /// again cost nothing.
  CutParts& cut_at(const std::vector<ParamShard>& regions);

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
  const std::vector<at::Tensor>& expand(const FlatBuffer& buffer, BufferStore* store) const;
  void take_back(size_t buffer);

  std::vector<FlatBuffer>& buffers_;
  const ParamTable& params_;
  std::vector<std::string> names_;
  std::vector<BufferStore> stores_;      // by buffer
  std::vector<ParamShard> cut_regions_;  // regions of cut_; empty: none
  CutParts cut_;
  bool is_divided_ = false;
};

}  // namespace lockstep::optim
