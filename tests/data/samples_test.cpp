#include <ATen/Functions.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "data/dataset.h"

namespace lockstep::data {
namespace samples_test {

using testing::ElementsAre;

/// Three samples by keyword; `more` contains a mask and a number of the whole batch.
Samples named() {
  Samples samples{at::arange(6, at::kLong).view({3, 2}), at::arange(3, at::kLong)};
  samples.num_records = 3;
  samples.more = {at::ones({3, 2}), at::scalar_tensor(7)};
  samples.names = {"tokens", "labels", "mask", "scale"};
  return samples;
}

TEST(Samples, AreCutByRow) {
  const Samples part = part_of(named(), 1, 2);
  EXPECT_TRUE(at::equal(part.inputs_BX, named().inputs_BX.narrow(0, 1, 2)));
  EXPECT_TRUE(at::equal(part.targets_BY, at::tensor({1, 2}, at::kLong)));
  EXPECT_EQ(part.more.at(0).size(0), 2);
  EXPECT_EQ(part.more.at(1).dim(), 0);
  EXPECT_EQ(part.names, named().names);
  EXPECT_EQ(part.num_records, 0);
}

TEST(Samples, ATensorWithoutARowForEachSampleForbidsACut) {
  Samples samples = named();
  samples.more[0] = at::ones({1, 2});
  EXPECT_EQ(part_of(samples, 0, 3).more.at(0).size(0), 1);
  try {
    (void)part_of(samples, 0, 2);
    FAIL();
  } catch (const Error& fault) {
    EXPECT_EQ(fault.code(), ExitCode::kConfig);
    EXPECT_THAT(fault.what(), testing::HasSubstr("mask is [1, 2] in a batch of 3 samples"));
  }
}

TEST(Samples, BecomeArgumentsWithTheTargetsLast) {
  EXPECT_THAT(arguments_of(named(), true).names, ElementsAre("tokens", "mask", "scale", "labels"));
  EXPECT_TRUE(at::equal(arguments_of(named(), true).tensors.back(), named().targets_BY));
  EXPECT_THAT(arguments_of(named(), false).names, ElementsAre("tokens", "mask", "scale"));
  Samples unlabelled = named();
  unlabelled.names[1] = "";
  EXPECT_EQ(arguments_of(unlabelled, true).tensors.size(), 3U);
  Samples positional = named();
  positional.names.clear();
  EXPECT_TRUE(arguments_of(positional, true).names.empty());
  EXPECT_EQ(arguments_of(positional, true).tensors.size(), 4U);
}

}  // namespace samples_test
}  // namespace lockstep::data
