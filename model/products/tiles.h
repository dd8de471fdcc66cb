#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>

namespace lockstep::model {

/// Samples that stand side by side in memory, T of them: a matrix [B, N] of samples is walked in
/// tiles [N, T], the last one with zeros behind the samples.
struct Tiles {
  const float* items = nullptr;  ///< [tiles, N, T]
  int64_t num_tiles = 0;
  int64_t width_T = 0;
};

/// 8, 16 or 32: the least that holds all samples, or 32.
int64_t tile_width(int64_t num_samples);

/// [B, N] -> [tiles, N, T], float32 on the CPU.
at::Tensor tiled(const at::Tensor& samples_BN, int64_t width_T);
/// The inverse.
at::Tensor untiled(const at::Tensor& tiles, int64_t num_samples);

/// [N, T] of one tile.
inline float* data_of(const at::Tensor& tiles, int64_t tile) {
  return tiles.mutable_data_ptr<float>() + tile * tiles.size(1) * tiles.size(2);
}
inline Tiles view_of(const at::Tensor& tiles) {
  return {tiles.const_data_ptr<float>(), tiles.size(0), tiles.size(2)};
}

}  // namespace lockstep::model
