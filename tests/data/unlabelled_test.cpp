// Files without targets: answered by `lockstep infer`, refused where a network learns or is judged.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "data/image_encoders.h"
#include "data/written_files.h"

namespace lockstep::data {
namespace unlabelled_test {

using testing::AllOf;
using testing::HasSubstr;
using testing::StartsWith;
using written::DataFolder;
using written::inputs_of;
using written::labels_of;

constexpr int kSide = 5;

/// Image `i` of three, 8 bits of grey.
std::string pixels_of(int i) {
  std::vector<uint8_t> pixels = written::smooth_pixels(kSide, kSide, 1);
  for (uint8_t& pixel : pixels) pixel = static_cast<uint8_t>(pixel + i);
  return {pixels.begin(), pixels.end()};
}

std::string safetensors_of(const std::string& header, const std::string& data) {
  return static_cast<char>(header.size()) + std::string(7, '\0') + header + data;
}

class Unlabelled : public testing::Test {
 protected:
  Unlabelled() {
    std::string all;
    for (int i = 0; i < 3; ++i) {
      const std::string pixels = pixels_of(i);
      const std::string png = written::png_of(reinterpret_cast<const uint8_t*>(pixels.data()),
                                              kSide, kSide, PNG_FORMAT_GRAY);
      const std::string name = "photos/" + std::string(1, static_cast<char>('a' + i));
      folder_.write(name + (i == 1 ? ".PNG" : ".png"), png);
      all += pixels;
    }
    folder_.write("photos/about.txt", "not an image");
    folder_.write("x.npy", written::npy_of("|u1", "(3, 5, 5)", all));
    folder_.write("labels.npy", written::npy_of("|u1", "(3,)", std::string("\0\1\1", 3)));
    folder_.write(
        "set.safetensors",
        safetensors_of(R"({"x":{"dtype":"U8","shape":[3,5,5],"data_offsets":[0,75]}})", all));
  }

  /// All samples of the section, opened for inference.
  Samples answered(const std::string& section) const {
    const auto set = folder_.open(section, DatasetUse::kInference);
    std::vector<int64_t> all(static_cast<size_t>(set->num_samples()));
    for (size_t i = 0; i < all.size(); ++i) all[i] = static_cast<int64_t>(i);
    return set->get(all, 0);
  }

  DataFolder folder_;
};

TEST_F(Unlabelled, Inference_reads_inputs_as_they_are_beside_targets) {
  const std::vector<float> expected =
      inputs_of(folder_.open("{type: npy, path: '@/x.npy', targets: '@/labels.npy'}")
                    ->get(std::vector<int64_t>{0, 1, 2}, 0));
  for (const char* section : {"{type: files, path: '@/photos/*.[pP]*', channels: 1}",
                              "{type: images, path: '@/photos', channels: 1}",
                              "{type: npy, path: '@/x.npy'}", "{type: files, path: '@/x.npy'}",
                              "{type: safetensors, path: '@/set.safetensors', inputs: x}"}) {
    const Samples samples = answered(section);
    EXPECT_EQ(inputs_of(samples), expected) << section;
    EXPECT_FALSE(samples.targets_BY.defined()) << section;
  }
}

TEST_F(Unlabelled, Inference_reads_a_single_image_and_what_has_targets) {
  EXPECT_EQ(answered("{type: files, path: '@/photos/b.PNG'}").inputs_BX.sizes(),
            (std::vector<int64_t>{1, 3, kSide, kSide}));
  EXPECT_EQ(labels_of(answered("{type: npy, path: '@/x.npy', targets: '@/labels.npy'}")),
            (std::vector<int64_t>{0, 1, 1}));
}

TEST_F(Unlabelled, Training_and_evaluation_are_refused) {
  EXPECT_THAT(folder_.fault_of("{type: files, path: '@/photos/a.png'}"),
              AllOf(StartsWith("78: "), HasSubstr("photos/a.png"), HasSubstr("have no labels"),
                    HasSubstr("a folder for each class")));
  EXPECT_THAT(folder_.fault_of("{type: npy, path: '@/x.npy'}"),
              AllOf(StartsWith("78: "), HasSubstr("npy: give `targets`")));
  EXPECT_THAT(folder_.fault_of("{type: safetensors, path: '@/set.safetensors', inputs: x}"),
              AllOf(StartsWith("78: "), HasSubstr("safetensors: give `targets`")));
  EXPECT_THROW(folder_.open("{type: images, path: '@/photos'}", DatasetUse::kEvaluation), Error);
}

TEST_F(Unlabelled, A_folder_without_images_is_missing_input) {
  folder_.write("texts/one.txt", "not an image");
  EXPECT_THAT(folder_.fault_of("{type: images, path: '@/texts'}"),
              AllOf(StartsWith("66: "), HasSubstr("contains no .jpg, .jpeg or .png file")));
}

}  // namespace unlabelled_test
}  // namespace lockstep::data
