#include "data/files_dataset.h"

#include <ATen/Functions.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "data/dataset.h"
#include "data/image_encoders.h"
#include "data/loader.h"
#include "data/written_files.h"
#include "support/tfrecord_writer.h"

namespace lockstep::data {
namespace files_dataset_test {

using written::DataFolder;
using written::inputs_of;

constexpr int kNumImages = 12, kSide = 9;

/// One small set in every format that holds images.
class EveryFormat {
 public:
  EveryFormat() {
    std::string idx, labels, records, tar, csv, pixels_npy;
    for (int i = 0; i < kNumImages; ++i) {
      std::vector<uint8_t> pixels = written::smooth_pixels(kSide, kSide, 1);
      for (uint8_t& pixel : pixels) pixel = static_cast<uint8_t>(pixel + i);
      const std::string png = written::png_of(pixels.data(), kSide, kSide, PNG_FORMAT_GRAY);
      const std::string name = std::string(1, static_cast<char>('a' + i)) + ".png";
      const int label = i / 4;
      idx.append(pixels.begin(), pixels.end());
      labels.push_back(static_cast<char>(label));
      folder.write("set/" + std::to_string(label) + "/" + name, png);
      csv += "set/" + std::to_string(label) + "/" + name + "," + std::to_string(label) + "\n";
      tar += written::tar_member(name, png) +
             written::tar_member(name.substr(0, 2) + "cls", std::to_string(label));
      using namespace lockstep::tests;
      records += tfrecord(ExampleText()
                              .add("image/encoded", bytes_feature(png))
                              .add("image/class/label", ints_feature({label}))
                              .bytes());
    }
    folder.write("images", written::idx_of({kNumImages, kSide, kSide}, idx));
    folder.write("labels", written::idx_of({kNumImages}, labels));
    folder.write("x.npy", written::npy_of("|u1", "(12, 9, 9)", idx));
    folder.write("y.npy", written::npy_of("|u1", "(12,)", labels));
    folder.write("s.csv", csv);
    folder.write("s.tar", tar + written::tar_end());
    folder.write("s.tfrecord", records);
  }

  std::vector<std::unique_ptr<Dataset>> open(const std::string& more) const {
    std::vector<std::unique_ptr<Dataset>> all;
    for (const char* place :
         {"path: '@/images'", "path: '@/set'", "path: '@/s.csv'", "path: '@/s.tar'",
          "path: '@/s.tfrecord', num_classes: 3", "path: '@/x.npy', targets: '@/y.npy'"})
      all.push_back(folder.open(std::string("{type: ") + (all.empty() ? "idx" : "files") + ", " +
                                place + ", channels: 1" + more + "}"));
    return all;
  }

