#include "checkpoint/import/safetensors.h"

#include <filesystem>

#include <gtest/gtest.h>

#include "base/error.h"
#include "tests/checkpoint/save_fixture.h"
#include "tests/support/safetensors_file.h"

namespace lockstep::checkpoint {
namespace safetensors_test {

using lockstep::tests::SafetensorsFile;
using tests::TemporaryFolder;

TEST(Safetensors, EveryTypeReadsBackEqual) {
  TemporaryFolder folder;
  std::vector<SafetensorsItem> items;
  for (const at::ScalarType type : {at::kBool, at::kByte, at::kChar, at::kShort, at::kInt,
                                    at::kLong, at::kHalf, at::kBFloat16, at::kFloat, at::kDouble})
    items.push_back({std::string("values of ") + at::toString(type),
                     at::arange(15).remainder(2).reshape({3, 5}).to(type)});
  write_safetensors(folder / "all.safetensors", items, {});
  const SafetensorsFile file(folder / "all.safetensors");
  EXPECT_EQ(file.header.size(), items.size() + 1);
  for (const SafetensorsItem& item : items)
    EXPECT_TRUE(at::equal(file.tensor(item.name), item.tensor)) << item.name;
}

TEST(Safetensors, ShapesAndStridesAreRowMajor) {
  TemporaryFolder folder;
  const at::Tensor turned = at::arange(6, at::kFloat).reshape({2, 3}).t();
  write_safetensors(
      folder / "f",
      {{"turned", turned}, {"one", at::full({}, 7, at::kLong)}, {"none", at::empty({0, 3})}}, {});
  const SafetensorsFile file(folder / "f");
  EXPECT_TRUE(at::equal(file.tensor("turned"), turned));
  EXPECT_EQ(file.tensor("one").item<int64_t>(), 7);
  EXPECT_EQ(file.tensor("none").sizes(), (std::vector<int64_t>{0, 3}));
}

TEST(Safetensors, ValuesAreAlignedAndWithoutGaps) {
  TemporaryFolder folder;
  const int64_t num_bytes = write_safetensors(
      folder / "f",
      {{"a", at::ones({3}, at::kChar)}, {"b", at::ones({3})}, {"c", at::ones({5}, at::kDouble)}},
      {{"step", "12"}});
  const SafetensorsFile file(folder / "f");
  EXPECT_EQ(file.data_begin % 8, 0U);
  size_t end = 0;
  for (const auto& [name, entry] : file.header.items()) {
    if (name == "__metadata__") continue;
    EXPECT_EQ(entry["data_offsets"][0], end) << "in the order of the header";
    EXPECT_EQ(end % file.tensor(name).element_size(), 0U) << name;
    end = entry["data_offsets"][1];
  }
  EXPECT_EQ(file.data_begin + end, file.bytes.size());
  EXPECT_EQ(num_bytes, static_cast<int64_t>(file.bytes.size()));
  EXPECT_EQ(file.header["__metadata__"]["step"], "12");
}

/// The bytes of a whole small file, by hand.
TEST(Safetensors, BytesAreThoseOfTheFormat) {
  TemporaryFolder folder;
  write_safetensors(folder / "f", {{"w", at::full({2}, 1.0F)}}, {});
  const std::string header =
      R"({"__metadata__":{},"w":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})";
  const std::string padded = header + std::string((8 - header.size() % 8) % 8, ' ');
  const std::string one("\0\0\x80\x3f", 4);
  EXPECT_EQ(tests::bytes_of(folder / "f"), std::string(1, static_cast<char>(padded.size())) +
                                               std::string(7, '\0') + padded + one + one);
}

TEST(Safetensors, AFailureLeavesTheOldFile) {
  TemporaryFolder folder;
  write_safetensors(folder / "f", {{"w", at::ones({2})}}, {});
  const std::string before = tests::bytes_of(folder / "f");
  EXPECT_THROW(write_safetensors(folder / "f", {{"w", at::ones({2})}, {"w", at::ones({2})}}, {}),
               Error);
  std::filesystem::create_directory(folder / "taken");
  tests::put_bytes(folder / "taken/inside", "x");
  EXPECT_THROW(write_safetensors(folder / "taken", {{"w", at::ones({2})}}, {}), Error);
  EXPECT_EQ(tests::bytes_of(folder / "f"), before);
  EXPECT_EQ(files::list(folder.path()), (std::vector<std::string>{"f", "taken"}));
  EXPECT_THROW(write_safetensors(folder / "nowhere/f", {{"w", at::ones({2})}}, {}), Error);
}

}  // namespace safetensors_test
}  // namespace lockstep::checkpoint
