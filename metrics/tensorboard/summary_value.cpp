#include "metrics/tensorboard/summary_value.h"

#include <png.h>
#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>

#include "base/error.h"

// Encodes histograms, images (libpng) and sounds (WAV) as TensorBoard expects them.
namespace lockstep::metrics {
namespace {

/// Limits -DBL_MAX .. -1e-12, 0, 1e-12 .. DBL_MAX, as in tensorflow/core/lib/histogram.
const std::vector<double>& all_limits() {
  static const std::vector<double> limits = [] {
    std::vector<double> positive;
    for (double limit = 1e-12; limit < 1e20; limit *= 1.1) positive.push_back(limit);
    positive.push_back(std::numeric_limits<double>::max());
    std::vector<double> all(positive.rbegin(), positive.rend());
    for (double& limit : all) limit = -limit;
    all.push_back(0);
    all.insert(all.end(), positive.begin(), positive.end());
    return all;
  }();
  return limits;
}

int format_of(int num_channels) {
  if (num_channels == 1) return PNG_FORMAT_GRAY;
  return num_channels == 3 ? PNG_FORMAT_RGB : PNG_FORMAT_RGBA;
}

template <typename T>
void append(T value, std::string* bytes) {
  std::array<char, sizeof(T)> raw;
  std::memcpy(raw.data(), &value, sizeof(T));
  bytes->append(raw.data(), raw.size());
}

constexpr int kSampleBytes = 2;

/// Returns the RIFF header of 16-bit PCM.
std::string wav_header(uint32_t num_bytes, uint32_t sample_rate, uint16_t num_channels) {
  std::string header = "RIFF";
  append<uint32_t>(36 + num_bytes, &header);
  header += "WAVEfmt ";
  append<uint32_t>(16, &header);
  append<uint16_t>(1, &header);  // PCM
  append<uint16_t>(num_channels, &header);
  append<uint32_t>(sample_rate, &header);
  append<uint32_t>(sample_rate * num_channels * kSampleBytes, &header);
  append<uint16_t>(static_cast<uint16_t>(num_channels * kSampleBytes), &header);
  append<uint16_t>(8 * kSampleBytes, &header);
  header += "data";
  append<uint32_t>(num_bytes, &header);
  return header;
}

}  // namespace

HistogramSummary histogram_of(std::span<const float> values) {
  const std::vector<double>& limits = all_limits();
  std::vector<double> counts(limits.size(), 0);
  HistogramSummary found{.min = std::numeric_limits<double>::max(),
                         .max = std::numeric_limits<double>::lowest()};
  // Sums in double: millions of float values would lose digits.
  for (const float single : values) {
    const double value = single;
    if (!std::isfinite(value)) continue;
    // The last limit is DBL_MAX, so every finite value has a bucket.
    ++counts[static_cast<size_t>(std::upper_bound(limits.begin(), limits.end() - 1, value) -
                                 limits.begin())];
    found.min = std::min(found.min, value);
    found.max = std::max(found.max, value);
    found.sum += value;
    found.sum_squares += value * value;
    ++found.num;
  }
  if (found.num == 0) return {.limits = {0}, .counts = {0}};
  const auto is_filled = [](double count) { return count > 0; };
  const auto first = std::find_if(counts.begin(), counts.end(), is_filled) - counts.begin();
  const auto end =
      counts.size() - static_cast<size_t>(std::find_if(counts.rbegin(), counts.rend(), is_filled) -
                                          counts.rbegin());
  // One empty bucket in front gives the first filled one its lower limit.
  const auto begin = static_cast<size_t>(std::max<int64_t>(first - 1, 0));
  found.limits.assign(limits.begin() + static_cast<int64_t>(begin),
                      limits.begin() + static_cast<int64_t>(end));
  found.counts.assign(counts.begin() + static_cast<int64_t>(begin),
                      counts.begin() + static_cast<int64_t>(end));
  return found;
}

ImageSummary image_of(std::span<const uint8_t> pixels_HWC, int64_t height, int64_t width,
                      int num_channels) {
  check((num_channels == 1 || num_channels == 3 || num_channels == 4) && height > 0 && width > 0 &&
            static_cast<int64_t>(pixels_HWC.size()) == height * width * num_channels,
        "an image has 1, 3 or 4 channels and as many pixels as it says");
  png_image image{};
  image.version = PNG_IMAGE_VERSION;
  image.width = static_cast<png_uint_32>(width);
  image.height = static_cast<png_uint_32>(height);
  image.format = static_cast<png_uint_32>(format_of(num_channels));
  ImageSummary summary{height, width, num_channels, {}};
  // libpng needs the maximum size; the result is cut to the actual one.
  png_alloc_size_t num_bytes = PNG_IMAGE_PNG_SIZE_MAX(image);
  summary.png.resize(num_bytes);
  const int ok = png_image_write_to_memory(&image, summary.png.data(), &num_bytes, 0,
                                           pixels_HWC.data(), 0, nullptr);
  check(ok != 0, "libpng writes into memory");
  summary.png.resize(num_bytes);
  return summary;
}

AudioSummary audio_of(std::span<const float> samples_TC, double sample_rate, int num_channels) {
  check(num_channels > 0 && samples_TC.size() % static_cast<size_t>(num_channels) == 0,
        "each frame has a sample of every channel");
  AudioSummary summary{
      .sample_rate = sample_rate,
      .num_channels = num_channels,
      .num_frames = static_cast<int64_t>(samples_TC.size()) / num_channels,
      .wav = wav_header(static_cast<uint32_t>(samples_TC.size() * kSampleBytes),
                        static_cast<uint32_t>(sample_rate), static_cast<uint16_t>(num_channels))};
  for (const float sample : samples_TC) {
    // NaN and infinity become silence.
    const float cut = std::isfinite(sample) ? std::clamp(sample, -1.0F, 1.0F) : 0.0F;
    append(static_cast<int16_t>(std::lround(cut * 32767)), &summary.wav);
  }
  return summary;
}

}  // namespace lockstep::metrics
