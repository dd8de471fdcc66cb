// Writes TFRecords for records_oracle.py: 5 samples in files of 2, then a sequence of 3.
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include <ATen/ATen.h>

#include "coord/callbacks_handler.h"
#include "coord/tf_records_saver.h"

namespace lockstep::coord {
namespace {

using Texts = std::vector<std::string>;

/// Samples first to first + count - 1; records_oracle.py knows the formulas.
DataMap batch_of(int64_t first, int64_t count) {
  const at::Tensor number = at::arange(first, first + count);
  auto inner = std::make_shared<DataMap>();
  inner->put("boxes", number.reshape({count, 1, 1}).expand({count, 2, 3}).to(at::kDouble) / 4);
  DataMap batch;
  batch.put("outputs", std::shared_ptr<const DataMap>(inner));
  batch.put("bytes", (number * 50).to(at::kByte).reshape({count, 1}).expand({count, 300}));
  batch.put("half", number.to(at::kHalf) / 2);
  batch.put("label", -number);
  batch.put("is_even", number.remainder(2).eq(0));
  batch.put("bf", number.to(at::kBFloat16).reshape({count, 1}));
  batch.put("empty", at::zeros({count, 0}));
  batch.put("classes", at::arange(3, at::kInt));  // not by sample
  Texts texts;
  for (int64_t i = first; i < first + count; ++i) texts.push_back("text " + std::to_string(i));
  batch.put("text", texts);
  return batch;
}

void write(const std::string& folder) {
  TfRecordsSaverOptions options{.max_samples_per_file = 2};
  options.saver.keys = {"outputs", "bytes", "half",    "label", "is_even",
                        "bf",      "empty", "classes", "text"};
  options.saver.not_batch_keys = {"classes"};
  Texts sources = options.saver.keys;
  sources.emplace_back("_save_names");
  std::vector<NamedCallback> callbacks;
  callbacks.push_back({"saver", std::make_unique<TfRecordsSaverCallback>(options)});
  CallbacksHandler handler(std::move(callbacks), sources, {.log_dir = folder});
  handler.begin();
  handler.on_iteration_end(batch_of(0, 5));
  DataMap sequence = batch_of(5, 3);
  sequence.put("save_names", Texts{"clips/a", "clips/b", "clips/b"});
  handler.on_iteration_end(sequence);
  handler.end();
}

}  // namespace
}  // namespace lockstep::coord

int main(int argc, char** argv) {
  if (argc != 2) return std::fputs("usage: write_records FOLDER\n", stderr), 64;
  lockstep::coord::write(argv[1]);
}