  DataFolder folder;
};

std::vector<at::Tensor> epochs_of(const Dataset& set, int64_t num_threads) {
  Sampler sampler({.num_samples = set.num_samples(), .global_batch_size = 5, .seed = 1});
  Loader loader(set, sampler, 0, 1, {.num_threads = num_threads, .prefetch_batches = 3});
  std::vector<at::Tensor> all;
  for (int step = 0; step < 6; ++step) {
    const Batch batch = loader.next();
    all.push_back(batch.samples.inputs_BX.clone());
    all.push_back(batch.samples.targets_BY.clone());
  }
  return all;
}

void expect_equal(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b) {
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i) EXPECT_TRUE(a[i].equal(b[i])) << i;
}

TEST(FilesDataset, EveryFormatGivesTheSameBitsWithAnyNumberOfThreads) {
  const EveryFormat formats;
  const std::string more =
      ", image_size: 7, mean: 0.4, std: 0.2, augment: {random_resized_crop: 0.3, random_crop: 1, "
      "horizontal_flip: 0.5, brightness: 0.4, contrast: 0.4, saturation: 0.4, mixup: 0.4}";
  for (const std::string& options : {std::string(), more}) {
    const auto sets = formats.open(options);
    const std::vector<at::Tensor> expected = epochs_of(*sets[0], 0);
    EXPECT_FALSE(expected[0].equal(expected[6]));  // another epoch
    for (const auto& set : sets) {
      EXPECT_EQ(set->spec(), sets[0]->spec());
      for (const int64_t num_threads : {0, 1, 4})
        expect_equal(epochs_of(*set, num_threads), expected);
    }
  }
}

TEST(FilesDataset, CountsRecordsAndTheirBytesAsTheyLieInFiles) {
  const EveryFormat formats;
  const Samples plain =
      formats.folder.open("{type: idx, path: '@/images'}")->get(std::vector<int64_t>{2, 5, 5}, 0);
  const int64_t num_pixels = plain.inputs_BX[0][0].numel();  // of one channel, a byte each
  EXPECT_EQ(plain.num_records, 3);
  EXPECT_EQ(plain.num_record_bytes % (3 * num_pixels), 0) << num_pixels;
  EXPECT_GT(plain.num_record_bytes, 0);
  const Samples mixed = formats.folder.open("{type: idx, path: '@/images', augment: {mixup: 1}}")
                            ->get(std::vector<int64_t>{2, 5, 5}, 0);
  EXPECT_EQ(mixed.num_records, 6) << "each has a partner";
  EXPECT_EQ(mixed.num_record_bytes, 2 * plain.num_record_bytes);
}

TEST(FilesDataset, OneHotAndMixedLabelsSumToOne) {
  const EveryFormat formats;
  const std::vector<int64_t> all = {0, 3, 4, 7, 8, 11};
  const Samples hot =
      formats.folder.open("{type: idx, path: '@/images', one_hot: true}")->get(all, 0);
  EXPECT_TRUE(hot.targets_BY.equal(
      at::tensor({1, 0, 0, 1, 0, 0, 0, 1, 0, 0, 1, 0, 0, 0, 1, 0, 0, 1}, at::kFloat)
          .reshape({6, 3})));
  const Samples mixed =
      formats.folder.open("{type: idx, path: '@/images', augment: {mixup: 1}}")->get(all, 0);
  EXPECT_TRUE(mixed.targets_BY.sum(1).allclose(at::ones({6})));
  EXPECT_GT(mixed.targets_BY.gt(0).sum().item<int64_t>(), 6);
}

TEST(FilesDataset, ATrainingSectionIsReadWithoutAugmentationForInference) {
  const EveryFormat formats;
  const std::vector<int64_t> all = {0, 3, 11};
  const std::string augmented =
      "{type: idx, path: '@/images', augment: {random_crop: 2, horizontal_flip: 1, mixup: 1}}";
  const auto set =
      formats.folder.open(augmented, DatasetUse::kTraining, {.use = DatasetUse::kInference});
  const Samples plain = formats.folder.open("{type: idx, path: '@/images'}")->get(all, 0);
  const Samples samples = set->get(all, 0);
  EXPECT_EQ(set->spec().target_kind, TargetKind::kClass);
  EXPECT_TRUE(samples.inputs_BX.equal(plain.inputs_BX));
  EXPECT_TRUE(samples.targets_BY.equal(plain.targets_BY));
  EXPECT_FALSE(formats.folder.open(augmented)->get(all, 0).inputs_BX.equal(plain.inputs_BX));
}

/// A sound sample that is to be mixed with a damaged one is mixed with the next sound one.
TEST(FilesDataset, ADamagedPartnerCostsNoSoundSample) {
  const EveryFormat formats;
  const std::string cut = files::read((formats.folder.path() / "set/0/b.png").string());
  formats.folder.write("set/0/b.png", std::string_view(cut).substr(0, cut.size() - 20));
  const std::string section = "{type: image_folder, path: '@/set', augment: {mixup: 1}}";
  const SkippingDataset set(
      formats.folder.open(section, DatasetUse::kTraining, {.skips_damaged = true}),
      InsteadOfDamaged::kNextSample);
  for (int64_t epoch = 0; epoch < 8; ++epoch) {
    int64_t num_skipped = 0;
    for (int64_t i = 0; i < kNumImages; ++i)
      num_skipped += set.get(std::vector<int64_t>{i}, epoch).num_skipped;
    EXPECT_EQ(num_skipped, 1) << epoch;
  }
  const auto strict = formats.folder.open(section);
  int num_told = 0;
  for (int64_t epoch = 0; epoch < 40; ++epoch) try {
      (void)strict->get(std::vector<int64_t>{5}, epoch);
    } catch (const Error& fault) {
      ++num_told;
      EXPECT_THAT(fault.what(), testing::HasSubstr("set/0/b.png: sample 1: "));
    }
  EXPECT_GT(num_told, 0);
}

TEST(FilesDataset, AugmentationIsForTrainingOnly) {
  const EveryFormat formats;
  EXPECT_THROW(formats.folder.open("{type: idx, path: '@/images', augment: {mixup: 1}}",
                                   DatasetUse::kEvaluation),
               Error);
}

/// Rows of one image of 2 x 3 pixels, 0 to 5, in units of 1 / 255.
std::vector<float> drawn(const DataFolder& folder, const std::string& augment, int64_t epoch) {
  const auto set = folder.open("{type: idx, path: '@/images', augment: {" + augment + "}}");
  return inputs_of({set->get(std::vector<int64_t>{0}, epoch).inputs_BX.mul(255), {}});
}

TEST(FilesDataset, FlipsAndShiftsAreOfPixels) {
  const DataFolder folder;
  folder.write("images", written::idx_of({1, 2, 3}, std::string("\1\2\3\4\5\6", 6)));
  folder.write("labels", written::idx_of({1}, std::string(1, '\0')));
  using testing::FloatNear;
  const auto near = [](std::vector<float> values) {
    return testing::Pointwise(testing::FloatNear(1e-4F), values);
  };
  EXPECT_THAT(drawn(folder, "horizontal_flip: 0", 0), near({1, 2, 3, 4, 5, 6}));
  EXPECT_THAT(drawn(folder, "horizontal_flip: 1", 0), near({3, 2, 1, 6, 5, 4}));
  int num_in_place = 0, num_mirrored = 0;
  for (int64_t epoch = 0; epoch < 200; ++epoch) {
    const std::vector<float> shifted = drawn(folder, "random_crop: 1", epoch);
    num_in_place += std::abs(shifted[0] - 1) < 0.1 && std::abs(shifted[5] - 6) < 0.1 ? 1 : 0;
    num_mirrored += drawn(folder, "horizontal_flip: 0.25", epoch)[0] > 2 ? 1 : 0;
    EXPECT_EQ(shifted, drawn(folder, "random_crop: 1", epoch));
  }
  EXPECT_NEAR(num_in_place, 200 / 9, 15);  // one of 3 x 3 places
  EXPECT_NEAR(num_mirrored, 50, 25);
}

TEST(FilesDataset, MemoryOfABatchIsUsedAgainOnceNobodyHoldsIt) {
  const EveryFormat formats;
  const auto set = formats.folder.open("{type: idx, path: '@/images'}");
  const std::vector<int64_t> rows = {0, 1};
  const Samples held = set->get(rows, 0);
  const at::Tensor view = at::empty({0}).set_(set->get(rows, 0).inputs_BX.storage());
  const void* const third = set->get(rows, 0).inputs_BX.const_data_ptr();
  EXPECT_NE(third, held.inputs_BX.const_data_ptr());
  EXPECT_NE(third, view.storage().data());
  EXPECT_EQ(set->get(rows, 0).inputs_BX.const_data_ptr(), third);
}

}  // namespace files_dataset_test
}  // namespace lockstep::data
