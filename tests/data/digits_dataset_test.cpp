#include "data/dataset_table.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "base/files/files.h"
#include "support/temporary_folder.h"

namespace lockstep::data {
namespace digits_dataset_test {

const std::string kCsv = LOCKSTEP_SOURCE_DIR "/data/digits/digits.csv";

TEST(Digits, TheSplitIsFixedAndLeavesNothingOut) {
  const DigitsDataset train("train", ""), test("test", "");
  EXPECT_EQ(train.num_samples(), 1438);
  EXPECT_EQ(test.num_samples(), 359);
  EXPECT_EQ(train.spec().input_shape, (std::vector<int64_t>{1, 8, 8}));
  const Samples first_of_test = test.get(std::vector<int64_t>{0}, 0);  // line 5 of the file: a four
  EXPECT_EQ(first_of_test.targets_BY.item<int64_t>(), 4);
  EXPECT_EQ(train.get(std::vector<int64_t>{3, 0}, 0).targets_BY[0].item<int64_t>(), 3);
}

TEST(Digits, PixelsAreScaledToOne) {
  const Samples first = DigitsDataset("train", "").get(std::vector<int64_t>{0}, 0);
  EXPECT_EQ(first.inputs_BX.sum().item<float>(),
            294.0F / 16);  // the first line's pixels add up to 294
  EXPECT_EQ(first.inputs_BX.max().item<float>(), 15.0F / 16);
}

TEST(Digits, ThePathReadsTheSameData) {
  EXPECT_EQ(DigitsDataset("train", kCsv).digest(), DigitsDataset("train", "").digest());
  EXPECT_NE(DigitsDataset("train", "").digest(), DigitsDataset("test", "").digest());
}

std::string fault_of(const std::string& csv, ExitCode* code) {
  const tests::TemporaryFolder folder;
  files::write_atomically(folder.path() / "digits.csv", csv);
  try {
    DigitsDataset("train", (folder.path() / "digits.csv").string());
  } catch (const Error& fault) {
    *code = fault.code();
    return fault.what();
  }
  return "no fault";
}

TEST(Digits, ADamagedFileIsRefusedWithItsLine) {
  const std::string whole = files::read(kCsv);
  const auto replaced = [&](const std::string& from, const std::string& to) {
    std::string text = whole;
    return text.replace(text.find(from), from.size(), to);
  };
  ExitCode code{};
  EXPECT_THAT(fault_of(whole.substr(0, whole.size() / 2), &code),
              ::testing::HasSubstr("truncated in this line"));
  EXPECT_EQ(code, ExitCode::kBadData);
  EXPECT_THAT(fault_of(whole.substr(0, whole.rfind('\n', whole.size() / 2) + 1), &code),
              ::testing::HasSubstr("the file ends after"));
  EXPECT_THAT(fault_of(replaced("0,0,5,13", "0,0,5,17"), &code),
              ::testing::HasSubstr("digits.csv:1: field 4 is 17"));
  EXPECT_THAT(fault_of(replaced("0,0,5,13", "0,0,,13"), &code),
              ::testing::HasSubstr("digits.csv:1: field 3"));
  EXPECT_THAT(fault_of("", &code), ::testing::HasSubstr("ends after 0 lines"));
}

TEST(Digits, AMissingFileIsMissingInput) {
  try {
    DigitsDataset("train", "/nonexistent/digits.csv");
    FAIL();
  } catch (const Error& fault) {
    EXPECT_EQ(fault.code(), ExitCode::kInputMissing);
  }
}

}  // namespace digits_dataset_test
}  // namespace lockstep::data
