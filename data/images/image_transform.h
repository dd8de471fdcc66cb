#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "data/images/pixel_kernels.h"
#include "data/images/resize.h"

/// Conversion of images to float planes, with random changes for training.
namespace lockstep::data {

/// Random changes of training images. 0 means none.
struct AugmentOptions {
  int64_t seed = 0;
  int64_t random_crop = 0;         ///< largest shift in pixels, to each side
  double random_resized_crop = 0;  ///< smallest share of the area that is cut out and resized
  double horizontal_flip = 0;      ///< probability
  double brightness = 0, contrast = 0, saturation = 0;  ///< factors are in 1 - x to 1 + x
  double mixup = 0;  ///< alpha of the Beta distribution of a mix's share

  bool changes_colours() const { return brightness > 0 || contrast > 0 || saturation > 0; }
};

/// Random draws for one sample of one epoch, a pure function of (seed, epoch, sample). Each change
/// has its own draws, so switching one on changes no other.
struct Draws {
  bool is_mirrored = false;
  int64_t shift_rows = 0,
          shift_columns = 0;  ///< output (y, x) comes from (y + rows, x + columns)
  float brightness = 1, contrast = 1, saturation = 1;
};

class SampleRandom {
 public:
  SampleRandom(const AugmentOptions& options, int64_t epoch, int64_t sample);

  Draws draws() const;
  /// Returns a random part of an image. Area and aspect ratio (3:4 to 4:3) are drawn as in
  /// torchvision's RandomResizedCrop.
  Box resized_crop(int64_t height, int64_t width) const;
  /// Partner for mixup, and the partner's share.
  int64_t mixup_partner(int64_t num_samples) const;
  double mixup_share() const;

 private:
  double uniform(uint64_t place) const;
  int64_t shift(uint64_t place) const;
  float factor(uint64_t place, double width) const;
  double gamma(uint64_t first_place, double shape) const;

  const AugmentOptions& options_;
  int64_t epoch_, sample_;
};

/// Changes planes of [0, 1] in place: brightness, then contrast (around the mean of the grey
/// image), then saturation. Each result is clipped to [0, 1].
void change_colours(const Draws& draws, int64_t channels, int64_t num_pixels, float* planes);

/// Target form of images.
struct ImageTarget {
  int64_t channels = 3, height = 0, width = 0;
  bool keeps_ratio = false;               ///< crop the middle; otherwise the image is stretched
  bool takes_any_size = true;             ///< otherwise files of another size are refused
  std::vector<double> means, deviations;  ///< of [0, 1], one per channel; empty: 0 and 1
};

/// Memory that is reused from one image to the next.
struct ImageScratch {
  std::vector<uint8_t> decoded, converted;
  std::vector<float> planes;
  Resizer resizer;
};

/// Converts pixels or image files to float planes. The order is channels, crop, size, mirror,
/// shift, colours, normalisation. Thread-safe, with one scratch per thread.
class ImageTransform {
 public:
  ImageTransform(ImageTarget target, AugmentOptions augment);

  /// Writes out_CHW, channels x height x width floats of the target. Throws as decode_image().
  void from_file(std::string_view file, const SampleRandom& random, ImageScratch* scratch,
                 float* out_CHW) const;
  void from_pixels(const Pixels& pixels, const SampleRandom& random, ImageScratch* scratch,
                   float* out_CHW) const;

  const ImageTarget& target() const { return target_; }

 private:
  Box box_of(int64_t height, int64_t width, const SampleRandom& random) const;
  void finish(const Pixels& pixels, const Box& box, const SampleRandom& random,
              ImageScratch* scratch, float* out_CHW) const;

  ImageTarget target_;
  AugmentOptions augment_;
  Normalisation normalisation_;  ///< of bytes
  Normalisation to_unit_;        ///< bytes to [0, 1]
};

}  // namespace lockstep::data
