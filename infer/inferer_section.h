#pragma once

#include <optional>
#include <string>
#include <vector>

#include "coord/callback_types.h"
#include "data/datasets/dataset_table.h"
#include "infer/inferer_options.h"

namespace lockstep::infer {

/// What an inferer is fed with: a section like those of `data`, or a name.
struct FeedSection {
  std::string named;  ///< train, eval, or a path; empty: see `dataset`
  std::optional<data::DatasetOptions> dataset;
};

/// Section `inferer` of a run file, or an inferer.json.
struct InfererSection {
  InfererOptions options;
  int64_t batch_size = 256;  ///< that of an evaluation, unless its section says otherwise
  std::string log_dir;       ///< empty: <project_dir>/infer
  /// Absent: data.eval of the run file. None: an inference without iterations.
  std::optional<std::vector<FeedSection>> feeds;
  std::vector<coord::WantedCallback> callbacks;
};

/// Reads the section; keys that are not its own are left to who calls in->done().
InfererSection read_inferer_section(ConfigReader* in);

/// Key `feed` of the section, or what stands behind --feed: a section of a data set, a name, or a
/// list of these. Faults go where `in` sends them.
std::vector<FeedSection> read_feeds(const YAML::Node& node, const std::string& path,
                                    const YamlDocument& document, Diagnostics* faults);

}  // namespace lockstep::infer
