// Conversion of images to float planes, with random changes for training.
#include "data/images/image_transform.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numbers>

#include <fmt/format.h>

#include "base/random.h"
#include "data/images/decode.h"

namespace lockstep::data {

// Random changes: every random number is a function of (seed, epoch, sample, place). So a sample
// looks the same on any rank and thread.

namespace {

/// Stream of the random numbers of augmentation.
constexpr int64_t kAugmentStream = 11;

/// Counter values of the draws. The two that need an unknown number of draws come last.
enum Place : uint64_t {
  kFlip,
  kShiftRows,
  kShiftColumns,
  kBrightness,
  kContrast,
  kSaturation,
  kPartner,
  kResizedCrop = 100,  // 4 per try
  kFirstGamma = 1000,
  kSecondGamma = 2000,
};

constexpr int kNumTries = 10;

/// Returns the largest centered box with an aspect ratio from 3:4 to 4:3.
Box central_box(double height, double width) {
  const double ratio = std::clamp(width / height, 3.0 / 4, 4.0 / 3);
  const double box_height = std::min(height, width / ratio), box_width = box_height * ratio;
  const double top = (height - box_height) / 2, left = (width - box_width) / 2;
  return {top, left, top + box_height, left + box_width};
}

// ITU-R BT.601 luma.
float grey_of(const float* planes, int64_t num_pixels, int64_t i) {
  return 0.299F * planes[i] + 0.587F * planes[i + num_pixels] + 0.114F * planes[i + 2 * num_pixels];
}

/// Returns base + (value - base) * by, clipped to [0, 1].
float stretched(float value, float base, float by) {
  return std::clamp(base + (value - base) * by, 0.0F, 1.0F);
}

/// Returns the mean luma of an image.
float mean_grey(int64_t channels, int64_t num_pixels, const float* planes) {
  double sum = 0;
  for (int64_t i = 0; i < num_pixels; ++i)
    sum += channels == 3 ? grey_of(planes, num_pixels, i) : planes[i];
  return static_cast<float>(sum / static_cast<double>(num_pixels));
}

}  // namespace

SampleRandom::SampleRandom(const AugmentOptions& options, int64_t epoch, int64_t sample)
    : options_(options), epoch_(epoch), sample_(sample) {}

double SampleRandom::uniform(uint64_t place) const {
  return CounterRandom{options_.seed, kAugmentStream, epoch_, sample_}.uniform(place);
}

float SampleRandom::factor(uint64_t place, double width) const {
  return width > 0 ? static_cast<float>(1 + width * (2 * uniform(place) - 1)) : 1.0F;
}

int64_t SampleRandom::shift(uint64_t place) const {
  if (options_.random_crop == 0) return 0;
  const auto num_places = static_cast<double>(2 * options_.random_crop + 1);
  return static_cast<int64_t>(uniform(place) * num_places) - options_.random_crop;
}

Draws SampleRandom::draws() const {
  return {.is_mirrored = options_.horizontal_flip > 0 && uniform(kFlip) < options_.horizontal_flip,
          .shift_rows = shift(kShiftRows),
          .shift_columns = shift(kShiftColumns),
          .brightness = factor(kBrightness, options_.brightness),
          .contrast = factor(kContrast, options_.contrast),
          .saturation = factor(kSaturation, options_.saturation)};
}

Box SampleRandom::resized_crop(int64_t height, int64_t width) const {
  const auto rows = static_cast<double>(height), columns = static_cast<double>(width);
  // As torchvision: 10 tries, then the central box.
  for (uint64_t at = kResizedCrop; at < kResizedCrop + 4 * kNumTries; at += 4) {
    const double least = options_.random_resized_crop;
    const double area = rows * columns * (least + (1 - least) * uniform(at));
    const double ratio = std::exp(std::log(4.0 / 3) * (2 * uniform(at + 1) - 1));
    const double box_width = std::round(std::sqrt(area * ratio));
    const double box_height = std::round(std::sqrt(area / ratio));
    if (box_width < 1 || box_height < 1 || box_width > columns || box_height > rows) continue;
    const double top = std::floor(uniform(at + 2) * (rows - box_height + 1));
    const double left = std::floor(uniform(at + 3) * (columns - box_width + 1));
    return {top, left, top + box_height, left + box_width};
  }
  return central_box(rows, columns);
}

int64_t SampleRandom::mixup_partner(int64_t num_samples) const {
  // uniform() is below 1, but the product may round up to num_samples.
  return std::min(num_samples - 1,
                  static_cast<int64_t>(uniform(kPartner) * static_cast<double>(num_samples)));
}

/// Returns a Gamma variate. Marsaglia and Tsang's method for shapes from 1 on. Below, the usual
/// boost by a power of a uniform number.
double SampleRandom::gamma(uint64_t first_place, double shape) const {
  if (shape < 1)
    return gamma(first_place + 1, shape + 1) * std::pow(1 - uniform(first_place), 1 / shape);
  const double d = shape - 1.0 / 3, c = 1 / std::sqrt(9 * d);
  for (uint64_t at = first_place;; at += 3) {
    // Box-Muller: one normal number of two uniform ones.
    const double radius = std::sqrt(-2 * std::log(1 - uniform(at)));
    const double normal = radius * std::cos(2 * std::numbers::pi * uniform(at + 1));
    const double v = std::pow(1 + c * normal, 3);
    if (v > 0 && std::log(1 - uniform(at + 2)) < normal * normal / 2 + d - d * v + d * std::log(v))
      return d * v;
  }
}

double SampleRandom::mixup_share() const {
  // A Beta variate is the share of one of two Gamma variates.
  const double a = gamma(kFirstGamma, options_.mixup), b = gamma(kSecondGamma, options_.mixup);
  return a + b > 0 ? a / (a + b) : 0.5;  // both round to 0 for a tiny alpha
}

void change_colours(const Draws& draws, int64_t channels, int64_t num_pixels, float* planes) {
  const int64_t num = channels * num_pixels;
  if (draws.brightness != 1)
    for (int64_t i = 0; i < num; ++i) planes[i] = stretched(planes[i], 0, draws.brightness);
  if (draws.contrast != 1) {
    const float mean = mean_grey(channels, num_pixels, planes);
    for (int64_t i = 0; i < num; ++i) planes[i] = stretched(planes[i], mean, draws.contrast);
  }
  if (draws.saturation == 1 || channels != 3) return;
  for (int64_t i = 0; i < num_pixels; ++i) {
    const float grey = grey_of(planes, num_pixels, i);
    for (int64_t c = 0; c < 3; ++c)
      planes[c * num_pixels + i] = stretched(planes[c * num_pixels + i], grey, draws.saturation);
  }
}

// ImageTransform: colours are changed in [0, 1], before the normalisation; without them one pass
// normalises bytes directly.

/// Returns (value / 255 - mean) / deviation as one product and one sum.
static Normalisation normalisation_of(const ImageTarget& target) {
  Normalisation by;
  for (size_t c = 0; c < static_cast<size_t>(target.channels); ++c) {
    const double mean = target.means.empty() ? 0 : target.means[c];
    const double deviation = target.deviations.empty() ? 1 : target.deviations[c];
    by.scales.push_back(static_cast<float>(1 / (255 * deviation)));
    by.shifts.push_back(static_cast<float>(-mean / deviation));
  }
  return by;
}

/// Converts to interleaved pixels with the target's channels. Grey is repeated, colours become
/// luma, a fourth channel is dropped.
static Pixels converted(const Pixels& in, int64_t channels, std::vector<uint8_t>* storage) {
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
static void scale_pixels(const Pixels& in, const Normalisation& by, float* out_CHW) {
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
static void move_planes(const float* in_CHW, const ImageTarget& target, const Draws& draws,
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
static void normalise_planes(const ImageTarget& target, float* planes) {
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
static int jpeg_denominator(const Box& box, const ImageTarget& target) {
  for (const int by : {8, 4, 2})
    if ((box.bottom - box.top) / by >= static_cast<double>(target.height) &&
        (box.right - box.left) / by >= static_cast<double>(target.width))
      return by;
  return 1;
}

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
