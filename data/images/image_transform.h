#pragma once

#include <string_view>
#include <vector>

#include "data/images/augment.h"
#include "data/images/pixels.h"
#include "data/images/resize.h"

namespace lockstep::data {

/// What images become.
struct ImageTarget {
  int64_t channels = 3, height = 0, width = 0;
  bool keeps_ratio = false;               ///< the middle is cut out; else the image is stretched
  bool takes_any_size = true;             ///< else files of another size are refused
  std::vector<double> means, deviations;  ///< of [0, 1], one a channel; empty: 0 and 1
};

/// Memory that is kept from one image to the next.
struct ImageScratch {
  std::vector<uint8_t> decoded, converted;
  std::vector<float> planes;
  Resizer resizer;
};

/// Makes float planes of pixels or of image files: channels, part, size, mirror, place, colours,
/// normalisation, in this order. Safe from several threads, each with a scratch of its own.
class ImageTransform {
 public:
  ImageTransform(ImageTarget target, AugmentOptions augment);

  /// out_CHW: channels x height x width floats of the target. Throws what decode_image() throws.
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
