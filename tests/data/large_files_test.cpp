#include <fstream>
#include <set>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "data/formats/file_set.h"
#include "data/image_encoders.h"
#include "data/written_files.h"
#include "support/tfrecord_writer.h"

/// Cases that small files do not reach: pieces of digests, files that are not mapped, more files
/// than stay open. Files are sparse.
namespace lockstep::data {
namespace large_files_test {

using written::DataFolder;

void put_byte(const std::string& path, int64_t offset, char byte) {
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  file.seekp(offset);
  file.put(byte);
}

TEST(LargeFiles, DigestsSeeSizesEndsAndPieces) {
  const DataFolder folder;
  const std::string small = folder.write("a/small", "abc"), large = folder.write("b/large", "x");
  constexpr int64_t kBytes = int64_t{300} << 20;
  std::filesystem::resize_file(large, kBytes);
  const auto digest = [&] { return digest_of_files({small, large}); };
  std::vector<std::string> all = {digest()};
  put_byte(small, 0, 'z');
  all.push_back(digest());
  put_byte(large, kBytes - 1, 'y');
  all.push_back(digest());
  const int64_t piece =
      (kBytes + 3 - 65536) / 511 * 200;  // the 201st begins there, 3 bytes are of the other file
  put_byte(large, piece - 3 + 100, 'y');
  all.push_back(digest());
  std::filesystem::resize_file(large, kBytes + 1);
  all.push_back(digest());
  EXPECT_EQ(std::set<std::string>(all.begin(), all.end()).size(), 5U);
  EXPECT_EQ(digest(), all.back());
  std::filesystem::rename(folder.path() / "b", folder.path() / "c");
  EXPECT_NE(digest_of_files({small, folder.path() / "c/large"}), all.back());
}

TEST(LargeFiles, ArraysAreReadRowByRow) {
  const DataFolder folder;
  const std::string header = written::npy_of("|u1", "(75000, 90, 90)", "");
  const std::string path = folder.write("x.npy", header);
  const auto begin = static_cast<int64_t>(header.size());
  std::filesystem::resize_file(path, static_cast<uintmax_t>(begin + int64_t{75000} * 8100));
  put_byte(path, begin + int64_t{74999} * 8100 + 8099, '\x33');
  folder.write("y.npy", written::npy_of("|u1", "(75000,)", std::string(75000, '\1')));
  const auto set = folder.open("{type: npy, path: '@/x.npy', targets: '@/y.npy'}");
  const Samples samples = set->get(std::vector<int64_t>{74999, 3}, 0);
  EXPECT_FLOAT_EQ(samples.inputs_BX[0][0][89][89].item<float>(), 0.2F);
  EXPECT_EQ(samples.inputs_BX.count_nonzero().item<int64_t>(), 1);
}

TEST(LargeFiles, MoreFilesThanStayOpen) {
  using namespace lockstep::tests;
  const DataFolder folder;
  constexpr int kNumFiles = 300;
  for (int i = 0; i < kNumFiles; ++i)
    folder.write(fmt::format("r-{:03}", i),
                 tfrecord(ExampleText()
                              .add("x", floats_feature({static_cast<float>(i)}))
                              .add("y", ints_feature({i}))
                              .bytes()));
  const auto set = folder.open(
      "{type: files, path: '@/r-*', image_feature: x, label_feature: y, num_classes: 300}");
  for (const int64_t i : {0, 299, 128, 0, 256, 1})
    EXPECT_EQ(written::labels_of(set->get(std::vector<int64_t>{i}, 0)), std::vector<int64_t>{i});
}

TEST(LargeFiles, AFolderThatLinksToItselfIsReadOnce) {
  const DataFolder folder;
  const std::vector<uint8_t> pixels = written::smooth_pixels(4, 4, 3);
  folder.write("set/a/1.png", written::png_of(pixels.data(), 4, 4, PNG_FORMAT_RGB));
  folder.write("other/2.png", written::png_of(pixels.data(), 4, 4, PNG_FORMAT_RGB));
  std::filesystem::create_directory_symlink(folder.path() / "set", folder.path() / "set/a/round");
  std::filesystem::create_directory_symlink(folder.path() / "other", folder.path() / "set/a/more");
  EXPECT_EQ(folder.open("{type: files, path: '@/set'}")->num_samples(), 2);
}

}  // namespace large_files_test
}  // namespace lockstep::data
