#include <memory>
#include <string>
#include <vector>

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "coord/docs_examples.h"
#include "support/temporary_folder.h"

namespace lockstep::coord {
namespace {

using ::testing::HasSubstr;
using ::testing::SizeIs;

/// Texts of the page's blocks in a language.
std::vector<std::string> blocks_of(const std::string& page, const std::string& language) {
  std::vector<std::string> blocks;
  const std::string open = "\n```" + language + "\n";
  for (size_t at = page.find(open); at != page.npos; at = page.find(open, at + 1)) {
    const size_t begin = at + open.size();
    blocks.push_back(page.substr(begin, page.find("```\n", begin) - begin));
  }
  return blocks;
}

std::string file_of(const std::string& path) {
  return files::read(std::string(LOCKSTEP_SOURCE_DIR) + "/" + path);
}

std::vector<WantedCallback> read_page(const std::string& text) {
  Diagnostics faults;
  YamlDocument document = YamlDocument::parse("docs/callbacks.md", text, &faults);
  ConfigReader in(document.root(), "", document, &faults);
  std::vector<WantedCallback> wanted = read_callbacks(in.section("callbacks"));
  faults.throw_if_any("config");
  return wanted;
}

/// A program adds its rows once.
void add_callbacks_once() {
  if (callback_types().find("share_right") == nullptr) tests::add_callbacks();
}

TEST(CallbackDocs, Every_run_file_of_the_page_is_read) {
  add_callbacks_once();
  const std::vector<std::string> blocks = blocks_of(file_of("docs/callbacks.md"), "yaml");
  ASSERT_THAT(blocks, SizeIs(3));  // integration.infer_python runs the last
  EXPECT_THAT(read_page(blocks[0]), SizeIs(8));
  EXPECT_THAT(read_page(blocks[1]), SizeIs(3));
}

TEST(CallbackDocs, Every_callback_has_its_row) {
  add_callbacks_once();
  for (const char* const name : {"log", "prediction_saver", "tfrecords_saver", "collector",
                                 "statistics", "topk", "confusion"}) {
    ASSERT_NE(callback_types().find(name), nullptr) << name;
    EXPECT_THAT(file_of("docs/callbacks.md"), HasSubstr("\n| `" + std::string(name) + "` |"));
  }
}

TEST(CallbackDocs, N13_code_of_the_page_is_that_which_is_run_here) {
  const std::string code = file_of("tests/coord/docs_examples.h");
  const std::vector<std::string> blocks = blocks_of(file_of("docs/callbacks.md"), "cpp");
  ASSERT_THAT(blocks, SizeIs(4));
  for (const std::string& block : blocks) EXPECT_THAT(code, HasSubstr(block));
}

TEST(CallbackDocs, N50_the_same_callbacks_run_in_every_mode) {
  add_callbacks_once();
  const std::string text = blocks_of(file_of("docs/callbacks.md"), "yaml").at(1);
  for (const Mode mode : {Mode::kTrain, Mode::kEval, Mode::kInfer}) {
    const tests::TemporaryFolder folder;
    double accuracy = -1;
    Services services;
    services.set_kpi = [&](const std::string&, double value) { accuracy = value; };
    std::vector<NamedCallback> callbacks = make_callbacks(read_page(text), mode, services);
    callbacks.push_back({"texts", std::make_unique<tests::TextSaver>()});
    CallbacksHandler handler(std::move(callbacks), {"logits", "labels", "_mask"},
                             {.mode = mode, .log_dir = folder.path()});
    handler.begin();
    DataMap data;
    data.put("logits", at::eye(3));
    data.put("labels", at::tensor({0, 1, 0}));
    handler.on_iteration_end(data);
    handler.end();
    EXPECT_EQ(accuracy, 2.0 / 3) << static_cast<int>(mode);
    EXPECT_EQ(files::read(folder.path() / "epoch_00000_iter_000000_rank_000_sample_00002.txt"),
              "2");
  }
}

}  // namespace
}  // namespace lockstep::coord
