#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include <ATen/core/Tensor.h>

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
    const uint8_t* bits = nullptr;  ///< mask of its elements (base/bits/bit_mask.h)
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

}  // namespace lockstep::optim
