#pragma once

#include <cstdint>

#include "base/simd/simd.h"

/// Kernels of a layer with kept weights.
namespace lockstep::infer {

/// One layer: kept weights by rows, and where inputs and outputs are. Row o computes the output
/// channel channels_O[o]. Weights are divided into blocks by input. The pixels that a block reads
/// for a tile stay in the first cache while all rows use them. Block b of row o has weights
/// begins_BO[b * num_rows + o] up to the next begin. Weight k multiplies the items at offsets_K[k].
struct KeptWork {
  const int64_t* begins_BO = nullptr;
  int64_t num_rows = 0;
  int64_t num_blocks = 1;
  const int32_t* channels_O = nullptr;
  const int32_t* offsets_K = nullptr;
  const int32_t* bits_K = nullptr;  ///< of the weights, float32
  const float* bias_O = nullptr;
  bool takes_max = false;           ///< outputs are the largest items, whatever their weights
  const float* inputs = nullptr;    ///< first pixel of the first channel
  const float* residual = nullptr;  ///< added, laid out as the outputs; null, or the outputs too
  float* outputs = nullptr;         ///< first pixel of the first channel
  int64_t output_stride = 0;        ///< items from a channel to the next
  const uint32_t* mask = nullptr;   ///< all bits set for each pixel, none for zeros between them
  float low = 0, high = 0;          ///< outputs are clamped to these
};

struct KeptKernels {
  /// Computes the pixels begin_P to end_P (a multiple of 16 more) of the rows begin_O to end_O.
  void (*pixels)(const KeptWork& work, int64_t begin_O, int64_t end_O, int64_t begin_P,
                 int64_t end_P);
  /// Computes the rows begin_O to end_O of one block for one pixel. Channels of inputs and outputs
  /// are next to each other.
  void (*sample)(const KeptWork& work, int64_t begin_O, int64_t end_O);
  /// Computes num pixels from p on of row o. The first reads at `inputs` plus the offsets, each
  /// next one two items further. For work of one block.
  void (*even_pixels)(const KeptWork& work, int64_t o, const float* inputs, int64_t p, int64_t num);
  /// Copies num items, each second one of `from`.
  void (*even_items)(const int32_t* from, int64_t num, int32_t* to);
};

/// Returns the kernels of a path that simd_paths() lists. They use fused multiply-adds where the
/// path has them, so the last bits depend on the path.
const KeptKernels& kept_kernels(SimdPath path);

}  // namespace lockstep::infer
