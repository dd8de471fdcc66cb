#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include <ATen/core/Tensor.h>

namespace lockstep::optim {

/// Which elements of one region of float32 a packed tensor holds, in order.
///
/// Symbols: [R] = elements of the region, [K] = kept ones. The region is walked in chunks, each of
/// which knows where its kept elements begin, so that threads may take them in any order.
class PackedMask {
 public:
  static constexpr int64_t kChunkElements = 65536;  ///< a multiple of 64

  struct Chunk {
    int64_t begin_R = 0, num_elements = 0;
    int64_t begin_K = 0, num_kept = 0;
    const uint8_t* bits = nullptr;  ///< of its elements (base/bits/bit_mask.h)
  };

  /// Of no region: nothing is packed.
  PackedMask() = default;
  /// Elements begin_E to begin_E + num_elements of a buffer with this mask (base/bits/bit_mask.h).
  PackedMask(std::span<const uint8_t> buffer_bits, int64_t begin_E, int64_t num_elements);

  bool empty() const { return num_elements_ == 0; }
  int64_t num_elements() const { return num_elements_; }
  int64_t num_kept() const { return begins_K_.back(); }
  int64_t num_chunks() const { return static_cast<int64_t>(begins_K_.size()) - 1; }
  Chunk chunk(int64_t index) const;

  /// Of elements begin_R to begin_R + num_elements alone.
  PackedMask cut(int64_t begin_R, int64_t num_elements) const {
    return {bits_, begin_R, num_elements};
  }
  int64_t num_kept_before(int64_t at_R) const;

  /// [R] to [K].
  at::Tensor pack(const at::Tensor& dense_R) const;
  /// [K] into [R], zeros elsewhere.
  void unpack(const at::Tensor& packed_K, const at::Tensor& dense_R) const;
  /// Pruned elements become +0.
  void zero_pruned(const at::Tensor& dense_R) const;

 private:
  int64_t num_elements_ = 0;
  std::vector<uint8_t> bits_;
  std::vector<int64_t> begins_K_{0};  // by chunk, and the end
};

}  // namespace lockstep::optim
