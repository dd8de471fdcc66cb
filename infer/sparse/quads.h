#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>

#include <ATen/core/Tensor.h>

#include "infer/sparse/planes.h"
#include "infer/sparse/quad_kernels.h"

/// Activations of layers, as values or rounded to bytes.
namespace lockstep::infer {

/// Activations: a tensor, which may be a view of planes.
///
/// Rounded ones are quads: int32 [N, ceil(C / 4), H, W] in planes, or [..., ceil(I / 4)], each the
/// bytes of four channels. Channels that are missing at the end have any bytes.
struct Activations {
  at::Tensor tensor;               ///< [N, C, H, W], [B, I] or any other shape
  std::optional<Planes> planes{};  ///< the tensor is a view of this layout
  std::optional<Rounding> rounding{};
  int64_t num_channels = 0;  ///< of quads
  bool may_change = false;   ///< a residual that no later operation reads

  /// Returns a contiguous tensor, of quads the bytes as ONNX has them. A view of planes is copied.
  at::Tensor contiguous() const;
};

/// State that the layers of a network share. Not thread-safe.
struct Workspace {
  /// Zero rows and columns that layers need around images, by height and width.
  std::map<std::array<int64_t, 2>, std::array<int64_t, 2>> paddings;
  Arena arena;
};

constexpr int64_t kBytesOfQuad = 4;
/// Returns the number of quads of as many channels.
constexpr int64_t num_quads(int64_t num_channels) {
  return (num_channels + kBytesOfQuad - 1) / kBytesOfQuad;
}
/// Returns quads with the bits of the value 0.
int32_t zero_quad(const Rounding& rounding);
/// Rounds values. Images [N, C, H, W] get planes. Of others, the last axis are the channels.
Activations rounded(const Activations& values, const Rounding& rounding, Workspace* workspace);
/// Returns quads of a contiguous tensor of bytes, as ONNX has them. Images get planes, unless
/// `is_linear`: then the last axis are the channels.
Activations packed(const at::Tensor& bytes, const Rounding& rounding, bool is_linear,
                   Workspace* workspace);
/// Returns the values of quads, float32, images in planes of the same layout.
Activations restored(const Activations& quads, Workspace* workspace);

}  // namespace lockstep::infer
