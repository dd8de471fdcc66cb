// Colours are changed in [0, 1], before the normalisation; without them one pass normalises bytes
// directly.
#include "data/images/image_transform.h"

#include <algorithm>
#include <array>

#include <fmt/format.h>

#include "data/images/decode.h"
#include "data/images/pixel_kernels.h"

namespace lockstep::data {
namespace {

/// Returns (value / 255 - mean) / deviation as one product and one sum.
Normalisation normalisation_of(const ImageTarget& target) {
  Normalisation by;
  for (size_t c = 0; c < static_cast<size_t>(target.channels); ++c) {
    const double mean = target.means.empty() ? 0 : target.means[c];
    const double deviation = target.deviations.empty() ? 1 : target.deviations[c];
    by.scales.push_back(static_cast<float>(1 / (255 * deviation)));
    by.shifts.push_back(static_cast<float>(-mean / deviation));
  }
  return by;
}

/// Returns the luma of a pixel, with the weights of grey_of_rgb().
uint8_t luma_of(unsigned red, unsigned green, unsigned blue) {
  return static_cast<uint8_t>((19595U * red + 38470U * green + 7471U * blue + 0x8000U) >> 16);
}

/// Converts to interleaved pixels with the target's channels. Grey is repeated, colours become
/// luma, a fourth channel is dropped.
Pixels converted(const Pixels& in, int64_t channels, std::vector<uint8_t>* storage) {
  const int64_t num_pixels = in.height * in.width;
  storage->resize(static_cast<size_t>(num_pixels * channels));
  const int64_t pixel_step = in.is_interleaved ? in.channels : 1;
  const int64_t channel_step = in.is_interleaved ? 1 : num_pixels;
  uint8_t* out = storage->data();
  for (int64_t i = 0; i < num_pixels; ++i) {
    const uint8_t* from = in.data + i * pixel_step;
    if (channels == 1 && in.channels >= 3)
      *out++ = luma_of(from[0], from[channel_step], from[2 * channel_step]);
    else
      for (int64_t c = 0; c < channels; ++c) *out++ = from[in.channels >= 3 ? c * channel_step : 0];
  }
  return {storage->data(), in.height, in.width, channels, true};
}

/// Normalises pixels that have the target's size.
void scale_pixels(const Pixels& in, const Normalisation& by, float* out_CHW) {
  const PixelKernels& kernels = pixel_kernels();
  const int64_t num_pixels = in.height * in.width;
  if (in.is_interleaved && in.channels == 3) {
    const std::array<float*, 3> outs{out_CHW, out_CHW + num_pixels, out_CHW + 2 * num_pixels};
    kernels.scale_3(in.data, num_pixels, by.scales.data(), by.shifts.data(), outs.data());
    return;
  }
  for (int64_t c = 0; c < in.channels; ++c)
    kernels.scale(in.data + c * num_pixels, num_pixels, by.scales[static_cast<size_t>(c)],
                  by.shifts[static_cast<size_t>(c)], out_CHW + c * num_pixels);
}

/// Shifts and mirrors planes; pixels from outside are black.
void move_planes(const float* in_CHW, const ImageTarget& target, const Draws& draws,
                 bool is_mirrored, const std::vector<float>& blacks, float* out_CHW) {
  for (int64_t c = 0; c < target.channels; ++c)
    for (int64_t y = 0; y < target.height; ++y) {
      float* const out = out_CHW + (c * target.height + y) * target.width;
      std::fill(out, out + target.width, blacks[static_cast<size_t>(c)]);
      const int64_t from_y = y + draws.shift_rows;
      if (from_y < 0 || from_y >= target.height) continue;
      const float* in = in_CHW + (c * target.height + from_y) * target.width;
      const int64_t begin = std::max(int64_t{0}, -draws.shift_columns);
      const int64_t end = std::min(target.width, target.width - draws.shift_columns);
      if (begin >= end) continue;
      std::copy(in + begin + draws.shift_columns, in + end + draws.shift_columns, out + begin);
      if (is_mirrored) std::reverse(out, out + target.width);
    }
}

/// Normalises planes of [0, 1] in place.
void normalise_planes(const ImageTarget& target, float* planes) {
  const int64_t num_pixels = target.height * target.width;
  for (int64_t c = 0; c < target.channels; ++c) {
    const auto at = static_cast<size_t>(c);
    const auto mean = static_cast<float>(target.means.empty() ? 0 : target.means[at]);
    const auto by = static_cast<float>(1 / (target.deviations.empty() ? 1 : target.deviations[at]));
    for (int64_t i = 0; i < num_pixels; ++i)
      planes[c * num_pixels + i] = (planes[c * num_pixels + i] - mean) * by;
  }
}

/// Returns the largest denominator with which the box is still at least as large as the target.
int jpeg_denominator(const Box& box, const ImageTarget& target) {
  for (const int by : {8, 4, 2})
    if ((box.bottom - box.top) / by >= static_cast<double>(target.height) &&
        (box.right - box.left) / by >= static_cast<double>(target.width))
      return by;
  return 1;
}

}  // namespace

ImageTransform::ImageTransform(ImageTarget target, AugmentOptions augment)
    : target_(std::move(target)), augment_(augment), normalisation_(normalisation_of(target_)) {
  const auto channels = static_cast<size_t>(target_.channels);
  to_unit_ = {std::vector<float>(channels, 1.0F / 255), std::vector<float>(channels, 0.0F)};
}

Box ImageTransform::box_of(int64_t height, int64_t width, const SampleRandom& random) const {
  if (augment_.random_resized_crop > 0) return random.resized_crop(height, width);
  Box box{0, 0, static_cast<double>(height), static_cast<double>(width)};
  if (!target_.keeps_ratio) return box;
  const double ratio = static_cast<double>(target_.width) / static_cast<double>(target_.height);
  const double box_height = std::min(box.bottom, box.right / ratio), box_width = box_height * ratio;
  box.top = (box.bottom - box_height) / 2;
  box.left = (box.right - box_width) / 2;
  return {box.top, box.left, box.top + box_height, box.left + box_width};
}

void ImageTransform::from_file(std::string_view file, const SampleRandom& random,
                               ImageScratch* scratch, float* out_CHW) const {
  const ImageHeader header = read_image_header(file);
  if (!target_.takes_any_size && (header.height != target_.height || header.width != target_.width))
    refuse_image(fmt::format("has {} x {} pixels, the first image {} x {}; give image_size",
                             header.width, header.height, target_.width, target_.height));
  Box box = box_of(header.height, header.width, random);
  const int by = header.format == ImageFormat::kJpeg ? jpeg_denominator(box, target_) : 1;
  const Pixels pixels = decode_image(file, header, target_.channels, by, &scratch->decoded);
  box = {box.top / by, box.left / by, box.bottom / by,
         box.right / by};  // the codec rounds sizes up
  finish(pixels, box, random, scratch, out_CHW);
}

void ImageTransform::from_pixels(const Pixels& pixels, const SampleRandom& random,
                                 ImageScratch* scratch, float* out_CHW) const {
  finish(pixels, box_of(pixels.height, pixels.width, random), random, scratch, out_CHW);
}

void ImageTransform::finish(const Pixels& pixels, const Box& box, const SampleRandom& random,
                            ImageScratch* scratch, float* out_CHW) const {
  const Draws draws = random.draws();
  const bool colours = augment_.changes_colours();
  // Colours need values in [0, 1]; without them one pass normalises the bytes.
  const Normalisation& by = colours ? to_unit_ : normalisation_;
  const bool fits =
      pixels.height == target_.height && pixels.width == target_.width &&
      box == Box{0, 0, static_cast<double>(pixels.height), static_cast<double>(pixels.width)};
  // Without a resize the mirror happens while shifting; a resize mirrors by its weights.
  const bool is_mirrored_late = draws.is_mirrored && fits;
  const bool moves = is_mirrored_late || draws.shift_rows != 0 || draws.shift_columns != 0;
  const int64_t num_pixels = target_.height * target_.width;
  if (moves) scratch->planes.resize(static_cast<size_t>(target_.channels * num_pixels));
  float* const placed = moves ? scratch->planes.data() : out_CHW;

  const bool has_channels = pixels.channels == target_.channels;
  // scale_pixels() reads planes or interleaved RGB; the resizer needs interleaved pixels.
  const Pixels fitting = has_channels && (fits || pixels.is_interleaved || pixels.channels == 1)
                             ? pixels
                             : converted(pixels, target_.channels, &scratch->converted);
  if (fits)
    scale_pixels(fitting, by, placed);
  else
    scratch->resizer.resize(fitting, box, draws.is_mirrored, by, target_.height, target_.width,
                            placed);
  if (moves) move_planes(placed, target_, draws, is_mirrored_late, by.shifts, out_CHW);
  if (!colours) return;
  change_colours(draws, target_.channels, num_pixels, out_CHW);
  normalise_planes(target_, out_CHW);
}

}  // namespace lockstep::data
