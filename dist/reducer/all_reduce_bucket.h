#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>

#include "base/device/device_packing.h"
#include "dist/reducer/bucket_reduction.h"

namespace lockstep::dist {

/// Reduction of a bucket to every rank: an all_reduce in place. Symbols: [E] = elements of the
/// bucket, [K] = kept ones.
class AllReduceBucket final : public BucketReduction {
 public:
  /// grads_E: part of a flat buffer, contiguous, whose memory stays valid. `wire`: nullopt, or a
  /// float type; one that is not narrower than the gradients' has no effect. `packing`: kernels of
  /// the gradients' device; null: they are packed on the CPU only.
  AllReduceBucket(at::Tensor grads_E, std::optional<at::ScalarType> wire,
                  std::shared_ptr<const DevicePacking> packing = nullptr);

  void set_kept(const uint8_t* bits, int64_t first_item) override;
  void keep_all() override;
  const std::vector<uint8_t>& kept_bits() const override { return kept_bits_; }
  bool can_pack() const override {
    return !kept_bits_.empty() && (grads_E_.is_cpu() || packing_ != nullptr);
  }

  int64_t num_elements() const { return grads_E_.numel(); }
  int64_t dense_bytes() const override { return static_cast<int64_t>(grads_E_.nbytes()); }
  int64_t payload_bytes() const override { return static_cast<int64_t>(payload_.nbytes()); }

  at::Tensor pack(bool packed) override;
  bool travels_in_place() const override { return !is_packed_ && !wire_; }
  std::unique_ptr<Work> launch(Communicator& comm) override;
  bool unpack(int64_t num_samples, Dropped dropped) override;
  at::Tensor means_E() const override { return grads_E_; }

 private:
  at::Tensor packed_K();
  void pack_into(const at::Tensor& to_K);
  void unpack_from(const at::Tensor& from_K, const at::Tensor& to_E);
  void zero_dropped();

  at::Tensor grads_E_;
  std::optional<at::ScalarType> wire_;
  std::shared_ptr<const DevicePacking> packing_;
  std::vector<uint8_t> kept_bits_;
  int64_t num_kept_;
  DeviceMask mask_there_;       ///< the mask on the device, for packing_
  at::Tensor dropped_there_E_;  ///< bool, on a device; undefined on the CPU and while all are kept
  // of the last pack()
  bool is_packed_ = false;
  at::Tensor payload_;
  // scratch memory, allocated at first use
  at::Tensor packed_scratch_K_, wire_scratch_;
};

}  // namespace lockstep::dist
