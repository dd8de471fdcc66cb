#pragma once

#include <cstdint>
#include <memory>

#include <ATen/core/Tensor.h>

namespace lockstep {

/// Bit mask (base/bits/bit_mask.h) in the form for a device. Item i is bit i % 64 of word i / 64.
/// The number of kept items before each word is stored too.
struct DeviceMask {
  int64_t num_items = 0, num_kept = 0;
  at::Tensor words_W;   ///< int64
  at::Tensor before_W;  ///< int64
};

/// Packing of a device's tensors on the calling thread's stream, as pack_kept() and unpack_kept()
/// of base/bits/bit_mask.h (Communicator::make_packing()). Items are 2, 4 or 8 bytes wide. Tensors
/// are contiguous: [E] = items of the mask, [K] = kept ones. Thread-safe.
class DevicePacking {
 public:
  virtual ~DevicePacking() = default;

  /// Copies the mask to the device; the host waits for the copy.
  virtual DeviceMask to_device(const uint8_t* bits, int64_t num_items) const = 0;
  /// Sets packed_K = the kept items in order.
  virtual void pack_kept(const DeviceMask& mask, const at::Tensor& items_E,
                         const at::Tensor& packed_K) const = 0;
  /// Reverses pack_kept(); the other items become +0.
  virtual void unpack_kept(const DeviceMask& mask, const at::Tensor& packed_K,
                           const at::Tensor& items_E) const = 0;
};

}  // namespace lockstep
