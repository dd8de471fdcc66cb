#include "coord/builtins/builtins.h"
#include "coord/savers/prediction_saver.h"
#include "coord/savers/tf_records_saver.h"

namespace lockstep::coord {
namespace {

SaverOptions read_saver(ConfigReader* in, const std::string& name) {
  SaverOptions options;
  options.keys = read_keys(in, name + ": what is saved of each sample; '_x' is optional");
  in->read("not_batch_keys", &options.not_batch_keys,
           name + ": those of the keys that are not by sample, and go whole to each");
  in->read("save_prefix", &options.save_prefix, name + ": stands before each name");
  in->read("save_suffix", &options.save_suffix, name + ": stands behind each name");
  return options;
}

const std::vector<std::string> kSaverModes = {"eval", "infer"};

}  // namespace

std::vector<std::string> read_keys(ConfigReader* in, const std::string& help) {
  std::vector<std::string> keys;
  in->require("keys");
  in->read("keys", &keys, help);
  return keys;
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
