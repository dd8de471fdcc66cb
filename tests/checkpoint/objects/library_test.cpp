#include "checkpoint/checkpoint.h"

#include <chrono>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn.h>
#include <torch/optim.h>

#include "base/error.h"
#include "checkpoint/format/bundle_reader.h"
#include "checkpoint/format/checkpoint_files.h"
#include "checkpoint/restore.h"
#include "checkpoint/torch_objects.h"
#include "model/networks/small_networks.h"
#include "optim/flat_params.h"
#include "optim/optimizer.h"
#include "tests/checkpoint/save_fixture.h"

namespace lockstep::checkpoint {
namespace library_test {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using tests::TemporaryFolder;

torch::nn::Sequential network(int64_t seed, int64_t num_hidden = 5) {
  torch::manual_seed(seed);
  return torch::nn::Sequential(torch::nn::Linear(3, num_hidden), torch::nn::Tanh(),
                               torch::nn::BatchNorm1d(num_hidden),
                               torch::nn::Linear(num_hidden, 2));
}

bool equal(const torch::nn::Sequential& a, const torch::nn::Sequential& b) {
  const auto lhs = a->named_parameters(), rhs = b->named_parameters();
  for (const auto& each : lhs)
    if (!at::equal(each.value(), rhs[each.key()])) return false;
  for (const auto& each : a->named_buffers())
    if (!at::equal(each.value(), b->named_buffers()[each.key()])) return false;
  return lhs.size() == rhs.size();
}

void train_step(torch::nn::Sequential& model, torch::optim::Optimizer& optimizer, int64_t step) {
  const at::Tensor inputs = (at::arange(12, at::kFloat).reshape({4, 3}) * (step + 1)).sin();
  optimizer.zero_grad();
  model->forward(inputs).pow(2).sum().backward();
  optimizer.step();
}

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

TEST(Library, NumbersRiseFromOneAndTenIsTheLatestOfTen) {
  const TemporaryFolder folder;
  at::Tensor value = at::zeros({2});
  Checkpoint checkpoint({{"value", value}});
  for (int64_t i = 1; i <= 10; ++i) {
    value.fill_(static_cast<double>(i));
    EXPECT_EQ(checkpoint.save(folder.prefix()), folder.prefix() + "-" + std::to_string(i));
  }
  EXPECT_EQ(latest_checkpoint(folder.path()), folder.prefix() + "-10");
  files::remove_file(folder / "checkpoint");  // derived from the folder: 10 comes after 9
  EXPECT_EQ(latest_checkpoint(folder.path()), folder.prefix() + "-10");
  checkpoint.restore(folder.prefix() + "-9").assert_consumed();
  EXPECT_EQ(value[0].item<double>(), 9);
}

/// Writes the state file with a time `seconds_after` all checkpoints (before them, if negative).
void write_state(const TemporaryFolder& folder, const std::string& newest, int64_t seconds_after) {
  write_state_file(folder.path(), {.newest = newest, .all = {newest}});
  std::filesystem::last_write_time(
      folder / "checkpoint",
      std::filesystem::file_time_type::clock::now() + std::chrono::seconds(seconds_after));
}

TEST(Library, LatestIsWhatTheStateFileNamesUnlessAHigherCommitIsNewer) {
  const TemporaryFolder folder;
  EXPECT_EQ(latest_checkpoint(folder.path()), std::nullopt);
  EXPECT_EQ(latest_checkpoint(folder.path() / "absent"), std::nullopt);
  Checkpoint checkpoint({{"value", at::zeros({2})}});
  for (int i = 0; i < 3; ++i) checkpoint.save(folder.prefix());
  write_state(folder, "model.ckpt-2", -60);
  EXPECT_EQ(latest_checkpoint(folder.path()), folder.prefix() + "-3")
      << "a program was killed before it named its commit";
  write_state(folder, "model.ckpt-2", 60);
  EXPECT_EQ(latest_checkpoint(folder.path()), folder.prefix() + "-2")
      << "somebody went back, as tf.train.latest_checkpoint does";
  write_state(folder, "model.ckpt-1", -60);
  std::filesystem::resize_file(folder / "model.ckpt-3.data-00000-of-00001", 2);
  EXPECT_EQ(latest_checkpoint(folder.path()), folder.prefix() + "-2") << "3 is not complete";
  write_state(folder, "model.ckpt-3", 60);
  EXPECT_EQ(latest_checkpoint(folder.path()), folder.prefix() + "-2") << "nor to be followed";
  Checkpoint checkpoint_again({{"value", at::zeros({2})}});
  EXPECT_EQ(checkpoint_again.save(folder.prefix()), folder.prefix() + "-4");
  EXPECT_EQ(latest_checkpoint(folder.path()), folder.prefix() + "-4");
  Checkpoint({{"value", at::zeros({2})}}).save(folder / "other");
  write_state(folder, "other-1", 60);
  EXPECT_EQ(latest_checkpoint(folder.path()), folder / "other-1");
  write_state(folder, "model.ckpt-7", 60);
  EXPECT_EQ(latest_checkpoint(folder.path()), folder.prefix() + "-4");
  tests::put_bytes(folder / "checkpoint", "no such file");
  EXPECT_EQ(latest_checkpoint(folder.path()), folder.prefix() + "-4");
  EXPECT_THAT(
      error_of([&] { (void)latest_checkpoint(folder.prefix() + "-3"); }, ExitCode::kUsage),
      HasSubstr("name the folder to get its newest checkpoint, '" + folder.path().string() + "'"));
}

TEST(Library, TwoPrefixesOfOneFolderKeepTheirOwnSavesEach) {
  const TemporaryFolder folder;
  at::Tensor value = at::zeros({3});
  Checkpoint checkpoint({{"value", value}}, {.keep_checkpoint_max = 2});
  for (int round = 0; round < 4; ++round)
    for (const char* name : {"last", "best"}) checkpoint.save(folder / name);
  EXPECT_THAT(read_state_file(folder.path())->all,
              ElementsAre("last-5", "last-7", "best-6", "best-8"));
  EXPECT_EQ(latest_checkpoint(folder.path()), folder / "best-8");
  EXPECT_EQ(find_saves(folder.path()).size(), 4U);
  Checkpoint again({{"value", value}}, {.keep_checkpoint_max = 2});  // another start
  again.restore(folder / "best-8");
  again.save(folder / "last");
  EXPECT_THAT(read_state_file(folder.path())->all,
              ElementsAre("best-6", "best-8", "last-7", "last-9"));
}

TEST(Library, WhereTheStateFileCannotBeWrittenSurplusSavesGoAllTheSame) {
  const TemporaryFolder folder;
  at::Tensor value = at::zeros({3});
  std::filesystem::create_directory(folder / "checkpoint");
  Checkpoint checkpoint({{"value", value}}, {.keep_checkpoint_max = 2});
  for (int round = 0; round < 5; ++round) checkpoint.save(folder.prefix());
  EXPECT_EQ(find_saves(folder.path()).size(), 2U);
}

TEST(Library, NumbersAreNotUsedAgainAfterARestore) {
  const TemporaryFolder folder, other;
  at::Tensor value = at::zeros({2});
  {
    Checkpoint checkpoint({{"value", value}});
    for (int i = 0; i < 5; ++i) checkpoint.save(folder.prefix());
  }
  Checkpoint again({{"value", value}});
  EXPECT_EQ(again.save_counter(), 0);
  again.restore(folder.prefix() + "-3").assert_consumed();
  EXPECT_EQ(again.save_counter(), 3);
  EXPECT_EQ(again.save(other.prefix()), other.prefix() + "-4");    // continues
  EXPECT_EQ(again.save(folder.prefix()), folder.prefix() + "-6");  // 4 and 5 are there
  Checkpoint fresh({{"value", value}});
  EXPECT_EQ(fresh.save(folder.prefix()), folder.prefix() + "-7");
}

TEST(Library, KeysAreFreeButNotAnything) {
  const at::Tensor value = at::zeros({2});
  for (const auto& [key, why] : std::vector<std::pair<std::string, std::string>>{
           {"", "empty"}, {"a/b", "'/'"}, {"save_counter", "count"}, {"_lockstep", "reserved for"}})
    EXPECT_THAT(error_of(
                    [&, k = key] {
                      Checkpoint({{k, value}});
                    },
                    ExitCode::kUsage),
                HasSubstr(why));
  EXPECT_THAT(error_of(
                  [&] {
                    Checkpoint({{"a", value}, {"a", value}});
                  },
                  ExitCode::kUsage),
              HasSubstr("another object has it"));
  EXPECT_THROW(Checkpoint({{"a", at::Tensor()}}), Error);
  Checkpoint odd({{"my Awesome.model", value}});
  EXPECT_THROW(odd.add("my Awesome.model", value), Error);
}

TEST(Library, AFreshModelAndOptimizerGoOnBitForBit) {
  using Maker = std::function<std::unique_ptr<torch::optim::Optimizer>(std::vector<at::Tensor>)>;
  const std::vector<std::pair<std::string, Maker>> makers = {
      {"momentum_buffer",
       [](auto p) {
         return std::make_unique<torch::optim::SGD>(
             p, torch::optim::SGDOptions(0.1).momentum(0.9).dampening(0.3));
       }},
      {"max_exp_avg_sq",
       [](auto p) {
         return std::make_unique<torch::optim::Adam>(p,
                                                     torch::optim::AdamOptions(0.1).amsgrad(true));
       }},
      {"exp_avg", [](auto p) { return std::make_unique<torch::optim::AdamW>(p, 0.1); }},
      {"grad_avg",
       [](auto p) {
         return std::make_unique<torch::optim::RMSprop>(
             p, torch::optim::RMSpropOptions(0.1).momentum(0.5).centered(true));
       }},
      {"sum", [](auto p) { return std::make_unique<torch::optim::Adagrad>(p, 0.1); }},
  };
  for (const auto& [slot, make] : makers) {
    const TemporaryFolder folder;
    torch::nn::Sequential unbroken = network(1), resumed = network(2);
    const auto first = make(unbroken->parameters());
    for (int64_t step = 0; step < 3; ++step) train_step(unbroken, *first, step);
    Checkpoint({{"model", unbroken}, {"optimizer", *first}}).save(folder.prefix());

    const auto second = make(resumed->parameters());  // has no slots before its first step
    Checkpoint checkpoint({{"model", resumed}, {"optimizer", *second}});
    checkpoint.restore(folder.prefix() + "-1").assert_consumed();
    for (int64_t step = 3; step < 6; ++step) {
      train_step(unbroken, *first, step);
      train_step(resumed, *second, step);
    }
    EXPECT_TRUE(equal(unbroken, resumed)) << slot;
    EXPECT_NE(BundleReader(folder.prefix() + "-1")
                  .find("optimizer/model/0/weight/" + slot + "/.ATTRIBUTES/VARIABLE_VALUE"),
              nullptr);
  }
}

/// One that somebody has written.
struct OwnOptimizer : torch::optim::Optimizer {
  explicit OwnOptimizer(std::vector<at::Tensor> params)
      : Optimizer({torch::optim::OptimizerParamGroup(std::move(params))},
                  std::make_unique<torch::optim::SGDOptions>(0.1)) {}
  at::Tensor step(LossClosure) override { return {}; }
};

TEST(Library, OptimizersThatAreNotKnownAreRefused) {
  OwnOptimizer optimizer(network(1)->parameters());
  EXPECT_THAT(error_of(
                  [&] {
                    Checkpoint({{"optimizer", optimizer}});
                  },
                  ExitCode::kConfig),
              HasSubstr("is unknown"));
}

TEST(Library, WhatDoesNotMatchIsNamedOnBothSides) {
  const TemporaryFolder folder;
  at::Tensor a = at::ones({2}), b = at::ones({3}), c = at::ones({4});
  Checkpoint({{"a", a}, {"b", b}}).save(folder.prefix());
  const std::string save = folder.prefix() + "-1";
  a.zero_();
  Checkpoint checkpoint({{"a", a}, {"c", c}});
  const RestoreStatus status = checkpoint.restore(save);
  EXPECT_EQ(a.sum().item<double>(), 2);
  EXPECT_THAT(status.pending(), ElementsAre("b"));
  EXPECT_THAT(status.missing(), ElementsAre("c"));
  EXPECT_THAT(error_of([&] { status.assert_consumed(); }, ExitCode::kBadData),
              AllOf(HasSubstr("without a variable: 'b'"), HasSubstr("without a saved value: 'c'"),
                    HasSubstr(save)));
  EXPECT_THROW(status.assert_existing_objects_matched(), Error);
  Checkpoint less({{"a", a}});
  less.restore(save).assert_existing_objects_matched().expect_partial();

  at::Tensor wrong_shape = at::zeros({2, 2}), wrong_type = at::zeros({3}, at::kLong);
  Checkpoint wrong({{"a", wrong_shape}, {"b", wrong_type}});
  EXPECT_THAT(error_of([&] { wrong.restore(save); }, ExitCode::kBadData),
              AllOf(HasSubstr("'a' is saved as float32 [2], the variable is float32 [2, 2]"),
                    HasSubstr("'b' is saved as float32 [3], the variable is int64 [3]"),
                    HasSubstr("nothing was restored")));
}

TEST(Library, RanksSaveTogetherAndOneProcessRestores) {
  const TemporaryFolder folder;
  torch::nn::Sequential source = network(3);
  lockstep::tests::run_ranks(3, [&](dist::Communicator& ranks) {
    Checkpoint checkpoint({{"model", source}}, {.ranks = &ranks});
    EXPECT_EQ(checkpoint.save(folder.prefix()), folder.prefix() + "-1");
    EXPECT_EQ(checkpoint.save(folder.prefix()), folder.prefix() + "-2");
    EXPECT_EQ(latest_checkpoint(folder.path(), ranks), folder.prefix() + "-2");
  });
  EXPECT_TRUE(std::filesystem::exists(shard_path(folder.prefix() + "-2", 2, 3)));
  torch::nn::Sequential target = network(4);
  Checkpoint({{"model", target}}).restore(folder.prefix() + "-2").assert_consumed();
  EXPECT_TRUE(equal(source, target));
}

TEST(Library, LockstepsOwnModelAndOptimizerHaveTheDaemonsNames) {
  const TemporaryFolder folder;
  const model::MakeModel make = model::mlp({.layers = {4, 3, 2}, .activation = "tanh"}).make;
  const auto owned = make({{4}, 2, 1}), owned_other = make({{4}, 2, 2});
  model::Model &network = *owned, &other = *owned_other;
  optim::FlatParams arena(network.params(), {{0, 2}, {1, 3}}, at::kCPU);
  const auto optimizer = optim::make_optimizer({}, arena.buffers(), network.params());
  for (const StateEntry& slot : optimizer->state())
    if (slot.tensor.is_floating_point()) slot.tensor.fill_(0.5);
  Checkpoint({{"model", network}, {"optimizer", *optimizer}}).save(folder.prefix());

  Checkpoint checkpoint({{"model", other}});
  const RestoreStatus status = checkpoint.restore(folder.prefix() + "-1").expect_partial();
  for (size_t i = 0; i < network.params().size(); ++i)
    EXPECT_TRUE(at::equal(network.params()[i].tensor, other.params()[i].tensor));
  EXPECT_THAT(status.missing(), IsEmpty());
  for (const std::string& key : status.pending())
    EXPECT_THAT(key, ::testing::StartsWith("optimizer/"));
  EXPECT_EQ(status.pending().size(), optimizer->state().size());
}

TEST(Library, StrictLoadingIsAllOrNothing) {
  const TemporaryFolder folder;
  at::Tensor a = at::ones({2}), b = at::ones({3});
  Checkpoint({{"a", a}, {"b", b}}).save(folder.prefix());
  const std::string save = folder.prefix() + "-1";
  at::Tensor target = at::zeros({2}), absent = at::zeros({1});
  Checkpoint({{"a", target}}).load_weights_now(save);  // b belongs to no object here
  EXPECT_EQ(target.sum().item<double>(), 2);
  target.zero_();
  Checkpoint more({{"a", target}, {"c", absent}});
  EXPECT_THAT(error_of([&] { more.load_weights_now(save); }, ExitCode::kBadData),
              AllOf(HasSubstr("contains no 'c'"), HasSubstr("nothing was restored")));
  EXPECT_EQ(target.sum().item<double>(), 0);

  torch::nn::Sequential small(torch::nn::Linear(3, 5)), whole = network(1);
  Checkpoint({{"model", whole}}).save(folder / "nets");
  Checkpoint strict({{"model", small}});
  EXPECT_THAT(error_of([&] { strict.load_weights_now(folder / "nets-1"); }, ExitCode::kBadData),
              AllOf(HasSubstr("model/3/weight"), HasSubstr("no variable")));
  EXPECT_FALSE(
      at::equal(small->named_parameters()["0.weight"], whole->named_parameters()["0.weight"]));
}

}  // namespace library_test
}  // namespace lockstep::checkpoint
