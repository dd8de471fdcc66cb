#include "model/networks/images.h"

#include <fmt/format.h>

namespace lockstep::model {
namespace {

/// True for grey or RGB images, which may have their channels last.
bool is_few(int64_t channels) { return channels == 1 || channels == 3; }

}  // namespace

ImageShape require_images(const ModelInputs& data, const std::string& type, int64_t least_extent,
                          bool may_be_last) {
  const std::vector<int64_t>& shape = data.input_shape;
  ImageShape image;
  const bool fits = shape.size() == 3 && data.input_dtype == at::kFloat;
  // Ambiguous shapes such as [3, 3, 3] count as channels first.
  if (fits && may_be_last && !is_few(shape[0]) && is_few(shape[2]))
    image = {.channels = shape[2], .rows = shape[0], .columns = shape[1], .channels_last = true};
  else if (fits)
    image = {.channels = shape[0], .rows = shape[1], .columns = shape[2]};
  require_fit(
      image.channels > 0 && image.rows >= least_extent && image.columns >= least_extent, type,
      fmt::format("images [channels, rows, columns]{} of at least {}x{}, not tokens",
                  may_be_last ? " or [rows, columns, channels]" : "", least_extent, least_extent),
      data);
  return image;
}

at::Tensor channels_first(const at::Tensor& inputs_BX, const ImageShape& image) {
  return image.channels_last ? inputs_BX.permute({0, 3, 1, 2}) : inputs_BX;
}

}  // namespace lockstep::model
