#include "launch/slurm/sbatch_script.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "base/files/files.h"
#include "base/process/shell.h"
#include "tests/support/temporary_folder.h"

namespace lockstep::launch {
namespace sbatch_script_test {

using ::testing::HasSubstr;
using ::testing::Not;

const SlurmJob kJob{.name = "digits", .program = {"lockstepd"}, .log_file = "digits-%j.log"};

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
}

}  // namespace sbatch_script_test
}  // namespace lockstep::launch
