#pragma once

#include <cstdint>
#include <string>

#include "model/networks/model_table.h"

namespace lockstep::model {

/// Shape of the images that a network is built for.
struct ImageShape {
  int64_t channels = 0, rows = 0, columns = 0;
  bool channels_last = false;  ///< [rows, columns, channels] in the data
};

/// Returns the shape of the data's images: [channels, rows, columns], or [rows, columns, 1 or 3] if
/// `may_be_last`. Throws require_fit()'s Error unless inputs are float images of at least
/// `least_extent` rows and columns. The text is like "resnet18 takes images [channels, rows,
/// columns] of ...".
ImageShape require_images(const ModelInputs& data, const std::string& type, int64_t least_extent,
                          bool may_be_last = false);

/// Permutes [B, H, W, C] to [B, C, H, W] if the data has its channels last.
at::Tensor channels_first(const at::Tensor& inputs_BX, const ImageShape& image);

}  // namespace lockstep::model
