#pragma once

#include <array>
#include <cstdint>
#include <new>
#include <vector>

#include "base/bits/simd.h"
#include "data/images/pixels.h"

namespace lockstep::data {

/// Begins at a cache line, so that a load of a whole vector touches one line.
template <typename Item>
struct LineAllocator {
  using value_type = Item;
  static constexpr std::align_val_t kLine{64};

  Item* allocate(size_t num_items) {
    return static_cast<Item*>(::operator new(num_items * sizeof(Item), kLine));
  }
  void deallocate(Item* items, size_t) { ::operator delete(items, kLine); }
  bool operator==(const LineAllocator&) const = default;
};
using AlignedFloats = std::vector<float, LineAllocator<float>>;

/// Weights of one axis of a resize: output x is the sum over k < num_taps of weights[x * num_taps +
/// k] * input[firsts[x] + k]. Behind an output's last input its weights are 0, and what is read
/// there is of no account.
struct Taps {
  int64_t num_taps = 0;
  std::vector<int32_t> firsts;
  std::vector<float> weights;
  /// The weights of two inputs side by side, for pixels of three channels: w0 w0 w0 w1 w1 w1 0 0.
  /// Outputs are taken two at a time: pairs[x / 2][pair][x % 2][8].
  AlignedFloats pairs;

  int64_t num_pairs() const { return (num_taps + 1) / 2; }
};

/// The scales and shifts of one or three channels, in turn, as many as fill whole vectors.
struct ChannelNumbers {
  static constexpr int64_t kNum = 48;
  alignas(64) std::array<float, kNum> scales, shifts;

  explicit ChannelNumbers(const Normalisation& by) {
    for (size_t i = 0; i < kNum; ++i) {
      scales[i] = by.scales[i % by.scales.size()];
      shifts[i] = by.shifts[i % by.shifts.size()];
    }
  }
};

/// One implementation of the loops over pixels. Results are the same bits on every path.
struct PixelKernels {
  /// out[i] = in[i] * scale + shift
  void (*scale)(const uint8_t* in, int64_t num, float scale, float shift, float* out);
  /// The same for interleaved channels, each by its own numbers.
  void (*scale_in_turn)(const uint8_t* in, int64_t num, const ChannelNumbers& by, float* out);
  /// The same for pixels of three channels, each channel to its own row.
  void (*scale_3)(const uint8_t* in, int64_t num_pixels, const float* scales, const float* shifts,
                  float* const* outs);
  /// out[i] = the sum over k < num_rows of weights[k] * rows[k][i].
  void (*blend_rows)(const float* const* rows, const float* weights, int64_t num_rows, int64_t num,
                     float* out);
  /// One row of num_out values; `in` has num_taps readable floats behind its last.
  void (*columns_1)(const float* in, const Taps& taps, int64_t num_out, float* out);
  /// The same for interleaved pixels of three channels, each to its own row; 3 * num_taps + 5
  /// readable floats.
  void (*columns_3)(const float* in, const Taps& taps, int64_t num_out, float* const* outs);
};

/// Of the fastest path of this machine, or of another that simd_paths() lists.
const PixelKernels& pixel_kernels(SimdPath path = fastest_simd_path());

const PixelKernels& portable_pixel_kernels();
const PixelKernels& avx2_pixel_kernels();
const PixelKernels& avx512_pixel_kernels();

}  // namespace lockstep::data
