#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/tensors/param_shard.h"
#include "base/tensors/params.h"
#include "base/tensors/state_list.h"
#include "optim/kernels/packed_mask.h"

namespace lockstep::optim {

/// One region's slots. Symbols: [R] = elements of the region, [K] = kept ones among them.
struct SlotPart {
  ParamShard region;
  PackedMask kept;                ///< empty: the slots are dense
  std::vector<at::Tensor> slots;  ///< by slot: [R], or [K] in the region's order where packed

  bool is_packed() const { return !kept.empty(); }
  bool holds(const ParamShard& one) const {
    return one.begin_E >= region.begin_E && one.end_E <= region.end_E;
  }
  /// [E] to [R], the same memory.
  at::Tensor of(const at::Tensor& flat_E) const {
    return flat_E.narrow(0, region.begin_E, region.num_elements());
  }
};

/// Parts cut at some regions; slots are the parts' own memory.
struct CutParts {
  std::vector<SlotPart> others;   ///< what lies in no region
  std::vector<SlotPart> regions;  ///< theirs, in their order
};

/// An optimizer's tensors beside the flat buffers: only of owned regions, and of kept weights alone
/// where a mask leaves few of them.
///
/// A buffer's slots stand in one of three forms: absent (zeros that take no memory yet), in parts
/// (as a step wants them), or whole (dense, as saves want them). expand() makes whole ones of the
/// other two and frees the parts; take_back() does the reverse. Where the one part is the whole
/// buffer and dense, parts and whole are the same memory and neither way costs anything.
///
/// One caller at a time.
class OptimizerState {
 public:
  /// A mask packs the slots of a buffer if it keeps at most this share of its elements. Measured
  /// with Adam on 20 M weights: here the packed update takes as long as the dense one, and the
  /// memory is half. Depends on the mask of the whole buffer alone, so that ranks, resumed runs and
  /// divisions of the buffer all choose alike.
  static constexpr double kPackBelow = 0.5;

  /// The buffers and the table must outlive the store.
  OptimizerState(std::vector<FlatBuffer>& buffers, const ParamTable& params);

  /// Another slot, absent. Before the first step.
  void add(std::string name) { names_.push_back(std::move(name)); }
  const std::vector<std::string>& names() const { return names_; }

  /// As Optimizer's functions of these names.
  void set_shards(const std::vector<ParamShard>& regions);
  void set_kept(size_t buffer, std::span<const uint8_t> bits);
  void rebuild(const std::vector<FlatBuffer>& buffers_before);

  /// Whether the buffer's slots are divided over ranks: set_shards() was called, and it is not
  /// frozen.
  bool is_divided(size_t buffer) const { return is_divided_ && !buffers_[buffer].frozen; }

  /// Which elements of a parameter of that buffer this rank owns, counted in the parameter.
  std::vector<ElementRange> owned_of(size_t buffer, const FlatSlice& slice) const;

  /// By slot [E]: owned values, zeros elsewhere. Live memory until take_back() or a change.
  const std::vector<at::Tensor>& expand(size_t buffer);
  /// As expand(), and what was written into pruned or foreign elements since is zero again.
  const std::vector<at::Tensor>& expand_clean(size_t buffer);

  /// All buffers in parts. Allocates only for those that are not.
  void take_back();
  /// After take_back(). A frozen buffer is one part.
  std::vector<SlotPart>& parts(size_t buffer) { return stores_[buffer].parts; }
  /// The parts of all buffers that are not frozen, cut at these regions, each of which lies in one
  /// part, and which do not overlap. After take_back(), until something else is called; the same
  /// regions again cost nothing.
  CutParts& cut_at(const std::vector<ParamShard>& regions);

  /// Memory that the slots take now.
  int64_t num_bytes() const;

 private:
  struct BufferStore {
    std::vector<SlotPart> parts;    // ascending; their slots are there only while in parts
    std::vector<at::Tensor> whole;  // by slot [E]; only while whole
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
  std::vector<ParamShard> cut_regions_;  // which cut_ is of; empty: none
  CutParts cut_;
  bool is_divided_ = false;
};

}  // namespace lockstep::optim
