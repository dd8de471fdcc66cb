#pragma once

#include <cstdint>

#include "base/tensors/params.h"

namespace lockstep {

/// Memory that the ranks of a host share for flat buffers. There is one copy of the values for all,
/// and gradients of each rank, which the others may read. All ranks make the same calls in the same
/// order.
///
/// Order of a layout: begin(); give() for each buffer; then meet().
class FlatMemory {
 public:
  virtual ~FlatMemory() = default;

  /// Starts a layout. After all ranks have called it, earlier given memory may be given again,
  /// since its values have been copied. Collective.
  virtual void begin() = 0;
  /// Gives the buffer memory for values of this number and type. Unless it is frozen, gives memory
  /// for gradients of all ranks too. The content is undefined. Throws Error(kBug) beyond the size
  /// at construction.
  virtual void give(FlatBuffer* buffer, int64_t num_elements, at::ScalarType dtype) = 0;
  /// True if this rank writes the values of a new layout; the others have them after meet().
  virtual bool is_writer() const = 0;
  /// Returns once every rank has called it: earlier writes are visible then. Collective.
  virtual void meet() = 0;
};

}  // namespace lockstep
