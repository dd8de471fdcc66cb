#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include <ATen/core/Tensor.h>

#include "dist/communicator.h"

namespace lockstep::dist {

/// What a step may leave where a mask drops an element's gradient.
enum class Dropped : uint8_t {
  kZero,     ///< +0
  kAnything  ///< nobody reads it
};

/// Whether so few gradients are kept that these are better copied, divided and put back than all
/// walked.
inline bool is_few(int64_t num_kept, int64_t num_elements) { return 8 * num_kept <= num_elements; }

/// Carries one bucket's gradients to the reduction and back:
///
///   reduction.pack(packed);  work = reduction.launch(comm);  work->wait();
///   finite = reduction.unpack(num_samples, Dropped::kZero);
///
/// Symbols: [E] = elements of the bucket. Afterwards the gradients that concern this rank are sum
/// over ranks / num_samples where kept, and +0 elsewhere unless that may be anything; with one wire
/// type all carriers and ways give the same bits where the order of a sum depends on ranks alone
/// (CPUs).
///
///   dense   all gradients travel, as they are
///   packed  only kept ones travel, close together, in order
///   wire    a narrower float type: gradients are rounded to it before they travel, added in
///           float32 by the communicator, and the sum, rounded to it once more, is what comes back.
///           Division and the mean are in the gradients' own type. Relative error without
///           cancellation: 2 roundings, 2^-7 for bfloat16.
///
/// pack(), launch() and unpack() in turn, one thread at a time.
class BucketReduction {
 public:
  virtual ~BucketReduction() = default;

  /// Kept positions: bits first_item, first_item + 1, ... of a mask (base/bits/bit_mask.h), copied.
  virtual void set_kept(const uint8_t* bits, int64_t first_item) = 0;
  /// All are kept, as in the beginning.
  virtual void keep_all() = 0;
  /// The same bytes for the same kept positions; empty while all are kept.
  virtual const std::vector<uint8_t>& kept_bits() const = 0;
  /// True if packing would leave something out, and is possible there.
  virtual bool can_pack() const = 0;

  /// Bytes that travel if all gradients do, as they are.
  virtual int64_t dense_bytes() const = 0;
  /// Bytes of what the last pack() gave.
  virtual int64_t payload_bytes() const = 0;

  /// Returns the payload that is to be reduced. packed: only if can_pack().
  virtual at::Tensor pack(bool packed) = 0;
  /// Whether that is the gradients' own memory, as backward left it: pack() did nothing with it.
  virtual bool travels_in_place() const = 0;
  /// Starts the reduction of what pack() gave. Collective.
  virtual std::unique_ptr<Work> launch(Communicator& comm) = 0;
  /// After the reduction: the means into the gradients. False if a kept one that concerns this rank
  /// is not finite; on a device always true, as the host would wait for the answer:
  /// largest_of_all() (dist/bucket/mean_gradient.h) of all carriers' means_E() tells.
  virtual bool unpack(int64_t num_samples, Dropped dropped) = 0;
  /// The gradients that concern this rank, which unpack() makes means.
  virtual at::Tensor means_E() const = 0;
};

}  // namespace lockstep::dist
