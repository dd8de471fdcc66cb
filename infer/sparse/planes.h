#pragma once

#include <cstdint>
#include <optional>

#include <ATen/core/Tensor.h>

#include "infer/sparse/arena.h"

/// Layout of activations for products with kept weights.
namespace lockstep::infer {

/// Images [N, C, H, W] stored channel by channel: each channel is one plane, in which all images
/// follow each other. Zeros after each row and after each image, which layers write that need them,
/// are the padding of both neighbours.
/// So a tap of a convolution is a fixed offset within the storage, and all pixels of a channel are
/// one vector. The inputs of a linear layer [B, I] are I channels of one image of 1 x B.
///
/// Items per channel: `lead` zeros, then the images, then zeros up to `stride`.
struct Planes {
  int64_t num_images = 1, height = 1, width = 1;
  int64_t row = 1;     ///< items from a row to the next
  int64_t image = 1;   ///< items from an image to the next
  int64_t lead = 0;    ///< zeros before the first pixel, a multiple of kAlign
  int64_t stride = 0;  ///< items from a channel to the next, a multiple of kAlign

  static constexpr int64_t kAlign = 16;  ///< items in 64 bytes

  /// Returns the layout with at least these zeros around each image.
  static Planes make(int64_t num_images, at::IntArrayRef height_width, at::IntArrayRef padding);

  bool operator==(const Planes&) const = default;
  /// Zeros after each row, and zero rows after each image.
  int64_t zero_columns() const { return row - width; }
  int64_t zero_rows() const { return image / row - height; }
  /// Items from the first pixel to the end of the last.
  int64_t extent() const { return (num_images - 1) * image + (height - 1) * row + width; }

  /// Allocates channels of float32, or of quads as int32. Returns the view [N, C, H, W]. Pixels are
  /// undefined, and the padding stays so until pad(). Items between rows and images, and the rest
  /// of the last vector, get the bits `between`; without them they are undefined: kernels write
  /// them.
  at::Tensor allocate(int64_t num_channels, std::optional<int32_t> between, at::ScalarType dtype,
                      Arena* arena) const;
  /// Writes the items before the first and after the last pixel of each channel of such a view.
  void pad(const at::Tensor& channels, int32_t bits) const;
};

/// Copies pixels [N, C, H, W] of 4 bytes between any two layouts, with ATen's threads.
void copy_pixels(const at::Tensor& from, const at::Tensor& to);

}  // namespace lockstep::infer
