#pragma once

#include <cstdint>
#include <memory>

#include <ATen/core/Tensor.h>

namespace lockstep {

/// A bit mask (base/bits/bit_mask.h) in the form in which a device reads it: item i is bit i % 64
/// of word i / 64, with the number of kept items before each word.
struct DeviceMask {
  int64_t num_items = 0, num_kept = 0;
  at::Tensor words_W;   ///< int64
  at::Tensor before_W;  ///< int64
};

/// pack_kept() and unpack_kept() of base/bits/bit_mask.h for tensors of a device, on the calling
/// thread's stream (Communicator::make_packing()). Items are 2, 4 or 8 bytes wide; tensors are
/// contiguous, [E] = items of the mask, [K] = kept ones. Any thread.
class DevicePacking {
 public:
  virtual ~DevicePacking() = default;

  /// Copies the mask to the device, for which the host waits.
  virtual DeviceMask to_device(const uint8_t* bits, int64_t num_items) const = 0;
  /// packed_K = the kept items, in order.
  virtual void pack_kept(const DeviceMask& mask, const at::Tensor& items_E,
                         const at::Tensor& packed_K) const = 0;
  /// The inverse: +0 elsewhere.
  virtual void unpack_kept(const DeviceMask& mask, const at::Tensor& packed_K,
                           const at::Tensor& items_E) const = 0;
};

}  // namespace lockstep
