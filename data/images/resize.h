#pragma once

#include <cstdint>
#include <vector>

#include "data/images/pixel_kernels.h"

namespace lockstep::data {

/// Part of an image in pixels; edges may be inside pixels.
struct Box {
  double top = 0, left = 0, bottom = 0, right = 0;
  bool operator==(const Box& other) const = default;
};

/// Returns the weights of a triangle filter, as PIL's BILINEAR and torchvision's with antialias.
/// Its width follows the scale, so that no input is skipped if an image shrinks. Reads [begin, end)
/// of an axis of in_size pixels. `mirrored`: outputs are in reverse order.
Taps triangle_taps(int64_t in_size, double begin, double end, int64_t out_size, bool mirrored);

/// Inputs of an axis that at least one output reads.
struct TapRange {
  int64_t first = 0, last = 0;
};

/// Normalises interleaved pixels of one or three channels and resizes them. Keeps memory and
/// weights between calls. One thread at a time.
class Resizer {
 public:
  /// Writes out_CHW, channels x height x width floats.
  void resize(const Pixels& in, const Box& box, bool mirrored, const Normalisation& by,
              int64_t height, int64_t width, float* out_CHW);

 private:
  struct Axis {
    int64_t in_size = 0, out_size = 0;
    double begin = 0, end = 0;
    bool mirrored = false;
    bool operator==(const Axis& other) const = default;
  };
  struct KnownTaps {
    Axis axis;
    Taps taps;
  };
  static const Taps& taps_of(const Axis& axis, KnownTaps* known);
  /// Computes output row `row` at the input's columns into blended_.
  void blend_rows(const Pixels& in, const Taps& taps, const ChannelNumbers& by, int64_t row,
                  const TapRange& columns);

  KnownTaps rows_, columns_;
  int64_t num_converted_ = 0;  // leading rows of the image converted so far
  AlignedFloats converted_;  // the last num_taps of them, normalised: row r is in slot r % num_taps
  std::vector<const float*> row_taps_;  // rows that one output row reads
  AlignedFloats blended_;               // one row of output, columns of input
};

}  // namespace lockstep::data
