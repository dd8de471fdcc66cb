#pragma once

#include <array>
#include <cstdint>

#include "base/simd/simd.h"

/// Kernels of quantized layers. An item of activations is a quad: the bytes of four channels at one
/// pixel, the first one lowest.
namespace lockstep::infer {

/// Rounding of values to bytes: round(value / scale) + zero, at least 0 and at most 255.
struct Rounding {
  float scale = 1;
  int32_t zero = 0;
  bool is_signed = false;  ///< ONNX has int8: quads have each byte and the zero 128 higher

  bool operator==(const Rounding&) const = default;
};

/// One layer with int8 weights. Four rows after each other are the channels of a quad of outputs.
/// Row o computes channel channels_O[o] from the weights begins_O[o] up to the next begin. The four
/// bytes of weight k multiply those of the quad at offsets_K[k].
///
/// A sum is multiplied by factors_O of its channel, and bias_O is added. Then
/// inner_rounding rounds the value if it is not null. The residual is added, and the result is
/// clamped. It is rounded if `bytes` is not null.
struct QuadWork {
  const int64_t* begins_O = nullptr;
  const int32_t* channels_O = nullptr;  ///< num_channels and more: no such output
  int64_t num_channels = 0;
  const int32_t* offsets_K = nullptr;
  const int32_t* weights_K = nullptr;
  const float* factors_O = nullptr;
  const float* bias_O = nullptr;
  const uint32_t* inputs = nullptr;  ///< first pixel of the first quad
  const Rounding* inner_rounding = nullptr;
  const float* residual = nullptr;           ///< laid out as the outputs; null: none
  const uint32_t* residual_bytes = nullptr;  ///< the same in quads, rounded by residual_rounding
  Rounding residual_rounding{};
  float low = 0, high = 0;         ///< outputs are clamped to these
  float* outputs = nullptr;        ///< first pixel of the first channel; null: not stored
  uint32_t* bytes = nullptr;       ///< the outputs in quads; null: not stored
  Rounding output_rounding{};      ///< of `bytes`
  int64_t output_stride = 0;       ///< items from a channel to the next, and from quad to quad
  const uint32_t* mask = nullptr;  ///< all bits set for each pixel, none for padding between them
};

struct QuadKernels {
  /// Computes the pixels begin_P to end_P (a multiple of 16 more) of the rows begin_O to end_O,
  /// multiples of four.
  void (*pixels)(const QuadWork& work, int64_t begin_O, int64_t end_O, int64_t begin_P,
                 int64_t end_P);
  /// Computes the rows for one pixel. Channels, and quads, are next to each other.
  void (*sample)(const QuadWork& work, int64_t begin_O, int64_t end_O);
  /// Rounds n pixels of four channels.
  void (*round)(const std::array<const float*, 4>& from, int64_t n, const Rounding& rounding,
                uint32_t* to);
  /// Rounds n values to bytes next to each other.
  void (*round_bytes)(const float* from, int64_t n, const Rounding& rounding, uint8_t* to);
  /// Computes the values of n quads, for the first num_channels of their channels.
  void (*restore)(const uint32_t* from, int64_t n, const Rounding& rounding, int64_t num_channels,
                  const std::array<float*, 4>& to);
};

/// Returns the kernels of a path that simd_paths() lists.
const QuadKernels& quad_kernels(SimdPath path);

}  // namespace lockstep::infer
