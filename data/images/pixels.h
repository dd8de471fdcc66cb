#pragma once

#include <cstdint>
#include <vector>

namespace lockstep::data {

/// View of one image's uint8 pixels, owned by somebody else.
struct Pixels {
  const uint8_t* data = nullptr;
  int64_t height = 0, width = 0, channels = 0;
  bool is_interleaved = true;  ///< [H, W, C]; else [C, H, W]
};

/// Normalisation of a pixel: value * scale + shift, both of its channel; rounded twice.
struct Normalisation {
  std::vector<float> scales, shifts;
};

}  // namespace lockstep::data
