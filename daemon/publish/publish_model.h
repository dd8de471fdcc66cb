#pragma once

#include <filesystem>
#include <functional>

#include "train/evaluation/publish_options.h"
#include "train/exports.h"

namespace lockstep::daemon {

/// Publishes a save as a model for inference: RUN/saved_models/<step>/ with
///   model.pt       TorchScript of evaluation
///   losses.json    the losses of training and evaluation
///   kpi.json       accuracy and what eval.metrics found
///   manifest.json  docs/export.md; global_step, size and SHA-256 of each file
/// and once RUN/checkpoints/inference_graph, the first model.pt, and io_nodes.json, the names of
/// its inputs and outputs. The folder gets its name once all of it is on disk, so that a reader
/// sees a whole one or none; one of the same step is replaced if its weights are others. Then
/// saved_models/best leads to the best of those that are there, and others beyond `keep` are
/// removed, those of the lowest steps.
///
/// `has_read` is called once the save is not needed any more, also before an error. Throws Error as
/// export_command() and base/files/files.h do.
void publish_model(const std::filesystem::path& project_dir, const train::Evaluated& evaluated,
                   const train::PublishOptions& options, const std::function<void()>& has_read);

/// Removes what an export that was killed left, whose room saves may need. Throws Error as
/// base/files/files.h does.
void remove_unfinished_exports(const std::filesystem::path& project_dir);

}  // namespace lockstep::daemon
