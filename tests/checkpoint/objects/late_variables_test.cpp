// Variables that are created after restore() and not yet restored: nothing writes into them, and no
// save takes them for restored, before somebody has said what they are to hold.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn.h>
#include <torch/optim.h>

#include "base/error.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/format/bundle_reader.h"
#include "checkpoint/restore.h"
#include "checkpoint/torch_objects.h"
#include "tests/checkpoint/save_fixture.h"

namespace lockstep::checkpoint {
namespace late_variables_test {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using tests::TemporaryFolder;

/// A net of two layers is saved; a net of one is restored and gets its second layer by hand.
struct GrowingNet {
  GrowingNet() {
    torch::nn::Sequential whole(torch::nn::Linear(2, 2), torch::nn::Linear(2, 1));
    saved = whole->named_parameters()["1.weight"].detach().clone();
    Checkpoint({{"model", whole}}).save(folder.prefix());
    status.emplace(checkpoint.restore(folder.prefix() + "-1"));
    net->push_back(torch::nn::Linear(2, 1));
    const at::NoGradGuard no_grad;
    weight().fill_(7);  // as training does
  }
  at::Tensor weight() { return net->named_parameters()["1.weight"]; }

  TemporaryFolder folder;
  at::Tensor saved;
  torch::nn::Sequential net{torch::nn::Linear(2, 2)};
  Checkpoint checkpoint{{{"model", net}}};
  std::optional<RestoreStatus> status;
};

template <typename Body>
std::string error_of(const Body& body, ExitCode code) {
  try {
    body();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code) << error.what();
    return error.what();
  }
  ADD_FAILURE() << "nothing was thrown";
  return "";
}

TEST(LateVariables, ASaveRefusesThemAndWritesNeitherThemNorAFile) {
  GrowingNet grown;
  const std::vector<std::string> before = files::list(grown.folder.path());
  EXPECT_THAT(error_of([&] { grown.checkpoint.save(grown.folder.prefix()); }, ExitCode::kUsage),
              AllOf(HasSubstr("'model/1/weight', 'model/1/bias'"), HasSubstr("look_for_new()"),
                    HasSubstr("stop_restoring()"), HasSubstr("nothing was saved")));
  EXPECT_TRUE(at::equal(grown.weight(), at::full({1, 2}, 7.0)));
  EXPECT_EQ(files::list(grown.folder.path()), before);
}

TEST(LateVariables, AskingForTheStatusWritesNothingEither) {
  GrowingNet grown;
  EXPECT_THAT(error_of([&] { grown.status->assert_consumed(); }, ExitCode::kBadData),
              HasSubstr("created after restore() and not yet restored"));
  EXPECT_THAT(
      error_of([&] { grown.status->assert_existing_objects_matched(); }, ExitCode::kBadData),
      HasSubstr("'model/1/weight'"));
  at::Tensor other = at::zeros({1});
  grown.checkpoint.add("other", other);
  EXPECT_TRUE(at::equal(grown.weight(), at::full({1, 2}, 7.0)));
}

TEST(LateVariables, LookForNewGivesThemTheirValues) {
  GrowingNet grown;
  grown.checkpoint.look_for_new();
  EXPECT_TRUE(at::equal(grown.weight(), grown.saved));
  grown.status->assert_consumed();
  EXPECT_EQ(grown.checkpoint.save(grown.folder.prefix()), grown.folder.prefix() + "-2");
}

TEST(LateVariables, StopRestoringLeavesThemAsTheyAre) {
  GrowingNet grown;
  grown.checkpoint.stop_restoring();
  const std::string save = grown.checkpoint.save(grown.folder.prefix());
  EXPECT_TRUE(at::equal(grown.weight(), at::full({1, 2}, 7.0)));
  EXPECT_TRUE(at::equal(BundleReader(save).read("model/1/weight/.ATTRIBUTES/VARIABLE_VALUE"),
                        at::full({1, 2}, 7.0)));
}

TEST(LateVariables, AnObjectThatIsAddedTakesWhatIsSavedForItAndForSlotsNamedAfterIt) {
  const TemporaryFolder folder;
  torch::nn::Linear one(3, 2);
  torch::optim::SGD sgd(one->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
  one->forward(at::ones({1, 3})).sum().backward();
  sgd.step();
  Checkpoint({{"model", one}, {"optimizer", sgd}}).save(folder.prefix());
  torch::nn::Linear two(3, 2);
  torch::optim::SGD late(two->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
  Checkpoint checkpoint({{"optimizer", late}});
  const RestoreStatus status = checkpoint.restore(folder.prefix() + "-1");
  checkpoint.add("model", two);
  status.assert_consumed();
  EXPECT_EQ(late.state().size(), 2U);
}

TEST(RestoreNothing, IsAWarningAndChangesNothing) {
  const TemporaryFolder folder;
  at::Tensor value = at::ones({2});
  Checkpoint checkpoint({{"value", value}});
  const RestoreStatus status = checkpoint.restore(latest_checkpoint(folder.path()));
  EXPECT_THAT(status.pending(), IsEmpty());
  EXPECT_THAT(status.missing(), IsEmpty());
  EXPECT_NO_THROW(status.expect_partial());
  EXPECT_THAT(error_of([&] { status.assert_consumed(); }, ExitCode::kBadData),
              HasSubstr("nothing was restored"));
  EXPECT_THROW(status.assert_existing_objects_matched(), Error);
  EXPECT_EQ(value.sum().item<double>(), 2);
  EXPECT_EQ(checkpoint.save(folder.prefix()), folder.prefix() + "-1");
  value.zero_();
  checkpoint.restore(latest_checkpoint(folder.path())).assert_consumed();
  EXPECT_EQ(value.sum().item<double>(), 2);
}

TEST(Saving, AFolderThatCannotBeMadeIsToldByItsCode) {
  at::Tensor value = at::ones({2});
  Checkpoint checkpoint({{"value", value}});
  EXPECT_THAT(
      error_of([&] { checkpoint.save("/proc/nothing/model.ckpt"); }, ExitCode::kCannotCreate),
      HasSubstr("earlier checkpoints are kept"));
  EXPECT_EQ(checkpoint.save_counter(), 0);
}

TEST(Restore, EachVariableThatTwoKeysReachGetsTheValue) {
  const TemporaryFolder folder;
  at::Tensor one = at::full({2}, 3.0);
  Checkpoint({{"a", one}, {"b", one}}).save(folder.prefix());
  at::Tensor a = at::zeros({2}), b = at::zeros({2});
  Checkpoint({{"a", a}, {"b", b}}).restore(folder.prefix() + "-1").assert_consumed();
  EXPECT_EQ((a + b).sum().item<double>(), 12);
}

}  // namespace late_variables_test
}  // namespace lockstep::checkpoint
