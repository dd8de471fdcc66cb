#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "base/tensors/device_backend.h"
#include "base/tensors/state_list.h"

/// Content of a save: snapshot of the state, tensors in stored form, and the plan of the parts that
/// each rank writes.
namespace lockstep::checkpoint {

/// State at the start of a save. Everything that may change is copied here.
class Snapshot {
 public:
  explicit Snapshot(StateList list) : state_(std::move(list)) {}
  Snapshot(const Snapshot&) = delete;
  Snapshot& operator=(const Snapshot&) = delete;

  const StateList& state() const { return state_; }

  /// Returns the size of the tensors that are not steady.
  int64_t bytes_that_may_change() const {
    int64_t num_bytes = 0;
    for (const StateEntry& entry : state_)
      if (entry.tensor.defined() && !entry.steady)
        num_bytes += static_cast<int64_t>(entry.tensor.nbytes());
    return num_bytes;
  }

  /// Copies texts and tensors that are not steady.
  void copy_what_may_change() {
    copy_texts();
    for (StateEntry& entry : state_)
      if (entry.tensor.defined() && !entry.steady) entry.tensor = entry.tensor.detach().clone();
  }

  /// Copies everything to the host. What is on the stager's device has arrived when the result says
  /// so. Tensors that are not steady are first copied on the device, so that only updates must wait
  /// for the stager.
  std::unique_ptr<StagedCopy> copy_all(DeviceStager& stager) {
    copy_texts();
    std::vector<StagedPart> parts;
    for (const Place& place : places_on(stager.device()))
      parts.push_back({place.is_steady ? *place.tensor : place.tensor->detach().clone(),
                       place.is_bits ? std::nullopt : place.entry->held});
    std::unique_ptr<StagedCopy> copy = stager.begin(parts);
    copy_what_is_not_on(stager.device());
    size_t next = 0;
    for (const Place& place : places_on(stager.device())) *place.tensor = copy->copies()[next++];
    return copy;
  }

  int64_t bytes_on(at::Device device) {
    std::vector<StagedPart> parts;
    for (const Place& place : places_on(device)) parts.push_back({*place.tensor});
    return DeviceStager::bytes_of(parts);
  }

 private:
  struct Place {
    StateEntry* entry = nullptr;
    at::Tensor* tensor = nullptr;
    bool is_bits = false, is_steady = false;
  };

  std::vector<Place> places_on(at::Device device) {
    std::vector<Place> places;
    for (StateEntry& entry : state_) {
      if (entry.tensor.defined() && entry.tensor.device() == device)
        places.push_back({&entry, &entry.tensor, false, entry.steady});
      if (entry.kept_bits.defined() && entry.kept_bits.device() == device)
        places.push_back({&entry, &entry.kept_bits, true, true});
    }
    return places;
  }

  /// Copies what is on the host. The host changes it as soon as it enqueues an update, long before
  /// the device executes that.
  void copy_what_is_not_on(at::Device device) {
    std::map<const void*, at::Tensor> copied_bits;  // several entries share the bits of one mask
    for (StateEntry& entry : state_) {
      if (entry.tensor.defined() && entry.tensor.device() != device)
        entry.tensor = entry.tensor.detach().clone();
      if (!entry.kept_bits.defined() || entry.kept_bits.device() == device) continue;
      at::Tensor& copy = copied_bits[entry.kept_bits.const_data_ptr()];
      if (!copy.defined()) copy = entry.kept_bits.clone();
      entry.kept_bits = copy;
    }
  }

  void copy_texts() {
    for (StateEntry& entry : state_)
      if (entry.text != nullptr) entry.text = &texts_.emplace_back(*entry.text);
  }

  StateList state_;
  std::deque<std::string> texts_;
};

/// Index of a mask. It converts between positions among all n elements of a pruned tensor and
/// positions among its K kept ones. A sparse checkpoint stores only the kept ones. The bits must
/// outlive the index.
class MaskIndex {
 public:
  /// Builds the index. `bits`: uint8, contiguous on the CPU, one bit per element
  /// (base/simd/bit_mask.h). Throws Error(kBug) if their number is wrong.
  MaskIndex(const at::Tensor& bits, int64_t num_elements);

