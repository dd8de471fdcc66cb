#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <variant>
#include <vector>

/// Values in an event file besides points of curves.
namespace lockstep::metrics {

/// Distribution of values: counts[i] of them are in [limits[i - 1], limits[i]).
struct HistogramSummary {
  double min = 0, max = 0, num = 0, sum = 0, sum_squares = 0;
  std::vector<double> limits, counts;  ///< equal lengths, limits ascending
};
/// Computes the histogram with TensorFlow's limits: +-1e-12 times powers of 1.1. Empty buckets at
/// both ends and values that are not finite are omitted.
HistogramSummary histogram_of(std::span<const float> values);

struct ImageSummary {
  int64_t height = 0, width = 0;
  int num_channels = 0;  ///< 1: grey, 3: RGB, 4: RGBA
  std::string png;
};
/// Encodes an image. `pixels_HWC`: one byte per value, row by row. Throws Error(kBug) for sizes
/// that do not fit.
ImageSummary image_of(std::span<const uint8_t> pixels_HWC, int64_t height, int64_t width,
                      int num_channels);

struct AudioSummary {
  double sample_rate = 0;  ///< Hz
  int num_channels = 0;
  int64_t num_frames = 0;
  std::string wav;
};
/// Encodes a sound. `samples_TC`: -1 to 1, values beyond are clipped; stored with 16 bits.
AudioSummary audio_of(std::span<const float> samples_TC, double sample_rate, int num_channels);

/// Text, shown as Markdown.
struct TextSummary {
  std::string text;
};

using SummaryValue = std::variant<HistogramSummary, ImageSummary, AudioSummary, TextSummary>;

}  // namespace lockstep::metrics
