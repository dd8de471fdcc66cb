// A save read back into the run that made it (eval.strict_restore_on_switch).
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "base/files/files.h"
#include "daemon/config/estimator_flags.h"
#include "daemon/run/resume.h"
#include "daemon/run/training_context.h"
#include "dist/communicator.h"
#include "support/temporary_folder.h"

namespace lockstep::daemon {
namespace reload_test {

TEST(Reload, ChangesNoBitAndRefusesASaveThatHoldsOthers) {
  const tests::TemporaryFolder folder;
  const auto file = folder.path() / "run.yaml";
  files::write_atomically(
      file,
      "run: {name: reload}\ntrain: {max_steps: 9}\nmodel: {type: mlp, layers: [3, 5, 4]}\n"
      "optimizer: {type: adam}\n"
      "data: {train: {type: random, shape: [3], classes: 4, samples: 8}, global_batch_size: 4}\n");
  Diagnostics faults;
  const RunConfig config = load_run_config(
      file.string(),
      overrides_of({.sets = {"run.project_dir=" + (folder.path() / "run").string()}}), &faults);
  faults.throw_if_any("test");
  dist::SelfCommunicator alone;
  TrainingContext context(config, alone, alone, alone);
  const checkpoint::SaveResult saved = context.saver.save(context.state(), 3);
  ASSERT_TRUE(saved.ok) << saved.error;
  EXPECT_NO_THROW(reload(saved.prefix, context));
  {
    const at::NoGradGuard no_grad;
    context.model->params().at(0).tensor.view(-1)[0] += 1;
  }
  try {
    reload(saved.prefix, context);
    FAIL() << "the save holds other weights";
  } catch (const Error& fault) {
    EXPECT_EQ(fault.code(), ExitCode::kBadData);
    EXPECT_TRUE(fault.on_every_rank());
    EXPECT_THAT(fault.what(), ::testing::HasSubstr("differs from the state of this run"));
  }
  context.saver.join();
}

}  // namespace reload_test
}  // namespace lockstep::daemon
