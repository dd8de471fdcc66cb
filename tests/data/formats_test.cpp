#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "data/image_encoders.h"
#include "data/written_files.h"
#include "support/tfrecord_writer.h"

namespace lockstep::data {
namespace formats_test {

using testing::ElementsAre;
using testing::HasSubstr;
using written::DataFolder;
using written::inputs_of;
using written::labels_of;

template <typename Number>
std::string bytes_of(const std::vector<Number>& numbers) {
  return {reinterpret_cast<const char*>(numbers.data()), numbers.size() * sizeof(Number)};
}

std::string counting_bytes(int count) {
  std::string bytes;
  for (int i = 0; i < count; ++i) bytes.push_back(static_cast<char>(i));
  return bytes;
}

const std::vector<int64_t> kLastAndFirst = {2, 0};

TEST(Formats, IdxHasItsLabelsBesideIt) {
  const DataFolder folder;
  folder.write("t-images-idx3-ubyte", written::idx_of({3, 2, 2}, counting_bytes(12)));
  folder.write("t-labels-idx1-ubyte", written::idx_of({3}, std::string("\4\0\2", 3)));
  for (const char* type : {"idx", "files"}) {
    const auto set =
        folder.open(std::string("{type: ") + type + ", path: '@/t-images-idx3-ubyte'}");
    EXPECT_EQ(set->num_samples(), 3);
    EXPECT_EQ(set->spec(), (SampleSpec{.input_shape = {1, 2, 2}, .num_classes = 5}));
    const Samples samples = set->get(kLastAndFirst, 0);
    EXPECT_THAT(labels_of(samples), ElementsAre(2, 4));
    EXPECT_THAT(
        inputs_of(samples),
        testing::Pointwise(testing::FloatEq(), {8.0F / 255, 9.0F / 255, 10.0F / 255, 11.0F / 255,
                                                0.0F, 1.0F / 255, 2.0F / 255, 3.0F / 255}));
  }
}

TEST(Formats, CifarOfSeveralFilesIsOneSet) {
  const DataFolder folder;
  const auto record = [](int label, int pixel) {
    return std::string(1, static_cast<char>(label)) + std::string(3072, static_cast<char>(pixel));
  };
  folder.write("data_batch_1.bin", record(3, 10) + record(1, 20));
  folder.write("data_batch_2.bin", record(9, 30));
  folder.write("test_batch.bin", record(0, 40));
  for (const char* section :
       {"{type: cifar10, path: '@'}", "{type: files, path: '@/data_batch_*'}"}) {
    const auto set = folder.open(section);
    EXPECT_EQ(set->num_samples(), 3);
    EXPECT_EQ(set->spec(), (SampleSpec{.input_shape = {3, 32, 32}, .num_classes = 10}));
    const Samples samples = set->get(kLastAndFirst, 0);
    EXPECT_THAT(labels_of(samples), ElementsAre(9, 3));
    EXPECT_FLOAT_EQ(samples.inputs_BX.sum().item<float>(), 3072 * 40.0F / 255);
  }
}

TEST(Formats, Cifar100TakesTheFineLabel) {
  const DataFolder folder;
  folder.write("train.bin", std::string("\x05\x63", 2) + std::string(3072, '\0'));
  const auto set = folder.open("{type: files, path: '@/train.bin'}");
  EXPECT_EQ(set->spec().num_classes, 100);
  EXPECT_THAT(labels_of(set->get(std::vector<int64_t>{0}, 0)), ElementsAre(99));
}

TEST(Formats, AFolderAClassInTheOrderOfNames) {
  const DataFolder folder;
  const std::vector<uint8_t> pixels = written::smooth_pixels(4, 5, 3);
  const std::string png = written::png_of(pixels.data(), 4, 5, PNG_FORMAT_RGB);
  folder.write("zebra/1.PNG", png);
  folder.write("ant/b.png", png);
  folder.write("ant/deeper/a.png", png);
  folder.write("ant/notes.txt", "not an image");
  const auto set = folder.open("{type: files, path: '@'}");
  EXPECT_EQ(set->spec(), (SampleSpec{.input_shape = {3, 4, 5}, .num_classes = 2}));
  const Samples samples = set->get(kLastAndFirst, 0);
  EXPECT_THAT(labels_of(samples), ElementsAre(1, 0));
  for (int64_t c = 0; c < 3; ++c)
    EXPECT_FLOAT_EQ(
        samples.inputs_BX.select(0, 0).select(0, c).select(0, 3).select(0, 4).item<float>(),
        static_cast<float>(pixels[static_cast<size_t>((3 * 5 + 4) * 3 + c)]) / 255);
}

TEST(Formats, CsvWithAndWithoutAHeader) {
  const DataFolder folder;
  const std::vector<uint8_t> pixels = written::smooth_pixels(2, 2, 1);
  folder.write("images/a, b.png", written::png_of(pixels.data(), 2, 2, PNG_FORMAT_GRAY));
  folder.write("c.png", written::png_of(pixels.data(), 2, 2, PNG_FORMAT_GRAY));
  folder.write("plain.csv", "\"images/a, b.png\",3\r\n\nc.png,0\n");
  folder.write("named.csv", "class,who,file\n3,x,\"images/a, b.png\"\n0,\"y\nz\",c.png");
  for (const char* section : {"{type: files, path: '@/plain.csv', channels: 1}",
                              "{type: image_csv, path: '@/named.csv', channels: 1, image_column: "
                              "file, label_column: class}"}) {
    const auto set = folder.open(section);
    EXPECT_EQ(set->spec(), (SampleSpec{.input_shape = {1, 2, 2}, .num_classes = 4}));
    EXPECT_THAT(labels_of(set->get(std::vector<int64_t>{1, 0}, 0)), ElementsAre(0, 3));
  }
}

TEST(Formats, APatternWithoutAnEndingNamesSeveralCsvFiles) {
  const DataFolder folder;
  const std::vector<uint8_t> pixels = written::smooth_pixels(2, 2, 1);
  folder.write("a.png", written::png_of(pixels.data(), 2, 2, PNG_FORMAT_GRAY));
  folder.write("train-0.csv", "a.png,3\na.png,1\n");
  folder.write("train-1.csv", "image,label\na.png,2\n");
  const auto set = folder.open("{type: files, path: '@/train*', channels: 1}");
  EXPECT_EQ(set->spec(), (SampleSpec{.input_shape = {1, 2, 2}, .num_classes = 4}));
  EXPECT_THAT(labels_of(set->get(std::vector<int64_t>{0, 1, 2}, 0)), ElementsAre(3, 1, 2));
}

TEST(Formats, NpyOfEachTypeOfNumber) {
  const DataFolder folder;
  folder.write("labels.npy", written::npy_of("|u1", "(2,)", std::string("\1\0", 2)));
  folder.write("f8.npy", written::npy_of("<f8", "(2, 3)", bytes_of<double>({1, 2, 3, 4, 5, 6.5})));
  folder.write("f4.npy", written::npy_of("<f4", "(2, 3)", bytes_of<float>({1, 2, 3, 4, 5, 6.5})));
  for (const char* name : {"f8", "f4"}) {
    const auto set = folder.open(std::string("{type: files, path: '@/") + name +
                                 ".npy', targets: '@/labels.npy'}");
    EXPECT_EQ(set->spec(), (SampleSpec{.input_shape = {3}, .num_classes = 2}));
    EXPECT_THAT(inputs_of(set->get(std::vector<int64_t>{1}, 0)), ElementsAre(4, 5, 6.5));
  }
  folder.write("u1.npy", written::npy_of("|u1", "(2, 1, 2, 3)", counting_bytes(12)));
  const auto pixels =
      folder.open("{type: npy, path: '@/u1.npy', targets: '@/f4.npy', layout: hwc}");
  EXPECT_EQ(
      pixels->spec(),
      (SampleSpec{.input_shape = {3, 1, 2}, .target_kind = TargetKind::kValues, .num_classes = 3}));
  const Samples second = pixels->get(std::vector<int64_t>{1}, 0);
  EXPECT_FLOAT_EQ(second.inputs_BX[0][1][0][1].item<float>(), 10.0F / 255);
  EXPECT_FLOAT_EQ(second.targets_BY[0][2].item<float>(), 6.5);
  EXPECT_EQ(
      folder
          .open("{type: npy, path: '@/u1.npy', targets: '@/f4.npy', layout: hwc, soft_labels: "
                "true}")
          ->spec()
          .target_kind,
      TargetKind::kSoft);
}

std::string safetensors_of(const nlohmann::ordered_json& header, const std::string& data) {
  const std::string text = header.dump();
  return lockstep::tests::little_endian(text.size(), 8) + text + data;
}

TEST(Formats, SafetensorsByNamesOfTensors) {
  const DataFolder folder;
  const nlohmann::ordered_json header = {
      {"x", {{"dtype", "F32"}, {"shape", {2, 2}}, {"data_offsets", {0, 16}}}},
      {"y", {{"dtype", "I64"}, {"shape", {2}}, {"data_offsets", {16, 32}}}}};
  folder.write("set.safetensors",
               safetensors_of(header, bytes_of<float>({1, 2, 3, 4}) + bytes_of<int64_t>({6, 1})));
  const auto set = folder.open("{type: files, path: '@/set.safetensors', inputs: x, targets: y}");
  EXPECT_EQ(set->spec(), (SampleSpec{.input_shape = {2}, .num_classes = 7}));
  const Samples samples = set->get(std::vector<int64_t>{1, 0}, 0);
  EXPECT_THAT(inputs_of(samples), ElementsAre(3, 4, 1, 2));
  EXPECT_THAT(labels_of(samples), ElementsAre(1, 6));
  EXPECT_THAT(
      folder.fault_of("{type: safetensors, path: '@/set.safetensors', inputs: x, targets: z}"),
      HasSubstr("65: [data] "));
}

TEST(Formats, TokensInWindows) {
  const DataFolder folder;
  folder.write("a.bin", bytes_of<uint16_t>({1, 2, 3, 4, 5, 6}));  // two windows; 6 is in none
  folder.write("b.bin", bytes_of<uint16_t>({7, 8, 9}));
  const auto set = folder.open("{type: tokens, path: '@/*.bin', context: 2}");
  EXPECT_EQ(set->num_samples(), 3);
  EXPECT_EQ(set->spec(), (SampleSpec{.input_shape = {2},
                                     .input_dtype = at::kLong,
                                     .target_kind = TargetKind::kTokens,
                                     .num_classes = 10}));
  const Samples samples = set->get(std::vector<int64_t>{2, 1}, 0);
  EXPECT_TRUE(samples.inputs_BX.equal(at::tensor({7, 8, 3, 4}, at::kLong).reshape({2, 2})));
  EXPECT_TRUE(samples.targets_BY.equal(at::tensor({8, 9, 4, 5}, at::kLong).reshape({2, 2})));
  folder.write("c32", bytes_of<uint32_t>({70000, 1, 2}));
  EXPECT_EQ(folder.open("{type: tokens, path: '@/c32', context: 2, token_type: uint32}")
                ->spec()
                .num_classes,
            70001);
}

TEST(Formats, TfRecordOfRawPixelsFloatsAndValues) {
  using namespace lockstep::tests;
  const DataFolder folder;
  std::string raw, values;
  for (int i = 0; i < 3; ++i) {
    raw += tfrecord(ExampleText()
                        .add("image/class/label", ints_feature({i}))
                        .add("pixels", bytes_feature(std::string(12, static_cast<char>(i))))
                        .bytes());
    values += tfrecord(ExampleText()
                           .add("x", floats_feature({1.0F * static_cast<float>(i), 2}))
                           .add("y", floats_feature({0.5F * static_cast<float>(i)}))
                           .bytes());
  }
  folder.write("raw.tfrecord", raw);
  folder.write("values-00000-of-00001", values);
  const auto pixels = folder.open(
      "{type: files, path: '@/raw.*', image_feature: pixels, record_shape: "
      "[3, 2, 2], num_classes: 3}");
  EXPECT_EQ(pixels->spec(), (SampleSpec{.input_shape = {3, 2, 2}, .num_classes = 3}));
  EXPECT_THAT(labels_of(pixels->get(kLastAndFirst, 0)), ElementsAre(2, 0));
  const auto numbers =
      folder.open("{type: files, path: '@/values-00000*', image_feature: x, label_feature: y}");
  EXPECT_EQ(numbers->spec(),
            (SampleSpec{.input_shape = {2}, .target_kind = TargetKind::kValues, .num_classes = 1}));
  const Samples samples = numbers->get(kLastAndFirst, 0);
  EXPECT_THAT(inputs_of(samples), ElementsAre(2, 2, 0, 2));
  EXPECT_FLOAT_EQ(samples.targets_BY[0][0].item<float>(), 1);
}

TEST(Formats, WebDatasetGroupsMembersByName) {
  const DataFolder folder;
  const std::vector<uint8_t> pixels = written::smooth_pixels(3, 3, 3);
  const std::string png = written::png_of(pixels.data(), 3, 3, PNG_FORMAT_RGB);
  folder.write("s.tar", written::tar_member("a/01.png", png) +
                            written::tar_member("a/01.cls", "2\n") +
                            written::tar_member("x", "24 path=a/very/long.PNG\n", 'x') +
                            written::tar_member("cut", png) +
                            written::tar_member("a/very/long.cls", "0") + written::tar_end());
  const auto set = folder.open("{type: files, path: '@/s.tar'}");
  EXPECT_EQ(set->spec(), (SampleSpec{.input_shape = {3, 3, 3}, .num_classes = 3}));
  EXPECT_THAT(labels_of(set->get(std::vector<int64_t>{0, 1}, 0)), ElementsAre(2, 0));
}

TEST(Formats, TheDigestFollowsContentAndNotPlace) {
  const DataFolder one, other;
  const std::string images = written::idx_of({1, 2, 2}, counting_bytes(4));
  for (const DataFolder* folder : {&one, &other}) {
    folder->write("images", images);
    folder->write("labels", written::idx_of({1}, std::string(1, '\1')));
  }
  const char* section = "{type: idx, path: '@/images'}";
  const std::string before = one.open(section)->digest();
  EXPECT_EQ(before.size(), 64U);
  EXPECT_EQ(other.open(section)->digest(), before);
  other.write("images", written::idx_of({1, 2, 2}, counting_bytes(5).substr(1)));
  EXPECT_NE(other.open(section)->digest(), before);
}

}  // namespace formats_test
}  // namespace lockstep::data
