#include "model/products/tiles.h"

#include <algorithm>

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

namespace lockstep::model {

int64_t tile_width(int64_t num_samples) {
  if (num_samples > 16) return 32;
  return num_samples > 8 ? 16 : 8;
}

at::Tensor tiled(const at::Tensor& samples_BN, int64_t width_T) {
  const int64_t num_samples = samples_BN.size(0), num = samples_BN.size(1);
  const int64_t num_tiles = (num_samples + width_T - 1) / width_T;
  // Zeros only where samples are missing: their products are then 0.
  at::Tensor tiles = num_samples % width_T == 0
                         ? at::empty({num_tiles, num, width_T}, samples_BN.options())
                         : at::zeros({num_tiles, num, width_T}, samples_BN.options());
  for (int64_t tile = 0; tile < num_tiles; ++tile) {
    const int64_t first = tile * width_T, num_here = std::min(width_T, num_samples - first);
    tiles[tile].narrow(1, 0, num_here).copy_(samples_BN.narrow(0, first, num_here).t());
  }
  return tiles;
}

at::Tensor untiled(const at::Tensor& tiles, int64_t num_samples) {
  const int64_t width_T = tiles.size(2), num = tiles.size(1);
  at::Tensor samples_BN = at::empty({num_samples, num}, tiles.options());
  for (int64_t tile = 0; tile < tiles.size(0); ++tile) {
    const int64_t first = tile * width_T, num_here = std::min(width_T, num_samples - first);
    samples_BN.narrow(0, first, num_here).copy_(tiles[tile].narrow(1, 0, num_here).t());
  }
  return samples_BN;
}

}  // namespace lockstep::model
