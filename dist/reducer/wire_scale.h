#pragma once

#include <cstdint>

#include "base/tensors/state_list.h"

namespace lockstep::dist {

/// The power of two by which gradients are multiplied while they travel as float16, so that small
/// ones are not rounded to 0 and large ones do not overflow: loss scaling (arXiv 1710.03740,
/// section 3.2) of the message alone, exact in float32.
///
/// It follows the bound of the step before: the sum over ranks of each rank's largest magnitude,
/// which travels with the step's numbers and which no gradient, no contribution to it and no
/// partial sum exceeds. Scaled, the bound is in [2^7, 2^8): gradients may grow 2^8 times from one
/// step to the next before one overflows (its step does not count then), and keep all 11 bits down
/// to 2^-22 of the bound. Without a bound (before the first step, after one that was 0 or not
/// finite) the next step asks for one in a message of its own.
///
/// The same on all ranks, and one for all buckets, so that no bit depends on how gradients are cut,
/// packed or divided.
class WireScale {
 public:
  /// is_used false: always 1.
  explicit WireScale(bool is_used) : is_used_(is_used) {}

  bool is_used() const { return is_used_; }
  /// Whether the step's bound has to be asked for before its gradients travel.
  bool lacks_bound() const { return is_used_ && exponent_ == kUnknown; }
  /// The factor; 1 while lacks_bound().
  double value() const;
  /// The bound of a step, of gradients that are not scaled. Not finite or 0: there is none.
  void follow(double bound);

  /// `_lockstep/sync/wire_exponent` over this object's own memory, so that a run that goes on
  /// rounds as an unbroken one; empty if not used. A save without it: no bound.
  StateList state();

 private:
  static constexpr int64_t kUnknown = 1000;

  bool is_used_;
  int64_t exponent_ = kUnknown;
};

}  // namespace lockstep::dist
