#pragma once

#include <filesystem>
#include <functional>

#include "train/evaluation/publish_options.h"
#include "train/exports.h"

namespace lockstep::daemon {

/// Publishes a checkpoint as a model for inference. RUN/saved_models/<step>/ contains:
///
///   model.pt       TorchScript of evaluation
///   losses.json    the losses of training and evaluation
///   kpi.json       accuracy and the results of eval.metrics
///   manifest.json  docs/export.md; global_step, size and SHA-256 of each file
///
/// Once per run, RUN/checkpoints/inference_graph is written too. It contains the first model.pt,
/// and io_nodes.json with the names of inputs and outputs.
///
/// The folder is renamed to its final name once everything is on disk, so readers see all of it or
/// nothing. A folder of the same step is replaced if its weights differ. Then saved_models/best is
/// set to the best existing model. Models beyond `keep` are removed, lowest steps first.
///
/// `has_read` is called once the checkpoint is no longer needed, also before an error. Throws Error
/// as export_command() and base/files/files.h do.
void publish_model(const std::filesystem::path& project_dir, const train::Evaluated& evaluated,
                   const train::PublishOptions& options, const std::function<void()>& has_read);

/// Removes what a killed export left, since saves may need the disk space. Throws Error as
/// base/files/files.h does.
void remove_unfinished_exports(const std::filesystem::path& project_dir);

}  // namespace lockstep::daemon
