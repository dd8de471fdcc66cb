#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/yaml/config_reader.h"
#include "coord/callback_types.h"
#include "data/dataset_table.h"
#include "infer/engine.h"

/// Section `inferer` of a run file, and the options of an Inferer.
namespace lockstep::infer {

/// Options of an Inferer: keys `run_config`, `engine` and `tensorrt_config` of section `inferer`.
struct InfererOptions {
  bool use_multiprocessing = true;  ///< feed, network and callbacks in threads of their own
  int64_t queue_size = 2;           ///< maximum of waiting iterations between two stages
  EngineOptions engine;

  InfererOptions with(const TensorrtConfig& tensorrt) const {
    InfererOptions options = *this;
    options.engine.tensorrt = tensorrt;
    return options;
  }
};

/// Data for an inferer: a section like those of `data`, or a name.
struct FeedSection {
  std::string named;  ///< train, eval, or a path; empty: `dataset` is set
  std::optional<data::DatasetOptions> dataset;
};

/// Section `inferer` of a run file, or an inferer.json.
struct InfererSection {
  InfererOptions options;
  int64_t batch_size = 256;  ///< default: that of an evaluation
  std::string log_dir;       ///< empty: <project_dir>/infer
  /// Feeds. Absent: data.eval of the run file. Empty: an inference without iterations.
  std::optional<std::vector<FeedSection>> feeds;
  std::vector<coord::WantedCallback> callbacks;
};

/// Reads the section. Unknown keys are left to the caller, who calls in->done().
InfererSection read_inferer_section(ConfigReader* in);

/// Reads key `feed` of the section, or the value of --feed: a section of a data set, a name, or a
/// list of these. Faults go to `faults`.
std::vector<FeedSection> read_feeds(const YAML::Node& node, const std::string& path,
                                    const YamlDocument& document, Diagnostics* faults);

}  // namespace lockstep::infer
