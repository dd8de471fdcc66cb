#include "base/threads.h"

#include <future>
#include <memory>
#include <stdexcept>

#include <gtest/gtest.h>

#include "tests/support/patience.h"

namespace lockstep {
namespace background_value_test {

using std::chrono::milliseconds;

constexpr milliseconds kLong{60'000};

TEST(BackgroundValue, IsMadeForEachCall) {
  auto number = std::make_shared<int>(0);
  BackgroundValue<int> value("test", [number] { return ++*number; });
  for (int i = 1; i <= 3; ++i) {
    const auto answer = value.get(kLong);
    EXPECT_EQ(answer.value, i);
    EXPECT_EQ(answer.fault, "");
  }
}

TEST(BackgroundValue, ThatDoesNotComeKeepsNobodyWaiting) {
  auto is_over = std::make_shared<std::promise<void>>();
  auto num_calls = std::make_shared<int>(0);
  BackgroundValue<int> value("test", [is_over, num_calls] {
    if (++*num_calls == 2) is_over->get_future().wait();
    return *num_calls;
  });
  EXPECT_EQ(value.get(kLong).value, 1);
  for (int i = 0; i < 3; ++i) {
    const auto answer = value.get(milliseconds(1));
    EXPECT_EQ(answer.value, 1) << "the one before";
    EXPECT_EQ(answer.fault, "no answer in time");
  }
  is_over->set_value();
  EXPECT_TRUE(tests::comes_true([&] { return value.get(kLong).fault.empty(); }));
}

TEST(BackgroundValue, ThatFailsIsTheOneBeforeWithTheReason) {
  auto fails = std::make_shared<bool>(true);
  BackgroundValue<int> value("test", [fails] {
    if (*fails) throw std::runtime_error("stale handle");
    return 7;
  });
  EXPECT_EQ(value.get(kLong).value, std::nullopt);
  EXPECT_EQ(value.get(kLong).fault, "stale handle");
  *fails = false;
  EXPECT_EQ(value.get(kLong).value, 7);
  *fails = true;
  const auto answer = value.get(kLong);
  EXPECT_EQ(answer.value, 7);
  EXPECT_EQ(answer.fault, "stale handle");
}

TEST(BackgroundValue, ThatNeverComesIsLeftBehind) {
  auto never = std::make_shared<std::promise<void>>();
  {
    BackgroundValue<int> value("test", [never] {
      never->get_future().wait();
      return 0;
    });
    EXPECT_EQ(value.get(milliseconds(1)).value, std::nullopt);
  }  // does not wait
  never->set_value();
}

}  // namespace background_value_test
}  // namespace lockstep
