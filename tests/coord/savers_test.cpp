#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmath>
#include <csignal>
#include <filesystem>
#include <set>
#include <string>
#include <vector>

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/files/files.h"
#include "coord/data_map.h"
#include "coord/recording_callback.h"
#include "coord/saver_callback.h"
#include "coord/tf_records_saver.h"
#include "support/temporary_folder.h"

namespace lockstep::coord {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;
using tests::fault_of;
using tests::TemporaryFolder;
using Texts = std::vector<std::string>;

DataMap nested_batch(int64_t num_samples, int64_t num_boxes) {
  auto inner = std::make_shared<DataMap>();
  inner->put("boxes", at::arange(num_boxes * 4).reshape({num_boxes, 4}));
  inner->put("texts", Texts(static_cast<size_t>(num_boxes), "t"));
  DataMap batch;
  batch.put("x", at::arange(num_samples * 2).reshape({num_samples, 2}));
  batch.put("outputs", std::shared_ptr<const DataMap>(inner));
  batch.put("anchors", at::ones({7}));
  return batch;
}

TEST(SplitBatch, N30_N31_nested_inputs_are_split_and_nested_again) {
  const std::vector<DataMap> samples = split_batch_inputs(nested_batch(3, 3), {"anchors"});
  ASSERT_EQ(samples.size(), 3);
  EXPECT_TRUE(samples[1].tensor("x").equal(at::tensor({2, 3})));
  EXPECT_TRUE(samples[2].map("outputs").tensor("boxes").equal(at::tensor({8, 9, 10, 11})));
  EXPECT_THAT(samples[2].map("outputs").texts("texts"), ElementsAre("t"));
  EXPECT_EQ(samples[0].tensor("anchors").numel(), 7);
  EXPECT_EQ(split_batch_inputs(nested_batch(0, 0), {"anchors"}).size(), 0);
  EXPECT_EQ(split_batch_inputs(nested_batch(1, 1), {"anchors"}).size(), 1);
}

TEST(SplitBatch, Batch_sizes_that_differ_name_both) {
  EXPECT_THAT(fault_of([] { split_batch_inputs(nested_batch(3, 2), {"anchors"}); }),
              StartsWith("65 [callbacks] key 'outputs/boxes' holds 2 samples and key 'x' 3"));
  DataMap loss;
  loss.put("loss", at::ones({}));
  EXPECT_THAT(fault_of([&] { split_batch_inputs(loss, {}); }), HasSubstr("'loss' is one number"));
}

/// A handler around one saver, whose results are in a folder of the test's own.
struct Saving {
  template <typename Saver>
  explicit Saving(std::unique_ptr<Saver> saver) {
    std::vector<NamedCallback> callbacks;
    callbacks.push_back({"saver", std::move(saver)});
    handler = std::make_unique<CallbacksHandler>(std::move(callbacks), Texts{"x", "_save_names"},
                                                 CallbackContext{.log_dir = folder.path() / "log"});
  }

  std::string fault_of_batch(int64_t num_samples, const Texts& names = {}) const {
    DataMap batch;
    batch.put("x", at::arange(num_samples * 2).reshape({num_samples, 2}));
    if (!names.empty()) batch.put("save_names", names);
    return fault_of([&] { handler->on_iteration_end(batch); });
  }

  /// Paths below the folder, of all files.
  std::set<std::string> files() const {
    std::set<std::string> found;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(folder.path()))
      if (entry.is_regular_file())
        found.insert(std::filesystem::relative(entry.path(), folder.path()).string());
    return found;
  }

  TemporaryFolder folder;
  std::unique_ptr<CallbacksHandler> handler;
};

std::unique_ptr<PredictionSaver> prediction_saver_of(SampleSaverOptions options = {}) {
  options.keys = {"x"};
  return std::make_unique<PredictionSaver>(options);
}

TEST(SaverCallback, N28_N32_N34_names_of_epoch_iteration_rank_and_sample) {
  const Saving saving(prediction_saver_of());
  saving.handler->context().iteration_info = {.epoch_number = 2, .iteration_number = 31};
  EXPECT_EQ(saving.fault_of_batch(2), "");
  EXPECT_THAT(saving.files(),
              ElementsAre("log/epoch_00002_iter_000031_rank_000_sample_00000.json",
                          "log/epoch_00002_iter_000031_rank_000_sample_00001.json"));
  EXPECT_EQ(
      files::read(saving.folder.path() / "log/epoch_00002_iter_000031_rank_000_sample_00001.json"),
      "{\"x\":[2,3]}\n");
}