  int64_t num_kept() const { return num_kept_; }
  /// Returns the positions among the kept elements of a range's kept elements.
  ElementRange stored(const ElementRange& elements) const;
  /// Returns the range of elements whose kept ones are exactly `stored`. It includes the pruned
  /// elements after each kept one. The range of the first kept element also includes the pruned
  /// ones before it.
  ElementRange elements(const ElementRange& stored) const;

  /// Packs the kept elements of the range, each of `item_bytes` bytes. Returns false if a pruned
  /// element is not +0, because packing would lose it.
  bool pack(const char* items, const ElementRange& elements, int item_bytes, char* packed) const;

 private:
  /// Byte of the mask, and the number of kept elements before it.
  struct Place {
    int64_t byte = 0, num_before = 0;
  };

  int64_t element_of(int64_t stored) const;

  const uint8_t* bits_;
  int64_t num_elements_;
  int64_t num_kept_;
  mutable Place last_;  ///< of the last search: the next one usually begins there
};

/// One tensor or text in its stored form, under its index name.
struct StoredTensor {
  std::string name;
  int32_t dtype = 0;           ///< type number as in tensor_type.h
  std::vector<int64_t> shape;  ///< as stored: [K] if only kept elements are
  int64_t element_bytes = 0;   ///< 0 for a text
  at::Tensor tensor;           ///< undefined for a text
  std::string text;
  /// Stored elements that this rank holds, if the tensor is divided over the ranks.
  std::optional<std::vector<ElementRange>> held;
  /// Elements of the dense tensor that this rank holds, if only kept ones are stored and they are
  /// divided.
  std::optional<std::vector<ElementRange>> held_dense;
  /// Mask: if defined, only elements with set bits are stored. On the CPU, contiguous.
  at::Tensor kept_bits;

  bool is_text() const { return !tensor.defined(); }
  bool is_divided() const { return held.has_value(); }
  int64_t num_elements() const;
  /// Returns the size in bytes. Texts count 0, so that the plan never depends on values.
  int64_t num_bytes() const { return num_elements() * element_bytes; }
};

/// Returns all pieces of a checkpoint: the caller's state, then TensorFlow's own entries. With
/// `sparse`, a tensor with a mask becomes its kept values and a text with shape and mask name.
/// docs/design/checkpoint_format.md, Sparse tensors, describes both.
///
/// Throws Error(kConfig) for a tensor that cannot be stored; Error(kBug) for invalid or repeated
/// keys.
std::vector<StoredTensor> save_pieces(const StateList& state, int64_t number, bool sparse);

/// Returns a short digest of names, types and shapes. Equal digests on two ranks mean equal pieces.
std::string summary(const std::vector<StoredTensor>& pieces, int64_t number);

/// Returns the size in bytes of the tensors with every element stored.
int64_t dense_bytes(const std::vector<StoredTensor>& pieces);

/// Part of a piece that one rank writes: some of its stored elements, or all of a text.
struct ShardItem {
  size_t piece = 0;  ///< index in the list of pieces
  ElementRange range;

  friend bool operator==(const ShardItem&, const ShardItem&) = default;
};

/// Plan of a save: which part each rank writes. The bytes of all replicated pieces, in list order,
/// are cut into W runs of equal length for W ranks. A cut moves to the nearest row of its tensor.
/// Two kinds of tensors are not cut: those smaller than min_cut_bytes, and types that TensorFlow
/// does not read in slices. There the cut moves to the nearer end of the tensor. So at most W - 1
/// tensors are cut. Of divided pieces each rank writes what it holds.
///
/// The plan depends only on names, types and shapes, so every rank computes the same one without
/// communication.
class SavePlan {
 public:
  static constexpr int64_t kMinCutBytes = int64_t{1} << 20;

  /// Throws Error(kConfig).everywhere() for more ranks than a shard's name has digits for.
  SavePlan(const std::vector<StoredTensor>& pieces, int world_size,
           int64_t min_cut_bytes = kMinCutBytes);

  /// Returns the parts in list order. Divided pieces list what this process holds, so `rank` must
  /// be its own.
  std::vector<ShardItem> parts_of(int rank) const;

 private:
  /// Returns the first element of a piece that is written by this rank or a later one.
  int64_t border(size_t piece, int rank) const;

  const std::vector<StoredTensor>& pieces_;
  int world_size_;
  int64_t min_cut_bytes_;
  std::vector<int64_t> begins_;  // by piece: bytes of the replicated pieces before it
  int64_t total_bytes_ = 0;
};

}  // namespace lockstep::checkpoint
