#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include <ATen/core/Tensor.h>

#include "dist/communicator.h"

namespace lockstep::dist {

/// Allowed contents of a gradient element that a mask drops.
enum class Dropped : uint8_t {
  kZero,     ///< +0
  kAnything  ///< undefined, since it is never read
};

/// True if compacting the kept elements is cheaper than a full pass.
inline bool is_few(int64_t num_kept, int64_t num_elements) { return 8 * num_kept <= num_elements; }

/// Reduction of one bucket's gradients:
///
///   reduction.pack(packed);  work = reduction.launch(comm);  work->wait();
///   finite = reduction.unpack(num_samples, Dropped::kZero);
///
/// Symbols: [E] = elements of the bucket. Afterwards the gradients of this rank are sum over ranks
/// / num_samples if kept. Dropped elements are +0, unless Dropped allows anything. With one wire
/// type, all implementations and formats give the same bits, provided that the order of a sum
/// depends on ranks alone (CPUs).
///
///   dense   all gradients travel, in their own type
///   packed  only kept gradients travel, compacted, in order
///   wire    a narrower float type. Gradients are rounded to it before they travel, the
///           communicator adds in float32, and the sum is rounded to it once more. Division and
///           mean use the gradients' own type. Relative error without cancellation: 2 roundings,
///           2^-7 for bfloat16.
///
/// Call pack(), launch() and unpack() in this order; one thread at a time.
class BucketReduction {
 public:
  virtual ~BucketReduction() = default;

  /// Sets the kept positions: bits first_item, first_item + 1, ... of a mask
  /// (base/bits/bit_mask.h), copied.
  virtual void set_kept(const uint8_t* bits, int64_t first_item) = 0;
  /// Keeps all elements, the initial state.
  virtual void keep_all() = 0;
  /// Returns equal bytes for equal kept positions; empty while all are kept.
  virtual const std::vector<uint8_t>& kept_bits() const = 0;
  /// True if packing is supported here and would omit something.
  virtual bool can_pack() const = 0;

  /// Bytes of the dense payload, unrounded.
  virtual int64_t dense_bytes() const = 0;
  /// Bytes of the last payload that pack() returned.
  virtual int64_t payload_bytes() const = 0;

  /// Returns the payload for the reduction. packed: only if can_pack().
  virtual at::Tensor pack(bool packed) = 0;
  /// True if the last payload is the gradients' own memory, left by pack() as backward wrote it.
  virtual bool travels_in_place() const = 0;
  /// Starts the reduction of the payload. Collective.
  virtual std::unique_ptr<Work> launch(Communicator& comm) = 0;
  /// Writes the means into the gradients, after the reduction. False if a kept mean of this rank is
  /// not finite. On a device always true, since the answer would block the host. There
  /// largest_of_all() (dist/bucket/mean_gradient.h) checks means_E() of all buckets.
  virtual bool unpack(int64_t num_samples, Dropped dropped) = 0;
  /// Gradients of this rank, which unpack() turns into means.
  virtual at::Tensor means_E() const = 0;
};

}  // namespace lockstep::dist