TEST(SaverCallback, N29_N33_N35_NQ6_prefix_name_suffix) {
  const Saving saving(prediction_saver_of({.save_prefix = "a/p_", .save_suffix = "_s"}));
  EXPECT_EQ(saving.fault_of_batch(2, {"one", "two/three"}), "");
  EXPECT_THAT(saving.files(), ElementsAre("log/a/p_one_s.json", "log/a/p_two/three_s.json"));
  const Saving unnamed(prediction_saver_of({.save_prefix = "a/p_", .save_suffix = "_s"}));
  EXPECT_EQ(unnamed.fault_of_batch(1), "");
  EXPECT_THAT(unnamed.files(),
              ElementsAre("log/a/p_epoch_00000_iter_000000_rank_000_sample_00000_s.json"));
}

TEST(SaverCallback, N33_names_that_do_not_fit_are_refused) {
  const Saving saving(prediction_saver_of());
  EXPECT_THAT(saving.fault_of_batch(3, {"a", "b"}),
              StartsWith("65 [callbacks] save_names has 2 names for 3 samples"));
  for (const std::string name : {"", "..", "../a", "a/../../b", "/a", "a//b", "a/", "."})
    EXPECT_THAT(saving.fault_of_batch(2, {"fine", name}), StartsWith("65 [callbacks] ")) << name;
  for (const std::string& name : {std::string(300, 'n'), "a/" + std::string(236, 'n') + "/b"})
    EXPECT_THAT(saving.fault_of_batch(1, {name}),
                AllOf(StartsWith("65 [callbacks] "), HasSubstr("too long for file systems")));
  EXPECT_THAT(saving.files(), ElementsAre());
  EXPECT_THAT(saving.fault_of_batch(2, {"a", "a"}), HasSubstr("'a' is given to two samples"));
  EXPECT_THAT(saving.fault_of_batch(1, {"a"}), HasSubstr("'a' is given to two samples"));
  saving.handler->context().iteration_info.epoch_number = 1;
  EXPECT_EQ(saving.fault_of_batch(1, {"a"}), "");
}

std::unique_ptr<TfRecordsSaverCallback> records_saver(TfRecordsSaverOptions options = {}) {
  options.saver.keys = {"x"};
  return std::make_unique<TfRecordsSaverCallback>(options);
}

TEST(TfRecordsSaver, N38_NQ4_files_begin_at_the_count_and_where_the_name_changes) {
  const Saving saving(records_saver({.max_samples_per_file = 2, .max_files = 4}));
  saving.handler->begin();
  EXPECT_EQ(saving.fault_of_batch(6, {"a", "a", "a", "b", "c", "d"}), "");
  EXPECT_THAT(saving.files(), ElementsAre("log/a-00001.tfrecord", "log/a.tfrecord",
                                          "log/b.tfrecord", "log/c.tfrecord"));
  EXPECT_THAT(saving.fault_of_batch(1, {"a"}), HasSubstr("'a' is given to two samples"));
}

TEST(TfRecordsSaver, A_name_that_is_that_of_anothers_part_replaces_nothing) {
  const Saving saving(records_saver({.max_samples_per_file = 1}));
  saving.handler->begin();
  EXPECT_EQ(saving.fault_of_batch(3, {"a", "a", "a-00001"}), "");
  saving.handler->end();
  EXPECT_THAT(saving.files(),
              ElementsAre("log/a-00001-00001.tfrecord", "log/a-00001.tfrecord", "log/a.tfrecord"));
}

TEST(TfRecordsSaver, A_first_sample_that_cannot_be_written_leaves_no_file) {
  const Saving saving(records_saver());
  saving.handler->begin();
  DataMap batch;
  batch.put("x", at::zeros({2, 2}, at::kComplexFloat));
  EXPECT_THAT(fault_of([&] { saving.handler->on_iteration_end(batch); }),
              HasSubstr("type ComplexFloat"));
  saving.handler->end_after_fault();
  EXPECT_THAT(saving.files(), ElementsAre());
}

TEST(TfRecordsSaver, Without_names_a_file_has_that_of_its_first_sample) {
  const Saving saving(records_saver({.max_samples_per_file = 4}));
  saving.handler->begin();
  for (int i = 0; i < 2; ++i) {
    saving.handler->context().iteration_info.iteration_number = i;
    EXPECT_EQ(saving.fault_of_batch(3), "");
  }
  EXPECT_THAT(saving.files(),
              ElementsAre("log/epoch_00000_iter_000000_rank_000_sample_00000.tfrecord",
                          "log/epoch_00000_iter_000001_rank_000_sample_00001.tfrecord.part"));
  saving.handler->end();
  EXPECT_THAT(saving.files(),
              ElementsAre("log/epoch_00000_iter_000000_rank_000_sample_00000.tfrecord",
                          "log/epoch_00000_iter_000001_rank_000_sample_00001.tfrecord"));
}

