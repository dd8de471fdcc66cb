// Every random number is a function of (seed, epoch, sample, place). So a sample looks the same on
// any rank and thread.
#include "data/images/augment.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "base/random.h"

namespace lockstep::data {
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

}  // namespace lockstep::data
