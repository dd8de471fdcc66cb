#pragma once

#include <string_view>
#include <vector>

#include "data/images/augment.h"
#include "data/images/pixels.h"
#include "data/images/resize.h"

namespace lockstep::data {

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

  /// Writes out_CHW, channels x height x width floats of the target. Throws what decode_image()
  /// throws.
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
