#pragma once

#include <cstdint>

#include "base/tensors/params.h"

namespace lockstep {

/// Memory that the ranks of a host share, for flat buffers: one copy of the values for all of them,
/// and gradients of each, which the others may read. All calls in turn and alike on all ranks.
///
/// A layout: begin(); give() for each buffer; then meet().
class FlatMemory {
 public:
  virtual ~FlatMemory() = default;

  /// Once all ranks have called it, what was given before is free to be given again: whoever needs
  /// those values has copied them. Collective.
  virtual void begin() = 0;
  /// Values for so many elements of this type, and unless frozen gradients, of all ranks. What
  /// stands there is undefined. Throws Error(kBug) beyond the size that it was made for.
  virtual void give(FlatBuffer* buffer, int64_t num_elements, at::ScalarType dtype) = 0;
  /// Whether this rank fills in the values of a new layout; the others have them after meet().
  virtual bool is_writer() const = 0;
  /// Returns once every rank has called it: what was written before is there. Collective.
  virtual void meet() = 0;
};

}  // namespace lockstep
