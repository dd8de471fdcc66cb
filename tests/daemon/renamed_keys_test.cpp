#include "daemon/config/renamed_keys.h"

#include <cstdlib>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/files/files.h"
#include "daemon/config/checkpoint_metadata.h"
#include "daemon/config/run_config.h"
#include "support/temporary_folder.h"

namespace lockstep::daemon {
namespace renamed_keys_test {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class RenamedKeys : public ::testing::Test {
 protected:
  /// A run file with this section `sync`; line 4 is its first key.
  RunConfig load(const std::string& sync, const std::vector<std::string>& sets = {}) {
    return load_with("run: {name: r}", "sync:\n" + sync, sets);
  }

  RunConfig load_with(const std::string& run, const std::string& section,
                      const std::vector<std::string>& sets = {}) {
    files::write_atomically(folder_.path() / "run.yaml",
                            run + "\ndata: {train: {type: digits}, global_batch_size: 8}\n" +
                                section + "\nmodel: {type: digits_net}\ntrain: {max_steps: 1}\n");
    std::vector<Override> overrides;
    for (const std::string& text : sets) overrides.push_back(parse_set(text));
    faults_ = {};
    return load_run_config((folder_.path() / "run.yaml").string(), overrides, &faults_);
  }

  tests::TemporaryFolder folder_;
  Diagnostics faults_;
};

TEST_F(RenamedKeys, OldNamesAreReadAndSayTheNewOne) {
  const RunConfig old = load("  wire: bf16\n  packed: never\n  agree_every: 7");
  EXPECT_TRUE(faults_.empty()) << faults_.text();
  EXPECT_EQ(old.sync.comm_dtype, "bf16");
  EXPECT_EQ(old.sync.sparse_allreduce, "never");
  EXPECT_EQ(old.sync.replica_check_every, 7);
  const std::string file = (folder_.path() / "run.yaml").string();
  EXPECT_THAT(
      old.warnings,
      ElementsAre(AllOf(HasSubstr(file + ":4: 'sync.wire'"), HasSubstr("comm_dtype")),
                  AllOf(HasSubstr(file + ":5: 'sync.packed'"), HasSubstr("sparse_")),
                  AllOf(HasSubstr(file + ":6: "), HasSubstr("'sync.replica_check_every'"))));
  const RunConfig now =
      load("  comm_dtype: bf16\n  sparse_allreduce: never\n  replica_check_every: 7");
  EXPECT_THAT(now.warnings, IsEmpty());
  EXPECT_EQ(now.settings, old.settings) << "a rank with the old name agrees with one with the new";
}

TEST_F(RenamedKeys, AKeyMovesToAnotherSectionThatMayOrMayNotBeThere) {
  for (const char* section : {"", "preemption:", "preemption: {signals: [SIGTERM]}"}) {
    const RunConfig config = load_with("run: {name: r, grace_s: 7}", section);
    EXPECT_TRUE(faults_.empty()) << section << faults_.text();
    EXPECT_EQ(config.preemption.grace_s, 7) << section;
    EXPECT_EQ(config.warnings.size(), 1U) << section;
  }
  load_with("run: {name: r, grace_s: 7}", "preemption: {grace_seconds: 5}");
  EXPECT_THAT(faults_.text(), HasSubstr("keep the new one"));
  load_with("run: {name: r, grace_s: 7}", "preemption: soon");
  EXPECT_THAT(faults_.text(), HasSubstr("preemption"));
}

TEST_F(RenamedKeys, RemovedKeysOfSyncAreFaultsThatSayWhatToDo) {
  load("  error_feedback: false\n  outer_optimizer: nesterov");
  EXPECT_EQ(faults_.list().size(), 2U) << faults_.text();
  EXPECT_THAT(faults_.text(),
              AllOf(HasSubstr("run.yaml:4:3: error: 'sync.error_feedback' is no longer supported"),
                    HasSubstr("use sync.comm_dtype fp32"), HasSubstr("run.yaml:5:3"),
                    HasSubstr("continue from the mean of the ranks")));
  for (const char* set : {"sync.outer_lr=1", "sync.outer_momentum=0", "sync={outer_lr: 1}"}) {
    load("  overlap: false", {set});
    EXPECT_EQ(faults_.list().size(), 1U) << faults_.text();
    EXPECT_THAT(faults_.text(), AllOf(HasSubstr("--set sync"), HasSubstr("no outer optimizer")));
  }
}

TEST_F(RenamedKeys, BothNamesAreAFaultWithBothPlaces) {
  load("  comm_dtype: bf16\n  wire: fp16");
  EXPECT_THAT(faults_.text(), AllOf(HasSubstr("run.yaml:5:3"), HasSubstr("'sync.wire'"),
                                    HasSubstr("line 4"), HasSubstr("keep the new one")));
}

TEST_F(RenamedKeys, AFaultOfTheValueKeepsItsPlaceAndHasTheNewName) {
  load("  wire: fp8");
  EXPECT_THAT(faults_.text(), AllOf(HasSubstr("run.yaml:4:9"), HasSubstr("sync.comm_dtype")));
}

TEST_F(RenamedKeys, OverridesMayUseOldNamesOverEither) {
  for (const char* file : {"  wire: fp32", "  comm_dtype: fp32", "  overlap: false"})
    for (const char* name : {"sync.wire", "sync.comm_dtype"}) {
      const RunConfig config = load(file, {std::string(name) + "=bf16"});
      EXPECT_TRUE(faults_.empty()) << file << ", " << name << ": " << faults_.text();
      EXPECT_EQ(config.sync.comm_dtype, "bf16") << file << ", " << name;
    }
  const RunConfig whole = load("  overlap: false", {"sync={wire: bf16}"});
  EXPECT_EQ(whole.sync.comm_dtype, "bf16");
  EXPECT_THAT(whole.warnings, ElementsAre(HasSubstr("--set sync")));
  EXPECT_THAT(load("  overlap: false", {"sync.wire=bf16"}).warnings,
              ElementsAre(HasSubstr("--set sync.wire: 'sync.wire' is now 'sync.comm_dtype'")));
}

TEST_F(RenamedKeys, SoMayTheEnvironment) {
  ::setenv("LOCKSTEP_SYNC_WIRE", "bf16", 1);
  const RunConfig config = load("  overlap: false");
  ::unsetenv("LOCKSTEP_SYNC_WIRE");
  EXPECT_EQ(config.sync.comm_dtype, "bf16");
  EXPECT_THAT(config.warnings, ElementsAre(HasSubstr("environment LOCKSTEP_SYNC_WIRE")));
}

TEST_F(RenamedKeys, RemovedKeysAreFaultsThatNameTheWayOut) {
  const std::string keys = "metrics:\n  pushgateway: http://n0:9091\n  processor_share: 0.1";
  load_with("run: {name: r}", keys);
  EXPECT_EQ(faults_.list().size(), 2U) << faults_.text();
  EXPECT_THAT(faults_.text(),
              AllOf(HasSubstr("run.yaml:4:3: error: 'metrics.pushgateway' is no longer supported"),
                    HasSubstr("'metrics.textfile_dir'"), HasSubstr("run.yaml:5:3"),
                    HasSubstr("'metrics.processor_share' is no longer supported")));
  for (const char* set : {"metrics.processor_share=1", "metrics={processor_share: 1}"}) {
    load_with("run: {name: r}", "metrics: {linger_secs: 0}", {set});
    EXPECT_EQ(faults_.list().size(), 1U) << faults_.text();
    EXPECT_THAT(faults_.text(), AllOf(HasSubstr("--set metrics"), HasSubstr("remove the line")));
  }
}

TEST(RenamedKeysOfCheckpoints, AreNoChangeOfTheSettings) {
  CheckpointMetadata saved, now;
  saved.settings = "sync.packed=never\nsync.wire=bf16";
  now.settings = "sync.comm_dtype=bf16\nsync.sparse_allreduce=never";
  EXPECT_THAT(changes_since(saved, now), IsEmpty());
  now.settings = "sync.comm_dtype=fp32\nsync.sparse_allreduce=never";
  EXPECT_THAT(changes_since(saved, now), ElementsAre("sync.comm_dtype was bf16, is fp32"));
}

}  // namespace renamed_keys_test
}  // namespace lockstep::daemon
