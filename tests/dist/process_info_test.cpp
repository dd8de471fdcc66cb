#include "dist/process_info.h"

#include <map>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "base/log.h"

namespace lockstep::dist {
namespace process_info_test {

ProcessInfo read(const std::map<std::string, std::string>& variables) {
  return read_process_info([&](const std::string& name) {
    const auto found = variables.find(name);
    return found == variables.end() ? std::nullopt : std::optional(found->second);
  });
}

struct Expected {
  std::string launcher;
  int rank, world_size, local_rank, local_world_size, num_nodes;
};

void expect_info(const ProcessInfo& info, const Expected& expected) {
  EXPECT_EQ(info.launcher, expected.launcher);
  EXPECT_EQ(info.rank, expected.rank);
  EXPECT_EQ(info.world_size, expected.world_size);
  EXPECT_EQ(info.local_rank, expected.local_rank);
  EXPECT_EQ(info.local_world_size, expected.local_world_size);
  EXPECT_EQ(info.num_nodes, expected.num_nodes);
  EXPECT_FALSE(info.node.empty());
}

const std::map<std::string, std::string> kMpirun{{"OMPI_COMM_WORLD_RANK", "5"},
                                                 {"OMPI_COMM_WORLD_SIZE", "8"},
                                                 {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                                                 {"OMPI_COMM_WORLD_LOCAL_SIZE", "4"},
                                                 {"PMIX_RANK", "5"}};
const std::map<std::string, std::string> kSrun{{"PMIX_RANK", "4"},
                                               {"SLURM_PROCID", "4"},
                                               {"SLURM_STEP_NUM_TASKS", "5"},
                                               {"SLURM_NTASKS", "64"},
                                               {"SLURM_LOCALID", "0"},
                                               {"SLURM_NODEID", "2"},
                                               {"SLURM_STEP_TASKS_PER_NODE", "2(x2),1"},
                                               {"SLURM_STEP_NUM_NODES", "3"}};

TEST(ProcessInfo, WithoutALauncherTheWorldIsOne) { expect_info(read({}), {"none", 0, 1, 0, 1, 1}); }

TEST(ProcessInfo, MpirunWinsOverWhatItSetsBesides) {
  expect_info(read(kMpirun), {"mpirun", 5, 8, 1, 4, 0});
}

TEST(ProcessInfo, SrunsStepCountsNotTheJob) { expect_info(read(kSrun), {"srun", 4, 5, 0, 1, 3}); }

TEST(ProcessInfo, SrunsListOfTasksIsReadByNode) {
  for (const auto& [node, tasks] :
       std::map<std::string, int>{{"0", 2}, {"1", 2}, {"2", 1}, {"3", 0}}) {
    auto variables = kSrun;
    variables["SLURM_NODEID"] = node;
    EXPECT_EQ(read(variables).local_world_size, tasks) << "node " << node;
  }
}

TEST(ProcessInfo, ABatchScriptIsNoTaskOfItsJob) {
  expect_info(read({{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "64"}, {"SLURM_JOB_ID", "9"}}),
              {"none", 0, 1, 0, 1, 1});
}

TEST(ProcessInfo, Torchrun) {
  expect_info(
      read({{"RANK", "3"}, {"WORLD_SIZE", "4"}, {"LOCAL_RANK", "3"}, {"LOCAL_WORLD_SIZE", "4"}}),
      {"torchrun", 3, 4, 3, 4, 1});
}

TEST(ProcessInfo, AVariableThatIsNoNumberIsNamed) {
  for (const std::string text : {"", "x", "1x", "-1", "1.0", "99999999999"}) {
    auto variables = kMpirun;
    variables["OMPI_COMM_WORLD_RANK"] = text;
    try {
      read(variables);
      ADD_FAILURE() << "accepted '" << text << "'";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::kConfig);
      EXPECT_THAT(error.what(), ::testing::HasSubstr("OMPI_COMM_WORLD_RANK='" + text + "'"));
    }
  }
}

TEST(ProcessInfo, ARankOutsideItsWorldIsRefused) {
  EXPECT_THROW(read({{"RANK", "4"}, {"WORLD_SIZE", "4"}}), Error);
}

TEST(ProcessInfo, AWorldSmallerThanPromisedIsRefused) {
  EXPECT_NO_THROW(require_promised_ranks(read(kMpirun), 8));
  EXPECT_NO_THROW(require_promised_ranks(read({}), 2));
  try {
    require_promised_ranks(read(kSrun), 1);
    FAIL() << "accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::kConfig);
    EXPECT_TRUE(error.on_every_rank());
    EXPECT_THAT(error.what(), ::testing::HasSubstr("srun's variables say 5 ranks, MPI sees 1"));
  }
}

TEST(ProcessInfo, OneRankInALargerAllocationIsWarnedOf) {
  const int64_t before = log::num_lines(log::Level::kWarning);
  for (const char* num_tasks : {"4", "1"}) {
    const auto batch_script = [&](const std::string& name) {
      return name == "SLURM_NTASKS" ? std::optional<std::string>(num_tasks) : std::nullopt;
    };
    warn_of_idle_tasks(read_process_info(batch_script), batch_script);
  }
  EXPECT_EQ(log::num_lines(log::Level::kWarning), before + 1);
}

}  // namespace process_info_test
}  // namespace lockstep::dist
