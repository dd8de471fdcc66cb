#include "checkpoint/import/safetensors.h"

#include <filesystem>

#include <gtest/gtest.h>

#include "base/error.h"
#include "checkpoint/import/load_weights.h"
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

at::Tensor pruned(at::IntArrayRef sizes, double share, at::ScalarType type) {
  return (at::randn(sizes) * 50).to(type) * (at::rand(sizes) >= share).to(type);
}

TEST(Safetensors, WeightsWithoutZerosReadBackEqual) {
  TemporaryFolder folder;
  at::manual_seed(1);
  const std::vector<SafetensorsItem> weights{
      {"linear.weight", pruned({40, 333}, 0.9, at::kFloat)},
      {"conv.weight", pruned({16, 32, 3, 3}, 0.8, at::kFloat)},
      {"int8.weight", pruned({64, 100}, 0.95, at::kChar)},
      {"zeros.weight", at::zeros({30, 50})},
      {"one row.weight", pruned({1, 1000}, 0.9, at::kFloat)},
      {"dense.weight", at::randn({20, 20})},
      {"short.weight", pruned({50, 2}, 0.9, at::kFloat)},
      {"none.weight", at::zeros({0, 3})},
      {"bias", at::zeros({500})}};
  std::vector<SafetensorsItem> items;
  for (const SafetensorsItem& weight : weights) {
    const auto parts = without_zeros(weight);
    items.insert(items.end(), parts.begin(), parts.end());
  }
  EXPECT_EQ(items.size(), 9U + 5 * 3);
  write_safetensors(folder / "f", items, {});
  const auto file = open_safetensors_file(folder / "f");
  EXPECT_EQ(file->names().size(), weights.size());
  for (const auto& [name, tensor] : weights) {
    EXPECT_TRUE(at::equal(file->read(name), tensor)) << name;
    EXPECT_EQ(file->form(name).shape, tensor.sizes().vec()) << name;
  }
}

TEST(Safetensors, AWeightWithoutZerosTakesItsValuesAndABitEach) {
  at::manual_seed(1);
  const at::Tensor weight = pruned({512, 2048}, 0.9, at::kFloat);
  size_t num_bytes = 0;
  for (const SafetensorsItem& part : without_zeros({"w", weight}))
    num_bytes += part.tensor.nbytes();
  const auto least =
      static_cast<double>(weight.count_nonzero().item<int64_t>() * 4 + weight.numel() / 8);
  EXPECT_LT(static_cast<double>(num_bytes), 1.15 * least);
}

TEST(Safetensors, PartsThatDoNotFitAreDamage) {
  at::manual_seed(1);
  const auto parts = without_zeros({"w", pruned({20, 40}, 0.9, at::kFloat)});
  ASSERT_EQ(parts.size(), 4U);
  const auto code_of = [&](std::vector<SafetensorsItem> items) {
    TemporaryFolder folder;
    write_safetensors(folder / "f", items, {});
    try {
      (void)open_safetensors_file(folder / "f")->read("w");
    } catch (const Error& fault) {
      return fault.code();
    }
    return ExitCode::kDone;
  };
  EXPECT_EQ(code_of(parts), ExitCode::kDone);
  const auto with = [&](size_t part, const at::Tensor& tensor) {
    auto items = parts;
    items.at(part).tensor = tensor;
    return items;
  };
  const at::Tensor values = parts[0].tensor, bits = parts[1].tensor;
  EXPECT_EQ(code_of(with(0, values.slice(0, 1))), ExitCode::kBadData);
  EXPECT_EQ(code_of(with(0, at::cat({values, values}))), ExitCode::kBadData);
  EXPECT_EQ(code_of(with(1, bits.slice(0, 1))), ExitCode::kBadData);
  EXPECT_EQ(code_of(with(1, bits.to(at::kInt))), ExitCode::kBadData);
  for (const std::vector<int64_t>& sizes :
       {std::vector<int64_t>{20, 41}, {20, 80}, {-20, 40}, {0, 40}, {int64_t{1} << 60, 40}, {20}})
    EXPECT_EQ(code_of(with(3, at::tensor(sizes))), ExitCode::kBadData) << sizes[0];
}

TEST(Safetensors, ABitMaskThatIsItselfWithoutZerosIsDamage) {
  TemporaryFolder folder;
  const at::Tensor one = at::ones({1, 1}, at::kLong);
  write_safetensors(folder / "f",
                    {{"a.bitmask.compressed", at::ones({100000}, at::kByte)},
                     {"a.bitmask.bitmask", at::ones({1, 1}, at::kByte)},
                     {"a.bitmask.shape", one.flatten().repeat(2)},
                     {"a.compressed", at::ones({1})},
                     {"a.shape", one.flatten().repeat(2)}},
                    {});
  EXPECT_THROW((void)open_safetensors_file(folder / "f")->read("a"), Error);
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
