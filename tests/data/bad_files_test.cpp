#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sys/resource.h>

#include "data/image_encoders.h"
#include "data/images/decode.h"
#include "data/written_files.h"
#include "support/tfrecord_writer.h"

namespace lockstep::data {
namespace bad_files_test {

using testing::AllOf;
using testing::HasSubstr;
using testing::StartsWith;
using written::DataFolder;

int64_t peak_bytes() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  return int64_t{usage.ru_maxrss} * 1024;
}

std::string small_png(int side = 4) {
  const std::vector<uint8_t> pixels = written::smooth_pixels(side, side, 3);
  return written::png_of(pixels.data(), side, side, PNG_FORMAT_RGB);
}

std::string small_jpeg() {
  const std::vector<uint8_t> pixels = written::smooth_pixels(40, 40, 3);
  return written::jpeg_of(pixels.data(), 40, 40, 3);
}

std::string image_record(const std::string& image = small_png()) {
  using namespace lockstep::tests;
  return tfrecord(ExampleText()
                      .add("image/encoded", bytes_feature(image))
                      .add("image/class/label", ints_feature({1}))
                      .bytes());
}

constexpr const char* kRecords = "{type: tfrecord, path: '@/r', num_classes: 2}";

TEST(BadFiles, TfRecordLengthIsNotBelievedBeforeItsChecksum) {
  const DataFolder folder;
  const std::string good = image_record();
  const std::string length = lockstep::tests::little_endian(uint64_t{1} << 63, 8);
  folder.write("r", good + length + std::string(good.size() - 8, '\0'));
  const int64_t before = peak_bytes();
  EXPECT_THAT(
      folder.fault_of(kRecords),
      AllOf(StartsWith("65: [data] "), HasSubstr("/r: offset " + std::to_string(good.size()) +
                                                 ": the checksum of a record's length")));
  // and one whose checksum is right
  const std::string sum = lockstep::tests::little_endian(masked_crc32c(crc32c(length)), 4);
  folder.write("r", length + sum + good);
  EXPECT_THAT(
      folder.fault_of(kRecords),
      AllOf(StartsWith("65"), HasSubstr("offset 0: a record of 9223372036854775808 bytes")));
  EXPECT_LT(peak_bytes() - before, int64_t{64} << 20);
}

TEST(BadFiles, TfRecordDamagedOrCut) {
  const DataFolder folder;
  std::string records = image_record() + image_record();
  const std::string second = std::to_string(records.size() / 2);
  folder.write("r", records.substr(0, records.size() - 5));
  EXPECT_THAT(folder.fault_of(kRecords),
              AllOf(StartsWith("65"), HasSubstr("/r: offset " + second)));
  folder.write("r", records.substr(0, records.size() / 2 + 7));
  EXPECT_THAT(folder.fault_of(kRecords),
              AllOf(StartsWith("65"), HasSubstr("truncated in the header")));
  records[records.size() - 20] ^= 1;
  folder.write("r", records);
  EXPECT_THAT(folder.fault_of(kRecords, 1),
              AllOf(StartsWith("65"), HasSubstr("offset " + second), HasSubstr("sample 1"),
                    HasSubstr("checksum of a record's data")));
  folder.write("r", "");
  EXPECT_THAT(folder.fault_of(kRecords), AllOf(StartsWith("65"), HasSubstr("no record")));
}

TEST(BadFiles, TfRecordFeatureMissingOrOfAnotherType) {
  const DataFolder folder;
  folder.write("r", image_record());
  EXPECT_THAT(
      folder.fault_of(
          "{type: tfrecord, path: '@/r', num_classes: 2, label_feature: image/class/labl}"),
      AllOf(
          StartsWith("65"),
          HasSubstr(
              "/r: offset 0: no feature 'image/class/labl' (did you mean 'image/class/label'?)")));
  EXPECT_THAT(folder.fault_of(
                  "{type: tfrecord, path: '@/r', num_classes: 2, label_feature: image/encoded}"),
              AllOf(StartsWith("65"), HasSubstr("contains bytes, not whole numbers")));
  EXPECT_THAT(
      folder.fault_of("{type: tfrecord, path: '@/r', num_classes: 2, record_shape: [3, 9, 9]}"),
      AllOf(StartsWith("65"), HasSubstr("not the 243 of its shape [3, 9, 9]")));
  EXPECT_THAT(folder.fault_of("{type: tfrecord, path: '@/r'}"),
              AllOf(StartsWith("78"), HasSubstr("num_classes")));
  folder.write("r", image_record() + lockstep::tests::tfrecord("no example"));
  EXPECT_THAT(folder.fault_of(kRecords, 1), AllOf(StartsWith("65"), HasSubstr("tf.train.Example")));
}

TEST(BadFiles, ImagesCutAndNotImages) {
  const DataFolder folder;
  const std::string png = small_png(), jpeg = small_jpeg();
  const auto fault = [&](const std::string& bytes) {
    folder.write("set/a/1.jpg", bytes);
    return folder.fault_of("{type: image_folder, path: '@/set', image_size: 8}");
  };
  EXPECT_EQ(fault(png), "no fault");  // the content says what it is
  EXPECT_EQ(fault(jpeg), "no fault");
  for (const std::string& bytes :
       {png.substr(0, png.size() / 2), jpeg.substr(0, jpeg.size() / 2), png.substr(0, 20),
        jpeg.substr(0, 30), jpeg.substr(0, jpeg.size() - 40)})
    EXPECT_THAT(fault(bytes),
                AllOf(StartsWith("65: [data] "), HasSubstr("/set/a/1.jpg: sample 0: ")));
  EXPECT_THAT(fault("GIF89a"), AllOf(StartsWith("65"), HasSubstr("neither JPEG nor PNG")));
  EXPECT_THAT(fault(""), StartsWith("65"));
  std::string flipped = png;
  flipped[png.find("IDAT") + 8] ^= 0x55;
  EXPECT_THAT(fault(flipped), StartsWith("65"));
}

TEST(BadFiles, ImagesThatSayTheyAreHugeTakeNoMemory) {
  const DataFolder folder;
  const auto with_png_size = [](uint32_t width, uint32_t height) {
    return small_png().replace(16, 8, written::big_endian32(width) + written::big_endian32(height));
  };
  std::string jpeg = small_jpeg();
  jpeg.replace(jpeg.find("\xff\xc0") + 5, 4, "\xff\xff\xff\xff");
  const int64_t before = peak_bytes();
  for (const std::string& bytes :
       {with_png_size(100'000, 100'000), with_png_size(0xffffffff, 0xffffffff),
        with_png_size(20'000, 10'000), with_png_size(0, 4), jpeg}) {
    folder.write("set/a/1.png", bytes);
    EXPECT_THAT(folder.fault_of("{type: image_folder, path: '@/set', image_size: 8}"),
                AllOf(StartsWith("65"), HasSubstr("pixels")));
  }
  EXPECT_LT(peak_bytes() - before, int64_t{64} << 20);
}

TEST(BadFiles, ImagesOfSeveralSizesWantASize) {
  const DataFolder folder;
  folder.write("a/1.png", small_png(4));
  folder.write("a/2.png", small_png(5));
  EXPECT_THAT(
      folder.fault_of("{type: files, path: '@'}", 1),
      AllOf(StartsWith("65"), HasSubstr("2.png: sample 1: "), HasSubstr("give image_size")));
  EXPECT_EQ(folder.fault_of("{type: files, path: '@', image_size: 6}", 1), "no fault");
}

TEST(BadFiles, Csv) {
  const DataFolder folder;
  folder.write("a.png", small_png());
  const auto fault = [&](const std::string& text, const std::string& more = "") {
    folder.write("s.csv", text);
    return folder.fault_of("{type: image_csv, path: '@/s.csv'" + more + "}");
  };
  EXPECT_EQ(fault("a.png,1"), "no fault");
  EXPECT_THAT(fault("a.png,1\na.png\n"),
              AllOf(StartsWith("65"), HasSubstr("/s.csv:2: has 1 columns")));
  EXPECT_THAT(
      fault("file,clas\na.png,1\n", ", label_column: class"),
      AllOf(StartsWith("65"), HasSubstr("/s.csv:1: no column 'class' (did you mean 'clas'?)")));
  EXPECT_THAT(fault("a.png,1\n\"a.png,1\na.png,1\n"),
              AllOf(StartsWith("65"), HasSubstr("/s.csv:2: a quote that opens")));
  EXPECT_THAT(fault("a.png,1\na.png,7\n", ", num_classes: 7"),
              AllOf(StartsWith("65"), HasSubstr("/s.csv:2: label 7 is out of range")));
  EXPECT_THAT(fault("a.png,1\na.png,-1\n"),
              AllOf(StartsWith("65"), HasSubstr("/s.csv:2: the label '-1'")));
  EXPECT_THAT(fault("a.png,1\nb.png,0\n"),
              AllOf(StartsWith("66"), HasSubstr("/s.csv:2: "), HasSubstr("b.png does not exist")));
  EXPECT_THAT(fault(""), AllOf(StartsWith("65"), HasSubstr("contains no line")));
  EXPECT_THAT(fault("file,label\n"),
              AllOf(StartsWith("65"), HasSubstr("no image after its header")));
}

TEST(BadFiles, NothingMatches) {
  const DataFolder folder;
  folder.write("train.csv", "a");
  EXPECT_THAT(folder.fault_of("{type: files, path: '@/*.tfrecord'}"),
              AllOf(StartsWith("66"), HasSubstr("no such file")));
  EXPECT_THAT(folder.fault_of("{type: image_csv, path: '@/trian.csv'}"),
              AllOf(StartsWith("66"), HasSubstr("did you mean 'train.csv'?")));
  folder.write("empty/notes.txt", "a");
  EXPECT_THAT(folder.fault_of("{type: image_folder, path: '@/empty'}"),
              AllOf(StartsWith("66"), HasSubstr("a folder for each class")));
  EXPECT_THAT(folder.fault_of("{type: files, path: '@/empty/notes.txt'}"),
              AllOf(StartsWith("78"), HasSubstr("tfrecord")));
  EXPECT_THAT(folder.fault_of("{type: tfrecords, path: '@'}"),
              AllOf(StartsWith("78"), HasSubstr("did you mean 'tfrecord'?")));
  EXPECT_THAT(folder.fault_of("{type: idx}"),
              AllOf(StartsWith("78"), HasSubstr("'data.train.path' is required")));
  EXPECT_THAT(folder.fault_of("{type: idx, path: a, context: 3}"),
              AllOf(StartsWith("78"), HasSubstr("unknown key 'context'")));
}

TEST(BadFiles, FolderThatIsNotThere) {
  const DataFolder folder;
  folder.write("train/a/1.png", small_png());
  for (const std::string type : {"image_folder", "images", "cifar10", "tfrecord", "files"})
    EXPECT_THAT(
        folder.fault_of("{type: " + type + ", path: '@/trian'}"),
        AllOf(StartsWith("66"),
              HasSubstr(type == "image_folder" ? "/trian: no such folder" : "/trian: no such file"),
              HasSubstr("(did you mean 'train'?)")))
        << type;
  EXPECT_THAT(folder.fault_of("{type: image_folder, path: nothere}"),
              HasSubstr("nothere: no such folder in " + std::filesystem::current_path().string()));
  EXPECT_THAT(folder.fault_of("{type: tfrecord, path: nothere}"),
              HasSubstr("nothere: no such file in " + std::filesystem::current_path().string()));
  EXPECT_THAT(folder.fault_of("{type: image_folder, path: '@/train/a/1.png'}"),
              AllOf(StartsWith("66"), HasSubstr("1.png: is a file, not a folder")));
}

TEST(BadFiles, IdxAndCifar) {
  const DataFolder folder;
  const std::string labels = written::idx_of({2}, std::string("\0\1", 2));
  const auto fault = [&](const std::string& images, const std::string& of_labels) {
    folder.write("images", images);
    folder.write("labels", of_labels);
    return folder.fault_of("{type: idx, path: '@/images'}");
  };
  const std::string good = written::idx_of({2, 2, 2}, std::string(8, 'x'));
  EXPECT_EQ(fault(good, labels), "no fault");
  EXPECT_THAT(fault("\x1f\x8b..............", labels),
              AllOf(StartsWith("65"), HasSubstr("gunzip")));
  EXPECT_THAT(fault(std::string("\0\0\x0d\x01....", 8), labels),
              AllOf(StartsWith("65"), HasSubstr("only uint8")));
  EXPECT_THAT(fault(good.substr(0, good.size() - 1), labels),
              AllOf(StartsWith("65"), HasSubstr("7 bytes after its header")));
  EXPECT_THAT(fault(good.substr(0, 9), labels), AllOf(StartsWith("65"), HasSubstr("truncated")));
  EXPECT_THAT(fault(written::idx_of({0xffffffff, 0xffffffff, 0xffffffff}, ""), labels),
              StartsWith("65"));
  EXPECT_THAT(fault(good, written::idx_of({3}, std::string(3, '\0'))),
              AllOf(StartsWith("65"), HasSubstr("3 labels")));
  EXPECT_THAT(folder.fault_of("{type: idx, path: '@/images', num_classes: 1}", 1),
              StartsWith("65"));
  folder.write("c.bin", std::string(3072, '\0'));
  EXPECT_THAT(folder.fault_of("{type: cifar10, path: '@/c.bin'}"),
              AllOf(StartsWith("65"), HasSubstr("not a multiple of the 3073")));
  folder.write("c.bin", "\x0a" + std::string(3072, '\0'));
  EXPECT_THAT(
      folder.fault_of("{type: cifar10, path: '@/c.bin'}"),
      AllOf(StartsWith("65"), HasSubstr("c.bin: offset 0: sample 0: label 10 is out of range")));
}

TEST(BadFiles, Tokens) {
  const DataFolder folder;
  folder.write("t.bin", std::string("\1\0\2\0\3", 5));
  EXPECT_THAT(folder.fault_of("{type: tokens, path: '@/t.bin', context: 1}"),
              AllOf(StartsWith("65"), HasSubstr("not a multiple of the 2")));
  folder.write("t.bin", std::string("\1\0\2\0\3\0\4\0", 8));
  EXPECT_THAT(folder.fault_of("{type: tokens, path: '@/t.bin', context: 4}"),
              AllOf(StartsWith("65"), HasSubstr("context")));
  EXPECT_THAT(folder.fault_of("{type: tokens, path: '@/t.bin', context: 2, vocabulary: 3}"),
              AllOf(StartsWith("65"),
                    HasSubstr("/t.bin: offset 4: token 3 is not in the vocabulary of 3")));
}

TEST(BadFiles, Npy) {
  const DataFolder folder;
  folder.write("y.npy", written::npy_of("|u1", "(2,)", std::string("\0\1", 2)));
  const auto fault = [&](const std::string& bytes) {
    folder.write("x.npy", bytes);
    return folder.fault_of("{type: npy, path: '@/x.npy', targets: '@/y.npy'}");
  };
  const std::string values(16, '\0');
  EXPECT_EQ(fault(written::npy_of("<f4", "(2, 2)", values)), "no fault");
  EXPECT_THAT(fault(written::npy_of("|O", "(2, 2)", values)),
              AllOf(StartsWith("65"), HasSubstr("Python objects")));
  EXPECT_THAT(fault(written::npy_of("<f4", "(2, 2)", values, "True")),
              AllOf(StartsWith("65"), HasSubstr("Fortran")));
  EXPECT_THAT(fault(written::npy_of(">f4", "(2, 2)", values)),
              AllOf(StartsWith("65"), HasSubstr("big-endian")));
  EXPECT_THAT(fault(written::npy_of("<f4", "(2, 3)", values)),
              AllOf(StartsWith("65"), HasSubstr("is truncated")));
  EXPECT_THAT(fault(written::npy_of("<f4", "(3, 1)", values)),
              AllOf(StartsWith("65"), HasSubstr("2 targets for 3 inputs")));
  EXPECT_THAT(fault(written::npy_of("<f4", "(4611686018427387904, 4)", values)), StartsWith("65"));
  EXPECT_THAT(fault(written::npy_of("<f4", "(-1, 4)", values)), StartsWith("65"));
  EXPECT_THAT(fault("PK"), AllOf(StartsWith("65"), HasSubstr("not an .npy file")));
}

TEST(BadFiles, Archives) {
  const DataFolder folder;
  const auto fault = [&](const std::string& bytes) {
    folder.write("s.tar", bytes);
    return folder.fault_of("{type: webdataset, path: '@/s.tar'}");
  };
  const std::string good =
      written::tar_member("1.png", small_png()) + written::tar_member("1.cls", "1");
  EXPECT_EQ(fault(good + written::tar_end()), "no fault");
  EXPECT_THAT(fault(good), AllOf(StartsWith("65"), HasSubstr("is truncated")));
  EXPECT_THAT(fault(good.substr(0, 700)), AllOf(StartsWith("65"), HasSubstr("s.tar: offset ")));
  EXPECT_THAT(fault(written::tar_member("a/../../1.png", small_png()) + written::tar_end()),
              AllOf(StartsWith("65"), HasSubstr("'a/../../1.png' is outside")));
  EXPECT_THAT(fault(written::tar_member("/etc/1.png", small_png()) + written::tar_end()),
              StartsWith("65"));
  EXPECT_THAT(fault(written::tar_member("1.png", small_png()) + written::tar_end()),
              AllOf(StartsWith("65"), HasSubstr("without a .cls")));
  EXPECT_THAT(fault(written::tar_member("1.png", small_png()) +
                    written::tar_member("1.cls", "cat") + written::tar_end()),
              AllOf(StartsWith("65"), HasSubstr("'cat'")));
  std::string damaged = good + written::tar_end();
  damaged[0] = 'X';
  EXPECT_THAT(fault(damaged), AllOf(StartsWith("65"), HasSubstr("checksum")));
}

TEST(BadFiles, OptionsThatDoNotGoTogether) {
  const DataFolder folder;
  folder.write("x.npy", written::npy_of("<f4", "(2, 2)", std::string(16, '\0')));
  folder.write("y.npy", written::npy_of("|u1", "(2,)", std::string("\0\1", 2)));
  const std::string begin = "{type: npy, path: '@/x.npy', targets: '@/y.npy', ";
  EXPECT_THAT(folder.fault_of(begin + "mean: 0.5}"),
              AllOf(StartsWith("78"), HasSubstr("for images")));
  for (const char* wrong : {"std: [0]", "std: 58.395", "mean: [123.675, 0.4, 0.4]", "mean: -0.1"})
    EXPECT_THAT(folder.fault_of(begin + wrong + "}"),
                AllOf(StartsWith("78"), HasSubstr("pixels are divided by 255 first")))
        << wrong;
  EXPECT_THAT(folder.fault_of(begin + "channels: 2}"),
              AllOf(StartsWith("78"), HasSubstr("1 channel or 3")));
  EXPECT_THAT(folder.fault_of(begin + "augment: {horizontal_flip: 2}}"), StartsWith("78"));
}

}  // namespace bad_files_test
}  // namespace lockstep::data
