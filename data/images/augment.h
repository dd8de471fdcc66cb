#pragma once

#include <cstdint>

#include "data/images/resize.h"

namespace lockstep::data {

/// What is changed at random in training images. 0: not at all.
struct AugmentOptions {
  int64_t seed = 0;
  int64_t random_crop = 0;         ///< pixels that the image moves at most, to each side
  double random_resized_crop = 0;  ///< least part of the area that is cut out and resized
  double horizontal_flip = 0;      ///< probability
  double brightness = 0, contrast = 0, saturation = 0;  ///< factors lie in 1 - x to 1 + x
  double mixup = 0;  ///< alpha of the Beta distribution of a mix's share

  bool changes_colours() const { return brightness > 0 || contrast > 0 || saturation > 0; }
};

/// What was drawn for one sample of one epoch: a pure function of (seed, epoch, sample). Each part
/// has draws of its own, so that switching one on changes no other.
struct Draws {
  bool is_mirrored = false;
  int64_t shift_rows = 0,
          shift_columns = 0;  ///< output (y, x) is what lay at (y + rows, x + columns)
  float brightness = 1, contrast = 1, saturation = 1;
};

class SampleRandom {
 public:
  SampleRandom(const AugmentOptions& options, int64_t epoch, int64_t sample);

  Draws draws() const;
  /// A part of an image: its area and ratio of sides (3:4 to 4:3) as torchvision's
  /// RandomResizedCrop draws them.
  Box resized_crop(int64_t height, int64_t width) const;
  /// With whom it is mixed, and the other's share.
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

/// Changes planes of [0, 1] in place: brightness, then contrast (about the mean of the grey image),
/// then saturation, each cut to [0, 1].
void change_colours(const Draws& draws, int64_t channels, int64_t num_pixels, float* planes);

}  // namespace lockstep::data
