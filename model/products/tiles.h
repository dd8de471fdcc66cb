#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>

namespace lockstep::model {

/// Tiles of T samples. A matrix [B, N] of samples is stored as tiles [N, T]. So T samples of an
/// element are next to each other in memory. The last tile is padded with zeros.
struct Tiles {
  const float* items = nullptr;  ///< [tiles, N, T]
  int64_t num_tiles = 0;
  int64_t width_T = 0;
};

/// Returns the smallest of 8, 16 and 32 that holds all samples, or 32.
int64_t tile_width(int64_t num_samples);

/// Converts [B, N] to [tiles, N, T], float32 on the CPU.
at::Tensor tiled(const at::Tensor& samples_BN, int64_t width_T);
/// Converts [tiles, N, T] back to [B, N].
at::Tensor untiled(const at::Tensor& tiles, int64_t num_samples);

/// Returns the elements [N, T] of one tile.
inline float* data_of(const at::Tensor& tiles, int64_t tile) {
  return tiles.mutable_data_ptr<float>() + tile * tiles.size(1) * tiles.size(2);
}
inline Tiles view_of(const at::Tensor& tiles) {
  return {tiles.const_data_ptr<float>(), tiles.size(0), tiles.size(2)};
}

}  // namespace lockstep::model
