#pragma once

#include <filesystem>
#include <string>
#include <utility>

#include <fmt/format.h>

namespace lockstep {

/// Folder of a run and the paths in it. Nothing is created or checked.
///
///   Project("runs/digits").saved_model(46)   runs/digits/saved_models/46
class Project {
 public:
  explicit Project(std::filesystem::path folder) : folder_(std::move(folder)) {}

  const std::filesystem::path& folder() const { return folder_; }
  std::filesystem::path checkpoints() const { return folder_ / "checkpoints"; }
  /// Copies of checkpoints whose folder is in an object store.
  std::filesystem::path host_copies() const { return folder_ / "host_copies"; }
  std::filesystem::path saved_models() const { return folder_ / "saved_models"; }
  std::filesystem::path saved_model(int64_t step) const {
    return saved_models() / std::to_string(step);
  }
  std::filesystem::path train() const { return folder_ / "train"; }  ///< records and curves
  std::filesystem::path eval() const { return folder_ / "eval"; }    ///< curves, `lockstep eval`
  /// Curves of `lockstep eval`. Not in eval(), because viewers show only the newer file if two
  /// processes write to one folder.
  std::filesystem::path evaluator() const { return folder_ / "evaluator"; }
  /// Values that callbacks store, by mode: train, eval.
  std::filesystem::path callbacks(const char* mode) const { return folder_ / "callbacks" / mode; }
  /// Values that callbacks of an inference store.
  std::filesystem::path infer() const { return folder_ / "infer"; }
  std::filesystem::path logs() const { return folder_ / "logs"; }
  std::filesystem::path goodput() const { return folder_ / "goodput.csv"; }
  std::filesystem::path summary() const { return folder_ / "summary.json"; }
  /// The run's settings, for people and for programs that follow runs: "path=value" lines.
  std::filesystem::path settings() const { return folder_ / "settings.txt"; }
  std::filesystem::path targets() const { return folder_ / "targets.json"; }
  std::filesystem::path control_socket() const { return folder_ / "control.sock"; }
  std::filesystem::path timeline(int64_t step) const {
    return folder_ / fmt::format("timeline-{}.json", step);
  }

 private:
  std::filesystem::path folder_;
};

}  // namespace lockstep
