#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/yaml/yaml_document.h"
#include "checkpoint/checkpoint_options.h"
#include "daemon/config/run_options.h"
#include "data/data_options.h"
#include "infer/data_feeder.h"
#include "infer/inferer_options.h"
#include "infer/saved_model.h"
#include "metrics/metrics_options.h"

/// Configuration of `lockstep infer`, and the network of a checkpoint for it.
namespace lockstep::exports {

/// Sections of a run file that `lockstep infer` reads. It ignores the others, so the network's code
/// is not needed.
struct InferConfig {
  std::string file;  ///< empty: no file, only defaults
  daemon::RunOptions run;
  daemon::GpuOptions gpu;
  metrics::MetricsOptions metrics;
  infer::InfererSection inferer;
  checkpoint::CheckpointOptions checkpoint;
  std::optional<data::DataOptions> data;  ///< read if a feed is `train` or `eval`
};

/// Reads the configuration. `file`: a run file, which has a section `run` or `inferer`, or an
/// inferer.json. The latter has the keys of section `inferer`, and `project_dir`, `plugins` and
/// `gpu`. `feeds`: from --feed; they override the section's. A missing plug-in is skipped with a
/// warning.
///
/// Throws Error: kConfig with all faults; kInputMissing for a missing file; kUsage if there is
/// nothing to feed.
InferConfig load_infer_config(const std::string& file, const std::vector<std::string>& feeds);

/// Opens the feeds; several feeds are concatenated. Folders of classes get the numbers of the
/// network's `class_names`. Throws as data::MakeDataset.
std::unique_ptr<infer::DataFeeder> open_feeds(const InferConfig& config,
                                              const std::vector<std::string>& class_names);

/// Opens the network of a checkpoint as its run evaluated it: with the moving averages of the
/// weights if the run evaluated these. The network is rebuilt from the settings in the checkpoint,
/// as `lockstep ckpt export` does. A class in Python is called as in the run, if its file is found.
/// The network's code may not be available (a plug-in). Then the TorchScript that the run published
/// is used, with the checkpoint's weights.
///
/// `where`: folder of checkpoints (its newest complete one) or prefix of one. `run_file`: another
/// place to search for Python code; may be empty. `with_graph`: adds the network's ONNX graph.
/// Throws Error as read_checkpoint_model() and rebuild_network() do, and for a graph as `lockstep
/// ckpt export --format onnx` does.
infer::LoadedNetwork open_checkpoint(const std::string& where, const std::string& run_file,
                                     bool with_graph = false);

}  // namespace lockstep::exports
