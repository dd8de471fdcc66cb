#include "cli/launching.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "base/exit_class.h"
#include "base/files/files.h"
#include "base/process.h"
#include "tests/support/temporary_folder.h"

namespace lockstep::cli {
namespace sbatch_script_test {

using ::testing::HasSubstr;
using ::testing::Not;

const SlurmJob kJob{.name = "digits", .program = {"lockstepd"}};

TEST(SbatchScript, SaysHowManyRanksAndWhenTheyAreTold) {
  SlurmJob job = kJob;
  job.num_nodes = 4;
  job.ranks_per_node = 8;
  job.grace_s = 120;
  job.gpus_per_rank = 1;
  job.cpus_per_rank = 6;
  job.directives = {"--partition=long"};
  const std::string script = sbatch_script(job);
  for (const char* line :
       {"#SBATCH --nodes=4\n", "#SBATCH --ntasks-per-node=8\n", "#SBATCH --signal=B:USR1@120\n",
        "#SBATCH --gpus-per-task=1\n", "#SBATCH --cpus-per-task=6\n", "#SBATCH --partition=long\n",
        "srun --mpi=pmix --kill-on-bad-exit=1 lockstepd &\n", "-lt 50 ]"})
    EXPECT_THAT(script, HasSubstr(line));
  EXPECT_THAT(sbatch_script(kJob), Not(HasSubstr("gpus-per-task")));
}

TEST(SbatchScript, IsAScriptThatBashReads) {
  const tests::TemporaryFolder folder;
  const std::string path = (folder.path() / "job.sh").string();
  SlurmJob job = kJob;
  job.program = {"lockstepd", "--set", "data={type: 'it''s', path: a b}"};
  files::write_atomically(path, sbatch_script(job));
  EXPECT_EQ(run_in_shell("bash -n '" + path + "' 2>&1").text, "");
}

TEST(SbatchScript, QueuesAgainAfterAStopAndWhatIsTransient) {
  const std::string codes = "75 | " + codes_for_case(ExitClass::kTransient) + ")";
  EXPECT_THAT(sbatch_script(kJob), HasSubstr("case $code in\n  " + codes));
}

/// Patterns after `case $code in` in launch/kubernetes/launcher.sh.
std::string launcher_part(const std::string& from, const std::string& to) {
  const std::string text = files::read(LOCKSTEP_SOURCE_DIR "/launch/kubernetes/launcher.sh");
  const size_t begin = text.find(from);
  const size_t end = text.find(to, begin);
  return begin == text.npos || end == text.npos ? "" : text.substr(begin, end - begin);
}

TEST(KubernetesLauncher, StartsAgainWhatIsTransient) {
  EXPECT_THAT(launcher_part("(75): started again", "the ranks are lost"),
              HasSubstr("\n    " + codes_for_case(ExitClass::kTransient) + ")\n"));
}

TEST(KubernetesLauncher, EndsWith75AfterAStopAsTheSupervisorDoes) {
  std::string codes;
  for (const ExitFact& fact : kExitFacts)
    if (fact.is_usual_after_a_stop && fact.exit_class != ExitClass::kStopped)
      codes += (codes.empty() ? "" : " | ") + std::to_string(fact.code);
  EXPECT_THAT(launcher_part("there is nothing more to save", "exit \"$code\""),
              HasSubstr("\n  " + codes + ") code=75 ;;"));
}

TEST(SbatchScript, WhatIsNoJobIsRefused) {
  SlurmJob job = kJob;
  job.num_nodes = 0;
  EXPECT_THROW((void)sbatch_script(job), Error);
  job = kJob;
  job.name = "a\n#SBATCH --uid=0";
  EXPECT_THROW((void)sbatch_script(job), Error);
  job = kJob;
  job.program = {};
  EXPECT_THROW((void)sbatch_script(job), Error);
  for (const char* mpi : {"", "pmix; reboot", "p mix"}) {
    job = kJob;
    job.mpi = mpi;
    EXPECT_THROW((void)sbatch_script(job), Error) << mpi;
  }
  job = kJob;
  for (const char* directive : {"partition=long", "--array=1-4", "-a 1-4"}) {
    job = kJob;
    job.directives = {directive};
    EXPECT_THROW((void)sbatch_script(job), Error) << directive;
  }
}

TEST(SbatchScript, TheGraceFitsIntoTheTimeLimit) {
  const auto message_of = [](const char* limit, int grace_s) -> std::string {
    SlurmJob job = kJob;
    job.time_limit = limit;
    job.grace_s = grace_s;
    try {
      (void)sbatch_script(job);
    } catch (const Error& fault) {
      EXPECT_EQ(fault.code(), ExitCode::kUsage);
      return fault.what();
    }
    return "";
  };
  for (const char* limit : {"6", "5:01", "0:05:01", "0-1", "UNLIMITED", "0"})
    EXPECT_EQ(message_of(limit, 300), "") << limit;
  for (const char* limit : {"1", "5", "0:300", "0-0:5", "0:05:00"})
    EXPECT_THAT(message_of(limit, 300), HasSubstr("--grace 300 s must be shorter than")) << limit;
  for (const char* limit : {"foo", "", "1h", "1:2:3:4"})
    EXPECT_THAT(message_of(limit, 1), HasSubstr("write minutes as 90")) << limit;
}

TEST(SbatchScript, NamesAreQuotedAsSbatchReadsThem) {
  SlurmJob job = kJob;
  job.name = R"(a 'b' $c\d #%j)";
  const std::string script = sbatch_script(job);
  EXPECT_THAT(script, HasSubstr(R"(#SBATCH --job-name='a '\''b'\'' $c\\d #%j'
)"));
  EXPECT_THAT(script, HasSubstr("#SBATCH --output=a__b___c_d___j-%j.log\n"));
}

}  // namespace sbatch_script_test
}  // namespace lockstep::cli
