#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <variant>
#include <vector>

/// What an event file may hold besides numbers of curves.
namespace lockstep::metrics {

/// How values are distributed: counts[i] of them lie in [limits[i - 1], limits[i]).
struct HistogramSummary {
  double min = 0, max = 0, num = 0, sum = 0, sum_squares = 0;
  std::vector<double> limits, counts;  ///< as many of each, limits ascending
};
/// With TensorFlow's limits: +-1e-12 times powers of 1.1, without empty ends. Values that are not
/// finite are left out.
HistogramSummary histogram_of(std::span<const float> values);

struct ImageSummary {
  int64_t height = 0, width = 0;
  int num_channels = 0;  ///< 1: grey, 3: RGB, 4: RGBA
  std::string png;
};
/// `pixels_HWC`: a byte each, row by row. Throws Error(kBug) for sizes that do not fit.
ImageSummary image_of(std::span<const uint8_t> pixels_HWC, int64_t height, int64_t width,
                      int num_channels);

struct AudioSummary {
  double sample_rate = 0;  ///< Hz
  int num_channels = 0;
  int64_t num_frames = 0;
  std::string wav;
};
/// `samples_TC`: -1 to 1, what is beyond is cut; stored with 16 bits.
AudioSummary audio_of(std::span<const float> samples_TC, double sample_rate, int num_channels);

/// Shown as Markdown.
struct TextSummary {
  std::string text;
};

using SummaryValue = std::variant<HistogramSummary, ImageSummary, AudioSummary, TextSummary>;

}  // namespace lockstep::metrics
