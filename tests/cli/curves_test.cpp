#include "cli/curves.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "base/files/files.h"
#include "support/temporary_folder.h"
#include "train/records.h"

namespace lockstep::cli {
namespace curves_test {

using ::testing::HasSubstr;
using ::testing::Not;

const std::string kHeader = "step,epoch,loss,learning_rate,sparsity\n";

/// A run's folder with this steps.csv.
class RunFolder {
 public:
  explicit RunFolder(const std::string& csv) {
    files::make_folders(path() / "train");
    files::write_atomically(path() / "train" / "steps.csv", csv);
  }
  std::filesystem::path path() const { return folder_.path() / "tiny & <run>"; }

 private:
  tests::TemporaryFolder folder_;
};

/// Four records: the loss falls from 2 to 0.5, the rate halves and pruning begins midway.
std::string small_csv() {
  return kHeader + "1,0.5,2,0.1,0\n2,1,1,0.1,0\n3,1.5,1,0.05,0.5\n4,2,0.5,0.05,0.5\n";
}

void expect_fault(const std::filesystem::path& folder, ExitCode code, const std::string& text) {
  try {
    (void)curves_command(folder, "");
    FAIL() << "no fault, expected: " << text;
  } catch (const Error& fault) {
    EXPECT_EQ(fault.code(), code) << fault.what();
    EXPECT_THAT(fault.what(), HasSubstr(text));
  }
}

std::string marks(int first_column, int num_marks) {
  std::string line(static_cast<size_t>(first_column), ' ');
  for (int i = 0; i < num_marks; ++i) line += "█";
  return line;
}

TEST(Curves, ShowASmallRunAsText) {
  const RunFolder run(small_csv());
  const std::string text = curves_command(run.path(), "").text;
  EXPECT_THAT(text, HasSubstr("tiny & <run>: 4 steps, 2 epochs recorded; not ended, or cut off\n"
                              "last record: step 4, loss 0.5, sparsity 0.5, learning rate 0.05\n"));
  // Records stand at columns 15, 31, 47 and 63; a column without one repeats its left neighbour.
  EXPECT_THAT(text, HasSubstr("training loss\n       2 |" + marks(0, 31) + "\n"));
  EXPECT_THAT(text, HasSubstr("         |" + marks(31, 32) + "\n"));
  EXPECT_THAT(text, HasSubstr("         |" + marks(63, 1) + "\n"));
  EXPECT_THAT(text, HasSubstr("sparsity\n     0.5 |" + marks(47, 17) + "\n"));
  EXPECT_THAT(text, HasSubstr("learning rate\n     0.1 |" + marks(0, 47) + "\n"));
  EXPECT_THAT(text, HasSubstr(" 2 epochs\n"));
}

TEST(Curves, ATextColumnHoldsTheMeanLossAndTheLastRate) {
  std::string csv = kHeader;
  for (int step = 1; step <= 128; ++step)  // two records a column
    csv += fmt::format("{},{},{},{},0\n", step, step / 128.0, step % 2 == 0 ? 3 : 1,
                       step <= 63 ? 0.4 : 0.1);
  const RunFolder run(csv);
  const std::string text = curves_command(run.path(), "").text;
  EXPECT_THAT(text, HasSubstr("training loss\n       2 |" + marks(0, 64) + "\n"));
  EXPECT_THAT(text, HasSubstr("learning rate\n     0.4 |" + marks(0, 31) + "\n"));
  EXPECT_THAT(text, HasSubstr("         |" + marks(31, 33) + "\n"));
}

TEST(Curves, TellTheFactsOfTheSummary) {
  const RunFolder run(small_csv());
  train::Summary summary{.exit_reason = "finished",
                         .steps = 4,
                         .epochs = 2,
                         .world_size = 2,
                         .eval = train::EvalResult{0.25, 0.975, 359},
                         .sparsity = 0.5};
  train::write_summary(run.path() / "summary.json", summary);
  EXPECT_EQ(run_facts(read_run(run.path())),
            "finished: 4 steps, 2 epochs on 2 ranks; test accuracy 0.9750; sparsity 0.5000");
  summary.eval.reset();
  summary.world_size = 1;
  train::write_summary(run.path() / "summary.json", summary);
  EXPECT_EQ(run_facts(read_run(run.path())),
            "finished: 4 steps, 2 epochs on 1 rank; sparsity 0.5000");
}

TEST(Curves, LeaveOutTheSummaryOfAnEarlierStart) {
  const RunFolder run(small_csv());
  train::write_summary(run.path() / "summary.json", {.exit_reason = "stopped", .steps = 3});
  EXPECT_THAT(run_facts(read_run(run.path())), HasSubstr("4 steps, 2 epochs recorded"));
}

TEST(Curves, DrawThreePanels) {
  const RunFolder run(small_csv());
  const std::string svg_file = (run.path() / "curves.svg").string();
  (void)curves_command(run.path(), svg_file);
  const std::string svg = files::read(svg_file);
  EXPECT_THAT(svg, HasSubstr(">tiny &amp; &lt;run&gt;</text>"));
  for (const char* heading : {">Training loss<", ">Sparsity<", ">Learning rate<"})
    EXPECT_THAT(svg, HasSubstr(heading));
  EXPECT_THAT(svg, HasSubstr(">as recorded<"));
  EXPECT_THAT(svg, Not(HasSubstr("class=\"curve light\""))) << "4 records need no moving mean";
}

TEST(Curves, ALongRunHasALightRawLineBelowItsMean) {
  std::string csv = kHeader;
  for (int step = 1; step <= 5000; ++step)
    csv += fmt::format("{},{},{},0.1,0\n", step, step / 100.0, step == 2500 ? "nan" : "0.7");
  const RunFolder run(csv);
  const std::string svg = curves_svg(read_run(run.path()));
  EXPECT_THAT(svg, HasSubstr("class=\"curve light\""));
  EXPECT_THAT(svg, HasSubstr(">mean of 125 records<"));
  EXPECT_THAT(svg, Not(HasSubstr("nan")));
  EXPECT_LT(svg.size(), 40'000U);
  EXPECT_THAT(curves_text(read_run(run.path())), HasSubstr("     0.7 |"));
}

TEST(Curves, ALineBeingWrittenIsLeftOut) {
  const RunFolder run(small_csv() + "5,2.");
  EXPECT_EQ(read_run(run.path()).lines.size(), 4U);
}

TEST(Curves, AOneStepRunStillDraws) {
  const RunFolder run(kHeader + "1,0,inf,0,0\n");
  EXPECT_THAT(curves_svg(read_run(run.path())), HasSubstr("</svg>"));
  EXPECT_THAT(curves_text(read_run(run.path())), HasSubstr("loss inf"));
}

TEST(CurvesFaults, MissingFilesSayWhatToDo) {
  const tests::TemporaryFolder folder;
  expect_fault(folder.path() / "typo", ExitCode::kInputMissing,
               "typo: no such folder; give the folder of a run");
  expect_fault(folder.path(), ExitCode::kInputMissing, "steps.csv: no such file");
}

TEST(CurvesFaults, AnEmptyRunIsNamed) {
  const RunFolder run(kHeader);
  expect_fault(run.path(), ExitCode::kBadData, "steps.csv: no step is recorded yet");
}

TEST(CurvesFaults, ADamagedLineIsNamedByFileAndLine) {
  for (const char* line :
       {"x,1,1,1,0", "2,1,1,1", "2,1,1,1,0,7", "", "2,,1,1,0", "2,1,1,nan,0", "2.5,1,1,1,0"}) {
    const RunFolder run(kHeader + "1,0.5,2,0.1,0\n" + line + "\n");
    expect_fault(run.path(), ExitCode::kBadData, "steps.csv:3: '");
  }
  const RunFolder back(small_csv() + "4,2,1,1,0\n");
  expect_fault(back.path(), ExitCode::kBadData, "steps.csv:6: step 4 of epoch 2 cannot follow");
  const RunFolder other("a,b\n1,2\n");
  expect_fault(other.path(), ExitCode::kBadData, "steps.csv:1: not a record of steps");
}

TEST(CurvesFaults, ADamagedSummaryIsNamed) {
  const RunFolder run(small_csv());
  for (const char* text : {"{", "{}", R"({"exit_reason": 5})"}) {
    files::write_atomically(run.path() / "summary.json", text);
    expect_fault(run.path(), ExitCode::kBadData, "summary.json: not a run's summary");
  }
}

}  // namespace curves_test
}  // namespace lockstep::cli
