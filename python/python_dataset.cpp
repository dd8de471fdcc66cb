#include "python/python_dataset.h"

#include <ATen/ops/tensor.h>

#include "python/host.h"

namespace lockstep::python {
// All work is done by lockstep_glue/datasets.py: reading, checking and batching samples, and the
// worker processes. This file converts arguments and results. A Python error is bad data (exit code
// kBadData).
namespace {

data::TargetKind kind_of(const std::string& name) {
  if (name == "class") return data::TargetKind::kClass;
  if (name == "soft") return data::TargetKind::kSoft;
  return name == "values" ? data::TargetKind::kValues : data::TargetKind::kTokens;
}

Value call_data(const char* function, const List& arguments) {
  return call(function, arguments, ExitCode::kBadData);
}

}  // namespace

PythonDataset::PythonDataset(const PythonDatasetOptions& options, const data::DatasetInputs& inputs,
                             const std::string& what)
    : num_workers_(options.num_workers) {
  const PythonArgs& args = options.args;
  start(args.python);
  const Value made = call_data(
      "make_dataset", {args.path, args.name, args.args, options.targets, options.num_classes,
                       inputs.seed, what, inputs.skips_damaged, inputs.own_loss});
  const List& facts = made.as_list();  // object, length, shape, is_tokens, kind, classes
  data_ = facts[0];
  num_samples_ = facts[1].as_int();
  for (const Value& extent : facts[2].as_list()) spec_.input_shape.push_back(extent.as_int());
  spec_.input_dtype = facts[3].as_bool() ? at::kLong : at::kFloat;
  spec_.target_kind = kind_of(facts[4].as_text());
  spec_.num_classes = facts[5].as_int();
  // Classes and tokens may contain the index that the loss ignores.
  spec_.may_ignore = spec_.target_kind == data::TargetKind::kClass ||
                     spec_.target_kind == data::TargetKind::kTokens;
  if (num_workers_ > 0) pool_ = call_data("start_workers", {data_, num_workers_});
}

PythonDataset::~PythonDataset() {
  if (pool_.is_none()) return;
  try {
    (void)call_data("end_workers", {pool_});
  } catch (const Error&) {  // the workers end with this process
  }
}

data::Samples PythonDataset::get(std::span<const int64_t> indices_B, int64_t epoch) const {
  // A tensor, not a list: it is passed without a copy.
  const at::Tensor rows_B =
      at::tensor(at::ArrayRef<int64_t>(indices_B.data(), indices_B.size()), at::kLong);
  const Value read = pool_.is_none() ? call_data("read_samples", {data_, rows_B, epoch})
                                     : call_data("read_samples_by_worker", {pool_, rows_B, epoch});
  if (read.is_none())  // like a killed rank: the run continues when it is started again
    throw Error(ExitCode::kUnavailable, "python",
                "a worker of the data set was killed (out of memory?); start the run again: it "
                "continues from its last save. data.train.num_workers says how many there are");
  return {read.as_list()[0].as_tensor(), read.as_list()[1].as_tensor()};
}

std::string PythonDataset::digest() const { return call_data("digest", {data_}).as_text(); }

data::DatasetType python_dataset_type() {
  return {"python", [](ConfigReader* in, data::DatasetUse use) -> data::MakeDataset {
            PythonDatasetOptions options{.args = read_python_args(in)};
            in->read_choice("targets", &options.targets,
                            {"auto", "class", "soft", "values", "tokens"},
                            "python: what a target is; auto: a whole number is a class, a list of "
                            "whole numbers tokens, floats values");
            in->read("num_classes", &options.num_classes, between(0, 1e9),
                     "python: how many classes or tokens; 0: the object's num_classes, vocab_size "
                     "or classes");
            in->read("num_workers", &options.num_workers, between(0, 256),
                     "python: processes of a rank that read batches ahead; 0: the rank reads");
            const char* what = use == data::DatasetUse::kTraining ? "data.train" : "data.eval";
            return [options, what](const data::DatasetInputs& inputs) {
              return std::make_unique<PythonDataset>(options, inputs, what);
            };
          }};
}

}  // namespace lockstep::python
