#include <cmath>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "data/image_encoders.h"
#include "data/images/decode.h"
#include "data/images/image_transform.h"
#include "data/images/pixel_kernels.h"
#include "data/images/resize.h"

namespace lockstep::data {
namespace images_test {

TEST(Resize, WeightsOfHandComputedCases) {
  const Taps half = triangle_taps(4, 0, 4, 2, false);  // triangles of width 4 about 1 and 3
  ASSERT_EQ(half.num_taps, 3);
  EXPECT_THAT(half.firsts, testing::ElementsAre(0, 1));
  EXPECT_THAT(half.weights,
              testing::Pointwise(testing::FloatNear(1e-6F),
                                 {3.0F / 7, 3.0F / 7, 1.0F / 7, 1.0F / 7, 3.0F / 7, 3.0F / 7}));
  const Taps twice = triangle_taps(2, 0, 2, 4, false);  // about 0.25, 0.75, 1.25, 1.75
  EXPECT_THAT(twice.weights,
              testing::Pointwise(testing::FloatNear(1e-6F),
                                 {1.0F, 0.0F, 0.75F, 0.25F, 0.25F, 0.75F, 1.0F, 0.0F}));
  const Taps mirrored = triangle_taps(2, 0, 2, 4, true);
  EXPECT_THAT(mirrored.firsts, testing::ElementsAre(1, 0, 0, 0));
  EXPECT_EQ(triangle_taps(1, 0, 1, 3, false).weights, (std::vector<float>{1, 1, 1}));
}

TEST(Resize, EveryPathGivesTheSameBits) {
  const std::vector<uint8_t> pixels = written::smooth_pixels(37, 41, 3);
  const std::vector<float> scales = {0.017F, 0.018F, 0.019F}, shifts = {-1.9F, -1.8F, -1.7F};
  std::vector<std::vector<float>> results;
  for (const SimdPath path : simd_paths()) {
    const PixelKernels& kernels = pixel_kernels(path);
    std::vector<float> blended(41 * 3 + 130, 0.0F), all(6000);
    std::vector<float> floats(9 * 123);
    kernels.scale(pixels.data(), 9 * 123, 1, 0, floats.data());
    std::array<const float*, 9> rows{};
    for (size_t k = 0; k < rows.size(); ++k) rows[k] = floats.data() + 123 * k;
    const std::array<float, 9> weights{0.1F, 0.4F, 0.3F, 0.2F, 0.7F, 0.6F, 0.5F, 0.9F, 0.8F};
    for (int64_t num_rows = 1; num_rows <= 9; ++num_rows)
      kernels.blend_rows(rows.data(), weights.data(), num_rows, 123,
                         all.data() + 2600 + 123 * num_rows);
    kernels.blend_rows(rows.data(), weights.data(), 4, 123, blended.data());
    kernels.columns_1(blended.data(), triangle_taps(41, 0, 41, 17, false), 17, all.data() + 300);
    kernels.scale(pixels.data(), 999, scales[0], shifts[0], all.data() + 400);
    const std::array<float*, 3> planes{all.data() + 1400, all.data() + 1800, all.data() + 2200};
    kernels.scale_3(pixels.data(), 333, scales.data(), shifts.data(), planes.data());
    kernels.scale_in_turn(pixels.data(), 997, ChannelNumbers({scales, shifts}), all.data() + 4000);
    results.push_back(all);
  }
  for (const std::vector<float>& result : results) EXPECT_EQ(result, results[0]);
}

/// Resizes 41 pixels to more and to fewer, by 1 to 42 taps, mirrored or not.
TEST(Resize, ColumnsAreTheSumsOfTheirTapsOnEveryPath) {
  std::vector<float> row(3 * 41 + 3 * 42 + 5, 0.0F);
  for (size_t i = 0; i < 3 * 41; ++i) row[i] = std::sin(static_cast<float>(i * i));
  for (const int64_t width : {1, 2, 3, 7, 8, 9, 16, 17, 25, 40, 41, 82}) {
    const Taps taps = triangle_taps(41, 0.25, 40.5, width, width % 2 == 0);
    std::vector<std::vector<float>> results;
    for (const SimdPath path : simd_paths()) {
      std::vector<float> all(static_cast<size_t>(3 * width));
      const std::array<float*, 3> outs{all.data(), all.data() + width, all.data() + 2 * width};
      pixel_kernels(path).columns_3(row.data(), taps, width, outs.data());
      results.push_back(all);
    }
    for (const std::vector<float>& result : results) EXPECT_EQ(result, results[0]) << width;
    for (int64_t x = 0; x < width; ++x)
      for (int64_t c = 0; c < 3; ++c) {
        float sum = 0;
        for (int64_t k = 0; k < taps.num_taps; ++k)
          sum += taps.weights[static_cast<size_t>(x * taps.num_taps + k)] *
                 row[static_cast<size_t>(3 * (taps.firsts[static_cast<size_t>(x)] + k) + c)];
        EXPECT_NEAR(results[0][static_cast<size_t>(c * width + x)], sum, 1e-5) << width << ' ' << x;
      }
  }
}

TEST(Decode, EveryKindOfPngBecomesWhatIsAskedFor) {
  const std::vector<uint8_t> rgba = written::smooth_pixels(3, 4, 4);
  std::vector<uint8_t> storage;
  const std::string file = written::png_of(rgba.data(), 3, 4, PNG_FORMAT_RGBA);
  const Pixels pixels = decode_image(file, read_image_header(file), 3, 1, &storage);
  ASSERT_EQ(pixels.channels, 3);
  for (size_t i = 0; i < 12; ++i)
    for (size_t c = 0; c < 3; ++c) EXPECT_EQ(pixels.data[3 * i + c], rgba[4 * i + c]);
  const std::vector<uint16_t> deep(12, 0x8000);  // linear: about 188 in sRGB
  const std::string grey = written::png_of(deep.data(), 3, 4, PNG_FORMAT_LINEAR_Y);
  EXPECT_EQ(decode_image(grey, read_image_header(grey), 3, 1, &storage).channels, 3);
  EXPECT_EQ(storage.size(), 36U);
}

TEST(Decode, JpegAtAFractionOfItsSize) {
  const std::vector<uint8_t> pixels = written::smooth_pixels(41, 40, 3);
  const std::string file = written::jpeg_of(pixels.data(), 41, 40, 3);
  std::vector<uint8_t> storage;
  const Pixels half = decode_image(file, read_image_header(file), 3, 2, &storage);
  EXPECT_EQ(half.height, 21);
  EXPECT_EQ(half.width, 20);
}

TEST(Augment, MixSharesFollowTheirDistribution) {
  for (const double alpha : {0.2, 1.0, 3.0}) {
    const AugmentOptions options{.mixup = alpha};
    double sum = 0, squares = 0;
    constexpr int kNum = 4000;
    for (int i = 0; i < kNum; ++i) {
      const double share = SampleRandom(options, 0, i).mixup_share();
      EXPECT_TRUE(share >= 0 && share <= 1);
      sum += share;
      squares += share * share;
    }
    const double mean = sum / kNum, variance = squares / kNum - mean * mean;
    EXPECT_NEAR(mean, 0.5, 0.03) << alpha;
    EXPECT_NEAR(variance, 1 / (4 * (2 * alpha + 1)), 0.01) << alpha;  // of Beta(alpha, alpha)
  }
}

TEST(Augment, CropsLieInsideAndHaveTheirArea) {
  const AugmentOptions options{.random_resized_crop = 0.25};
  for (int i = 0; i < 500; ++i) {
    const Box box = SampleRandom(options, 1, i).resized_crop(50, 80);
    const double height = box.bottom - box.top, width = box.right - box.left;
    EXPECT_TRUE(box.top >= 0 && box.left >= 0 && box.bottom <= 50 && box.right <= 80);
    EXPECT_GE(height * width, 0.25 * 4000 - 80);
    EXPECT_TRUE(width / height > 0.7 && width / height < 1.4) << width << " " << height;
  }
}

TEST(Augment, ColoursByHand) {
  std::vector<float> planes = {0.2F, 0.6F};
  change_colours({.brightness = 0.5F}, 1, 2, planes.data());
  EXPECT_THAT(planes, testing::Pointwise(testing::FloatNear(1e-6F), {0.1F, 0.3F}));
  change_colours({.contrast = 2}, 1, 2, planes.data());  // about 0.2
  EXPECT_THAT(planes, testing::Pointwise(testing::FloatNear(1e-6F), {0.0F, 0.4F}));
  std::vector<float> pixel = {1, 0.5F, 0};
  change_colours({.saturation = 0.001F}, 3, 1, pixel.data());
  const float grey = 0.299F + 0.587F / 2;
  for (const float value : pixel) EXPECT_NEAR(value, grey, 1e-3);
}

}  // namespace images_test
}  // namespace lockstep::data
