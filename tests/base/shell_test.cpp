#include "base/process.h"

#include <string>

#include <gtest/gtest.h>

namespace lockstep {
namespace shell_test {

TEST(Shell, WordsReachTheProgramAsTheyAre) {
  for (const std::string word :
       {"plain-word_1.0", "a b", "it's", "$HOME `x` \"y\" \\", "", "*", "#", "ü", "two\nlines"})
    EXPECT_EQ(run_in_shell("printf %s " + shell_quoted(word)).text, word);
  EXPECT_EQ(shell_quoted("--set=a.b=1"), "--set=a.b=1");
}

TEST(Shell, TellsHowACommandEnded) {
  EXPECT_EQ(run_in_shell("exit 3").exit_code, 3);
  EXPECT_EQ(run_in_shell("cat; echo said").text, "said\n");  // there is nothing to read
  EXPECT_EQ(run_in_shell("no-such-program 2>/dev/null").exit_code, 127);
  EXPECT_EQ(run_in_shell("kill -9 $$").exit_code, 127);
}

}  // namespace shell_test
}  // namespace lockstep
