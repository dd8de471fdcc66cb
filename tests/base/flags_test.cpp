#include "base/flags.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"

namespace lockstep::flags {
namespace flags_test {

using ::testing::HasSubstr;

LOCKSTEP_FLAG(double, learning_rate);
LOCKSTEP_FLAG(int64_t, batch_size);

Values values() {
  return {{"learning_rate", "0.25"},
          {"batch_size", "64"},
          {"debug", "true"},
          {"model_dir", "models"},
          {"warm_start_ckpt", std::nullopt}};
}

template <typename Call>
std::string fault_of(const Call& call) {
  try {
    call();
  } catch (const Error& fault) {
    EXPECT_EQ(fault.code(), ExitCode::kUsage);
    return fault.what();
  }
  return "no fault";
}

TEST(Flags, AreReadByTheirType) {
  const Frozen frozen(values());
  EXPECT_EQ(FLAGS_learning_rate.get(), 0.25);
  EXPECT_EQ(FLAGS_batch_size.get(), 64);
  EXPECT_EQ(get<double>("batch_size"), 64);
  EXPECT_TRUE(get<bool>("debug"));
  EXPECT_EQ(get<std::string>("model_dir"), "models");
  EXPECT_TRUE(has_value("model_dir"));
  EXPECT_FALSE(has_value("warm_start_ckpt"));
}

TEST(Flags, WhatIsNoValueOfTheTypeIsRefused) {
  const Frozen frozen(values());
  EXPECT_THAT(fault_of([] { (void)get<int64_t>("learning_rate"); }),
              HasSubstr("flag 'learning_rate' is '0.25', not a whole number"));
  EXPECT_THAT(fault_of([] { (void)get<double>("model_dir"); }), HasSubstr("not a number"));
  EXPECT_THAT(fault_of([] { (void)get<bool>("batch_size"); }), HasSubstr("neither true nor false"));
  EXPECT_THAT(fault_of([] { (void)get<std::string>("warm_start_ckpt"); }),
              HasSubstr("has no value"));
  EXPECT_THAT(fault_of([] { (void)has_value("learning_rat"); }),
              HasSubstr("unknown flag 'learning_rat' (did you mean 'learning_rate'?)"));
}

TEST(Flags, AreFixedFromTheRunsBeginToItsEnd) {
  EXPECT_THAT(fault_of([] { (void)FLAGS_learning_rate.get(); }),
              HasSubstr("flag 'learning_rate' is read before the run begins"));
  const size_t num_given = given().size();
  set("learning_rate", "0.5");
  ASSERT_EQ(given().size(), num_given + 1);
  EXPECT_EQ(given().back(), (std::pair<std::string, std::string>("learning_rate", "0.5")));
  {
    const Frozen frozen(values());
    EXPECT_THAT(fault_of([] { set("learning_rate", "1"); }),
                HasSubstr("flag 'learning_rate' is set after the run began"));
    EXPECT_THROW(Frozen second({}), Error);
    EXPECT_EQ(FLAGS_learning_rate.get(), 0.25);
  }
  EXPECT_THROW((void)has_value("learning_rate"), Error);
}

}  // namespace flags_test
}  // namespace lockstep::flags
