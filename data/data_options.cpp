// Section `data`: reads it and opens its data sets, for on_error: skip in a SkippingDataset.
#include "data/data_options.h"

#include <yaml-cpp/yaml.h>

#include "data/dataset.h"

namespace lockstep::data {
namespace {

/// Opens a data set. With on_error: skip, damaged samples are replaced as `instead` says.
std::unique_ptr<Dataset> open(const DatasetPlan& plan, DatasetInputs inputs, bool skips_damaged,
                              InsteadOfDamaged instead) {
  inputs.skips_damaged = skips_damaged;
  std::unique_ptr<Dataset> set = plan.make(inputs);
  if (!skips_damaged) return set;
  return std::make_unique<SkippingDataset>(std::move(set), instead);
}

}  // namespace

DataOptions read_data_options(ConfigReader in, bool needs_train) {
  DataOptions options;
  if (needs_train) in.require("train");
  const DatasetOptions train = read_dataset_options(in.section("train"), DatasetUse::kTraining);
  if (in.has("train")) options.train = train;
  const bool has_eval = in.has("eval") && !in.node()["eval"].IsNull();
  const DatasetOptions eval = read_dataset_options(in.section("eval"), DatasetUse::kEvaluation);
  if (has_eval) options.eval = eval;
  in.read("global_batch_size", &options.global_batch_size, count_from(1),
          "samples per update over all ranks (recommended)");
  in.read("batch_size_per_rank", &options.batch_size_per_rank, count_from(1),
          "samples per update and rank; resume needs the same world size");
  in.read("shuffle", &options.shuffle, "new sample order each epoch, from run.seed");
  in.read("drop_last", &options.drop_last, "drop the last partial batch of an epoch");
  in.read("loader_threads", &options.loader_threads, between(0, 256),
          "reader threads of a rank; default 1, or 0 for data in memory on CPUs");
  in.read("prefetch_batches", &options.prefetch_batches, between(1, 1e4),
          "most batches read ahead");
  std::string on_error = "fail";
  in.read_choice("on_error", &on_error, {"fail", "skip"},
                 "damaged samples: end the run, or use the next valid one");
  options.skips_damaged = on_error == "skip";
  in.read("max_skipped", &options.max_skipped, between(0, 1e12),
          "on_error: skip: most damaged samples per epoch");
  in.read("remote_cache_bytes", &options.remote.cache_bytes, between(1 << 23, 1e15),
          "cache of s3:// and gs:// files per rank, in bytes");
  in.read("remote_timeout_s", &options.remote.timeout_s, between(0.1, 1e5),
          "seconds to retry a request to an object store");
  if (in.has("global_batch_size") == in.has("batch_size_per_rank"))
    in.fault("global_batch_size",
             "give exactly one of data.global_batch_size and data.batch_size_per_rank");
  in.done();
  return options;
}

std::unique_ptr<Dataset> DataOptions::open_train(const DatasetInputs& inputs) const {
  return open(train, inputs, skips_damaged,
              inputs.use == DatasetUse::kTraining ? InsteadOfDamaged::kNextSample
                                                  : InsteadOfDamaged::kNothing);
}

std::unique_ptr<Dataset> DataOptions::open_eval(const DatasetInputs& inputs) const {
  return open(*eval, inputs, skips_damaged, InsteadOfDamaged::kNothing);
}

}  // namespace lockstep::data
