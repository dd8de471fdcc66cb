#include "data/data_options.h"

#include <yaml-cpp/yaml.h>

namespace lockstep::data {

DataOptions read_data_options(ConfigReader in) {
  DataOptions options;
  in.require("train");
  options.train = read_dataset_options(in.section("train"), DatasetUse::kTraining);
  const bool has_eval = in.has("eval") && !in.node()["eval"].IsNull();
  const DatasetOptions eval = read_dataset_options(in.section("eval"), DatasetUse::kEvaluation);
  if (has_eval) options.eval = eval;
  in.read("global_batch_size", &options.global_batch_size, count_from(1),
          "samples of one update over all ranks (recommended)");
  in.read("batch_size_per_rank", &options.batch_size_per_rank, count_from(1),
          "samples of one update on each rank; a resume at another world size is refused");
  in.read("shuffle", &options.shuffle,
          "a new order each epoch, from run.seed; false: the data set's own order");
  in.read("drop_last", &options.drop_last, "leave out the partial batch at an epoch's end");
  in.read("loader_threads", &options.loader_threads, between(0, 256),
          "threads of a rank that read batches ahead, to the same bits with any number; default 1, "
          "and 0 where samples lie ready in memory");
  in.read("prefetch_batches", &options.prefetch_batches, between(1, 1e4),
          "batches that wait ready at most");
  if (in.has("global_batch_size") == in.has("batch_size_per_rank"))
    in.fault("global_batch_size",
             "give exactly one of data.global_batch_size and data.batch_size_per_rank");
  in.done();
  return options;
}

}  // namespace lockstep::data
