#pragma once

#include <array>
#include <cstdint>
#include <new>
#include <vector>

#include "base/simd/simd.h"

/// Loops over pixels with one implementation for each SIMD path, and the types that they use.
namespace lockstep::data {

/// View of one image's uint8 pixels, owned by somebody else.
struct Pixels {
  const uint8_t* data = nullptr;
  int64_t height = 0, width = 0, channels = 0;
  bool is_interleaved = true;  ///< [H, W, C]; else [C, H, W]
};

/// Normalisation of a pixel: value * scale + shift, both of its channel; rounded twice.
struct Normalisation {
  std::vector<float> scales, shifts;
};

/// Allocator of cache-line alignment, so that loading a whole vector touches one line.
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

/// Weights of one axis of a resize. Output x is the sum over k < num_taps of weights[x * num_taps +
/// k] * input[firsts[x] + k]. After an output's last input its weights are 0, and the values there
/// do not matter.
struct Taps {
  int64_t num_taps = 0;
  std::vector<int32_t> firsts;
  std::vector<float> weights;
  /// Weights of two adjacent inputs for pixels of three channels: w0 w0 w0 w1 w1 w1 0 0. Outputs
  /// are taken two at a time: pairs[x / 2][pair][x % 2][8].
  AlignedFloats pairs;

  int64_t num_pairs() const { return (num_taps + 1) / 2; }
};

/// Scales and shifts of one or three channels, repeated until they fill whole vectors.
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

/// One implementation of the pixel loops. All implementations give the same bits.
struct PixelKernels {
  /// Computes out[i] = in[i] * scale + shift.
  void (*scale)(const uint8_t* in, int64_t num, float scale, float shift, float* out);
  /// Computes the same for interleaved channels, each with its own numbers.
  void (*scale_in_turn)(const uint8_t* in, int64_t num, const ChannelNumbers& by, float* out);
  /// Computes the same for pixels of three channels, each channel to its own row.
  void (*scale_3)(const uint8_t* in, int64_t num_pixels, const float* scales, const float* shifts,
                  float* const* outs);
  /// Computes out[i] = the sum over k < num_rows of weights[k] * rows[k][i].
  void (*blend_rows)(const float* const* rows, const float* weights, int64_t num_rows, int64_t num,
                     float* out);
  /// Computes one row of num_out values; `in` must have num_taps readable floats after its last.
  void (*columns_1)(const float* in, const Taps& taps, int64_t num_out, float* out);
  /// Computes the same for interleaved pixels of three channels, each to its own row. `in` must
  /// have 3 * num_taps + 5 readable floats after its last.
  void (*columns_3)(const float* in, const Taps& taps, int64_t num_out, float* const* outs);
};

/// Returns the kernels of the fastest path of this machine, or of another from simd_paths().
const PixelKernels& pixel_kernels(SimdPath path = fastest_simd_path());

}  // namespace lockstep::data
