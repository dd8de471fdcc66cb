#pragma once

#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

#include "base/tensors/params.h"
#include "optim/optimizer_options.h"

/// Moments in 8 bits (`optimizer.state_dtype: int8`).
///
/// The elements of a block share a scale, the element with the largest magnitude. Another element
/// is a byte: a number of the dynamic map times the scale. The map has 1, 0, and seven decades down
/// to 1e-7. Each decade has twice as many numbers as the one below, the centers of equal cells.
/// Moments that are never negative use all bytes for positive numbers; others have 127 negative
/// ones. A byte of 0 is 0. Source: Dettmers et al. 2022, with the map of bitsandbytes. There, the
/// scale is a magnitude; here, it has a sign, so 1 always occurs in a block.
///
/// So bytes of a block that was read and written again are the same. A positive second moment does
/// not become 0, since the update divides by its root. A block below 1e-37 does.
namespace lockstep::optim {

/// Largest number of elements of a block.
inline constexpr int64_t kStateBlock = 256;

/// Sets Param::block_E as the type of the moments requires. Call it before the parameters are
/// divided among ranks.
void choose_blocks(const OptimizerOptions& options, ParamTable* params);

/// Division of a buffer into blocks. A row of at least kStateBlock elements has its own blocks;
/// shorter rows of a parameter are joined to blocks. Ranks divide a parameter between blocks only
/// (Param::block_E). So no bit depends on the number of ranks.
class StateBlocks {
 public:
  /// `rows_E`: row_elements() of all parameters (base/tensors/square_sums.h).
  StateBlocks(const FlatBuffer& buffer, const std::vector<int64_t>& rows_E);

  struct Block {
    int64_t begin_E = 0, num_elements = 0;
  };
  Block at(int64_t index) const;
  /// Returns the number of blocks that begin before this element, the first of a block or the
  /// buffer's end.
  int64_t before(int64_t at_E) const;

 private:
  /// Part of the buffer with one size of units, which are rows or joined ones.
  struct Run {
    int64_t begin_E = 0, end_E = 0;
    int64_t unit_E = kStateBlock;
    int64_t first_block = 0;

    int64_t blocks_a_unit() const { return (unit_E + kStateBlock - 1) / kStateBlock; }
  };
  std::vector<Run> runs_;
};

/// Bytes of a region's elements, and scales of its blocks.
struct QuantizedSlot {
  at::Tensor codes_R;
  at::Tensor scales_B;
};

/// Returns zeros.
QuantizedSlot zero_slot(const StateBlocks& blocks, const ParamShard& region);
/// Converts float32 values on the CPU to bytes, and back. The region begins and ends between
/// blocks. `is_positive`: no value is negative.
void quantize(const StateBlocks& blocks, const ParamShard& region, bool is_positive,
              const at::Tensor& values_R, const QuantizedSlot& slot);
void dequantize(const StateBlocks& blocks, const ParamShard& region, bool is_positive,
                const QuantizedSlot& slot, const at::Tensor& values_R);

}  // namespace lockstep::optim
