// Rows of the two savers, and the keys that several callbacks share.
#include <algorithm>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/nearest_word.h"
#include "coord/builtins/builtins.h"
#include "coord/savers/prediction_saver.h"
#include "coord/savers/tf_records_saver.h"

namespace lockstep::coord {
namespace {

/// Reads the keys that both savers share.
SaverOptions read_saver(ConfigReader* in, const std::string& name) {
  SaverOptions options;
  options.keys = read_keys(in, name + ": what is saved of each sample; '_x' is optional");
  options.not_batch_keys = read_not_batch_keys(
      in, name + ": those of the keys that are not by sample, and go whole to each", options.keys);
  in->read("save_prefix", &options.save_prefix, name + ": stands before each name");
  in->read("save_suffix", &options.save_suffix, name + ": stands behind each name");
  return options;
}

// Not in training by default: each epoch would save each sample again.
const std::vector<std::string> kSaverModes = {"eval", "infer"};

}  // namespace

std::vector<std::string> read_keys(ConfigReader* in, const std::string& help) {
  std::vector<std::string> keys;
  in->require("keys");
  if (in->read("keys", &keys, help) && keys.empty())
    in->fault("keys", "'keys' names nothing: say what the callback reads");
  return keys;
}

std::vector<std::string> read_not_batch_keys(ConfigReader* in, const std::string& help,
                                             const std::vector<std::string>& keys) {
  std::vector<std::string> names, known;
  in->read("not_batch_keys", &names, help);
  for (const std::string& key : keys) known.push_back(callback_key(key).name);
  for (const std::string& name : names)
    if (std::find(known.begin(), known.end(), name) == known.end())
      in->fault("not_batch_keys", fmt::format("'{}' is none of 'keys'{}; there are: {}", name,
                                              did_you_mean(name, known), fmt::join(known, ", ")));
  return names;
}

CallbackType prediction_saver() {
  return {.name = "prediction_saver",
          .read = [](ConfigReader* in) -> MakeCallback {
            const SaverOptions options = read_saver(in, "prediction_saver");
            return [=](const Services&) { return std::make_unique<PredictionSaver>(options); };
          },
          .modes = kSaverModes};
}

CallbackType tf_records_saver() {
  return {.name = "tfrecords_saver",
          .read = [](ConfigReader* in) -> MakeCallback {
            TfRecordsSaverOptions options;
            options.saver = read_saver(in, "tfrecords_saver");
            in->read("max_samples_per_file", &options.max_samples_per_file, count_from(1),
                     "tfrecords_saver: samples after which a new file begins");
            in->read("max_files", &options.max_files, count_from(1),
                     "tfrecords_saver: files of each rank after which no more samples are saved");
            return
                [=](const Services&) { return std::make_unique<TfRecordsSaverCallback>(options); };
          },
          .modes = kSaverModes};
}

}  // namespace lockstep::coord
