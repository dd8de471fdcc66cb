#include <cmath>
#include <csignal>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <nlohmann/json.hpp>

#include "base/files/files.h"
#include "base/log.h"
#include "data/dataset_table.h"
#include "model/networks/model_table.h"
#include "model/networks/small_networks.h"
#include "support/temporary_folder.h"
#include "support/thread_world.h"
#include "train/evaluator.h"
#include "train/loss/loss.h"
#include "train/records.h"

namespace lockstep::train {
namespace records_test {

constexpr const char* kHeader = "step,epoch,loss,learning_rate,sparsity\n";

/// No file of this process grows beyond some bytes while it lives, as on a full disk.
class FullDisk {
 public:
  explicit FullDisk(rlim_t max_bytes) {
    std::signal(SIGXFSZ, SIG_IGN);  // then the write fails instead
    ::getrlimit(RLIMIT_FSIZE, &before_);
    const rlimit limit{max_bytes, before_.rlim_max};
    ::setrlimit(RLIMIT_FSIZE, &limit);
  }
  ~FullDisk() { ::setrlimit(RLIMIT_FSIZE, &before_); }
  FullDisk(const FullDisk&) = delete;
  FullDisk& operator=(const FullDisk&) = delete;

 private:
  rlimit before_{};
};

TEST(StepsCsv, NumbersReadBackExactly) {
  const tests::TemporaryFolder folder;
  StepsCsv csv(folder.path() / "train" / "steps.csv", 0);
  csv.append({1, 1.0 / 3, 0.1, 0.05, 0});
  csv.flush();
  const std::string text = files::read(folder.path() / "train" / "steps.csv");
  EXPECT_EQ(text, std::string(kHeader) + "1,0.3333333333333333,0.1,0.05,0\n");
}

TEST(StepsCsv, AStepWithoutALossHasAnEmptyField) {
  const tests::TemporaryFolder folder;
  const std::filesystem::path path = folder.path() / "steps.csv";
  {
    StepsCsv csv(path, 0);
    csv.append({1, 0.5, NAN, 0.1, 0, /*has_loss=*/false});
    csv.append({2, 1, NAN, 0.1, 0});
  }
  EXPECT_EQ(files::read(path),
            "step,epoch,loss,learning_rate,sparsity\n1,0.5,,0.1,0\n2,1,nan,0.1,0\n");
  const std::vector<StepLine> lines = read_steps(path);
  EXPECT_FALSE(lines[0].has_loss);
  EXPECT_TRUE(std::isnan(lines[0].loss));
  EXPECT_TRUE(lines[1].has_loss);
}

TEST(StepsCsv, AResumedRunCutsWhatItWillWriteAgain) {
  const tests::TemporaryFolder folder;
  const auto path = folder.path() / "steps.csv";
  files::write_atomically(
      path, std::string(kHeader) +
                "1,0,5,0,0\n2,0,4,0,0\n3,0,3,0,0\n4,0,2.");  // a crash cut the last line
  StepsCsv csv(path, 2);
  csv.append({3, 0, 2.5, 0, 0});
  csv.flush();
  EXPECT_EQ(files::read(path), std::string(kHeader) + "1,0,5,0,0\n2,0,4,0,0\n3,0,2.5,0,0\n");
}

TEST(StepsCsv, ALargeRecordIsCutFromItsEnd) {
  const tests::TemporaryFolder folder;
  const auto path = folder.path() / "steps.csv";
  std::string kept = kHeader, later;
  for (int step = 1; step <= 30000; ++step)
    (step <= 12345 ? kept : later) += fmt::format("{},0,0.5,0,0\n", step);
  files::write_atomically(path, kept + later);
  struct stat before {
  }, after{};
  ASSERT_EQ(::stat(path.c_str(), &before), 0);
  StepsCsv csv(path, 12345);
  ASSERT_EQ(::stat(path.c_str(), &after), 0);
  EXPECT_EQ(after.st_ino, before.st_ino) << "a copy would need the room a second time";
  EXPECT_EQ(files::read(path), kept);
  EXPECT_EQ(last_step(path)->step, 12345);
}

TEST(StepsCsv, ARecordWithoutItsHeaderOrAnEarlierLineBeginsAnew) {
  const tests::TemporaryFolder folder;
  const auto path = folder.path() / "steps.csv";
  for (const char* text : {"", "1,0,5,0,0\n", "step,epoch,loss,learning_rate,spars",
                           "step,epoch,loss,learning_rate,sparsity\n9,0,5,0,0\n",
                           "step,epoch,loss,learning_rate,sparsity\n9,0"}) {
    files::write_atomically(path, text);
    StepsCsv csv(path, 2);
    EXPECT_EQ(files::read(path), kHeader) << text;
    EXPECT_FALSE(last_step(path)) << text;
  }
}

TEST(StepsCsv, AFreshRunStartsAnew) {
  const tests::TemporaryFolder folder;
  files::write_atomically(folder.path() / "steps.csv", std::string(kHeader) + "1,0,5,0,0\n");
  StepsCsv csv(folder.path() / "steps.csv", 0);
  EXPECT_EQ(files::read(folder.path() / "steps.csv"), kHeader);
}

TEST(StepsCsv, LinesOutliveAFullDiskAndOneWarningTellsOfIt) {
  const tests::TemporaryFolder folder;
  const auto path = folder.path() / "steps.csv";
  StepsCsv csv(path, 0);
  const int64_t num_warnings = log::num_lines(log::Level::kWarning);
  {
    const FullDisk full(std::string_view(kHeader).size() + 15);  // the second line stops halfway
    for (int64_t step = 1; step <= 3; ++step) {
      csv.append({step, 0, 0.5, 0, 0});
      csv.flush();
    }
    EXPECT_EQ(files::read(path), std::string(kHeader) + "1,0,0.5,0,0\n2,0");
    EXPECT_EQ(log::num_lines(log::Level::kWarning), num_warnings + 1);
  }
  StepsCsv(path, 1);  // a run that resumes here reads whole lines only
  EXPECT_EQ(files::read(path), std::string(kHeader) + "1,0,0.5,0,0\n");
}

TEST(StepsCsv, GoesOnWhereAFullDiskCutALine) {
  const tests::TemporaryFolder folder;
  const auto path = folder.path() / "steps.csv";
  StepsCsv csv(path, 0);
  std::string expected = kHeader;
  {
    const FullDisk full(std::string_view(kHeader).size() + 15);
    for (int64_t step = 1; step <= 2000; ++step) {  // more than is kept before a write
      csv.append({step, 0, 0.5, 0, 0});
      expected += fmt::format("{},0,0.5,0,0\n", step);
    }
  }
  csv.append({2001, 0, 0.5, 0, 0});
  csv.flush();
  EXPECT_EQ(files::read(path), expected + "2001,0,0.5,0,0\n");
}

TEST(Summary, HoldsWhatScriptsRead) {
  const tests::TemporaryFolder folder;
  write_summary(folder.path() / "summary.json",
                {.exit_reason = "stopped",
                 .exit_code = 75,
                 .steps = 7,
                 .world_size = 2,
                 .skipped_steps = 3,
                 .train_loss = 0.5,
                 .eval = EvalResult{0.25,
                                    0.9,
                                    359,
                                    {{"top_5", at::scalar_tensor(0.5)},
                                     {"pairs", at::arange(4).view({2, 2})}}},
                 .checkpoint = "p-7"});
  const auto json = nlohmann::json::parse(files::read(folder.path() / "summary.json"));
  EXPECT_EQ(json["exit_code"], 75);
  EXPECT_EQ(json["skipped_steps"], 3);
  EXPECT_EQ(json["eval"]["accuracy"], 0.9);
  EXPECT_EQ(json["eval"]["metrics"].dump(), R"({"pairs":[[0,1],[2,3]],"top_5":0.5})");
  EXPECT_EQ(json["checkpoint"], "p-7");
  EXPECT_TRUE(json["resumed_from_step"].is_null());
}

TEST(Summary, TheDigestDependsOnValuesNotOnTheTablesOrder) {
  const at::Tensor a = at::arange(3, at::kFloat), b = at::ones({2});
  EXPECT_EQ(parameters_sha256({{"a", a}, {"b", b}}), parameters_sha256({{"b", b}, {"a", a}}));
  EXPECT_NE(parameters_sha256({{"a", a}, {"b", b}}), parameters_sha256({{"a", b}, {"b", a}}));
}

TEST(Evaluator, EveryWorldSizeSeesEachSampleOnce) {
  const data::DigitsDataset test("test", "");
  std::vector<EvalResult> results;
  for (const int world_size : {1, 2, 3}) {
    tests::run_ranks(world_size, [&](dist::Communicator& comm) {
      const auto net = model::digits_net().make({{1, 8, 8}, 10, 17});
      const EvalResult result = evaluate(ModelHandler(*net), Loss("auto", {}, test.spec()), test,
                                         {.batch_size = 50}, comm);
      EXPECT_EQ(result.num_samples, 359);
      if (comm.rank() == 0) results.push_back(result);
    });
  }
  for (const EvalResult& result : results) {
    EXPECT_EQ(result.accuracy, results[0].accuracy);
    EXPECT_NEAR(result.loss, results[0].loss, 1e-6);
    EXPECT_NEAR(result.loss, std::log(10.0), 0.1);  // an untrained network knows nothing
  }
}

}  // namespace records_test
}  // namespace lockstep::train