TEST(TfRecordsSaver, No_sample_makes_no_file) {
  const Saving saving(records_saver());
  saving.handler->begin();
  EXPECT_EQ(saving.fault_of_batch(0), "");
  saving.handler->end();
  EXPECT_THAT(saving.files(), ElementsAre());
}

TEST(TfRecordsSaver, A_killed_process_leaves_whole_files_only) {
  const Saving saving(records_saver({.max_samples_per_file = 2}));
  const pid_t child = ::fork();
  if (child == 0) {
    saving.handler->begin();
    (void)saving.fault_of_batch(3, {"a", "a", "a"});
    ::raise(SIGKILL);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFSIGNALED(status));
  EXPECT_THAT(saving.files(), ElementsAre("log/a-00001.tfrecord.part", "log/a.tfrecord"));
}

TEST(TfRecordsSaver, A_full_disk_is_74_and_finished_files_stay) {
  const Saving saving(records_saver({.max_samples_per_file = 200}));
  const pid_t child = ::fork();
  if (child == 0) {  // a file of 8 KiB is as large as this process may write
    ::signal(SIGXFSZ, SIG_IGN);
    const rlimit limit = {8192, 8192};
    ::setrlimit(RLIMIT_FSIZE, &limit);
    saving.handler->begin();
    if (!saving.fault_of_batch(10, Texts(10, "small")).empty()) ::_exit(1);
    if (!saving.fault_of_batch(190, Texts(190, "large")).empty()) ::_exit(2);
    const std::string fault = fault_of([&] { saving.handler->end(); });
    ::_exit(fault.starts_with("74 ") && fault.find("write: File too large") != fault.npos ? 0 : 3);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0) << "exit code times 256";
  EXPECT_EQ(saving.files().count("log/small.tfrecord"), 1);
  EXPECT_EQ(saving.files().count("log/large.tfrecord"), 0);
}

TEST(TfRecordsSaver, A_type_without_a_place_is_refused) {
  std::string bytes;
  DataMap sample;
  sample.put("z", at::zeros({2}, at::kComplexFloat));
  EXPECT_THAT(fault_of([&] { append_tf_example(sample, &bytes); }),
              HasSubstr("key 'z' is a tensor of type ComplexFloat"));
  EXPECT_EQ(bytes, "");
}

TEST(TfRecordsSaver, Two_values_of_one_feature_are_refused) {
  DataMap inner, sample;
  inner.put("b", at::zeros({2}));
  sample.put("a", std::make_shared<const DataMap>(inner));
  std::string bytes;
  append_tf_example(sample, &bytes);
  bytes.clear();
  DataMap flat_and_nested = sample, shape_of_another;
  flat_and_nested.put("a/b", at::zeros({2}));
  shape_of_another.put("a", at::zeros({2}));
  shape_of_another.put("a/shape", at::zeros({1}));
  EXPECT_THAT(fault_of([&] { append_tf_example(flat_and_nested, &bytes); }),
              StartsWith("65 [callbacks] two values would be the feature 'a/b' of one"));
  EXPECT_THAT(fault_of([&] { append_tf_example(shape_of_another, &bytes); }),
              StartsWith("65 [callbacks] two values would be the feature 'a/shape' of one"));
  EXPECT_EQ(bytes, "");
}

TEST(PredictionSaver, Values_as_JSON) {
  const TemporaryFolder folder;
  SampleSaverOptions options;
  options.keys = {"b", "i", "m", "r", "t"};
  std::vector<NamedCallback> callbacks;
  callbacks.push_back({"saver", std::make_unique<PredictionSaver>(options)});
  CallbacksHandler handler(std::move(callbacks), options.keys, {.log_dir = folder.path()});
  auto inner = std::make_shared<DataMap>();
  inner->put("n", at::tensor({7.5, 0.0}).reshape({1, 2, 1}));
  DataMap batch;
  batch.put("b", at::ones({1}, at::kBool));
  batch.put("i", at::tensor({int64_t{1} << 60}));
  batch.put("m", std::shared_ptr<const DataMap>(inner));
  batch.put("r", at::full({1, 1}, NAN));
  batch.put("t", Texts{"a\"\xff"});
  handler.on_iteration_end(batch);
  EXPECT_EQ(files::read(folder.path() / "epoch_00000_iter_000000_rank_000_sample_00000.json"),
            "{\"b\":true,\"i\":1152921504606846976,\"m\":{\"n\":[[7.5],[0.0]]},\"r\":[null],"
            "\"t\":\"a\\\"\xEF\xBF\xBD\"}\n");
}

}  // namespace
}  // namespace lockstep::coord
