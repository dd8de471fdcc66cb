#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/yaml/yaml_document.h"
#include "daemon/config/gpu_options.h"
#include "daemon/config/run_options.h"
#include "data/data_options.h"
#include "infer/feed/data_feeder.h"
#include "infer/inferer_section.h"
#include "metrics/metrics_options.h"

namespace lockstep::daemon {

/// What `lockstep infer` reads of a run file, whose other sections it passes over: the network's
/// code need not be there.
struct InferConfig {
  std::string file;  ///< empty: none, and defaults
  RunOptions run;
  GpuOptions gpu;
  metrics::MetricsOptions metrics;
  infer::InfererSection inferer;
  std::optional<data::DataOptions> data;  ///< read where a feed is `train` or `eval`
};

/// `file`: a run file (it has a section `run` or `inferer`), or an inferer.json: the keys of the
/// section, with `project_dir`, `plugins` and `gpu` beside them. `feeds`, from --feed, stand above
/// the section's. A plug-in that is not there is left out with a warning.
///
/// Throws Error: kConfig with all faults; kInputMissing for a file that is not there; kUsage where
/// nothing says what to feed.
InferConfig load_infer_config(const std::string& file, const std::vector<std::string>& feeds);

/// Opens the feeds; several are a list. Folders of classes get the numbers that `class_names` of
/// the network has. Throws as data::MakeDataset.
std::unique_ptr<infer::DataFeeder> open_feeds(const InferConfig& config,
                                              const std::vector<std::string>& class_names);

}  // namespace lockstep::daemon
