#pragma once

#include <filesystem>
#include <functional>
#include <future>
#include <optional>
#include <string>
#include <vector>

#include "dist/communicator.h"
#include "model/model.h"
#include "train/evaluation/publish_options.h"
#include "train/exports.h"

namespace lockstep::daemon {

/// The models that a run publishes under RUN/saved_models, by publish_model() in a thread of rank
/// 0.
class SavedModels final : public train::Exports {
 public:
  /// `control` must outlive it. `on_done` is called by the thread after each export, with whether
  /// it succeeded; it may be empty.
  SavedModels(std::filesystem::path project_dir, const train::PublishOptions& options,
              dist::Communicator& control, std::function<void(bool ok)> on_done = {});
  /// Waits for the export under way.
  ~SavedModels() override;
  SavedModels(const SavedModels&) = delete;
  SavedModels& operator=(const SavedModels&) = delete;

  void begin(const train::Evaluated& evaluated) override;
  void wait_until_read() override;
  bool settle() override;

 private:
  bool run(const train::Evaluated& evaluated, std::promise<void> has_read) const;
  void join();

  const std::filesystem::path project_dir_;
  const train::PublishOptions options_;
  dist::Communicator& control_;
  const std::function<void(bool ok)> on_done_;
  double waited_s_ = 0;  ///< this thread, for exports that were under way
  std::future<void> read_;
  std::future<bool> done_;  ///< of the export under way
  bool last_ok_ = true;
};

/// Throws Error(kUsage) if exports are asked for and this network has no form as TorchScript, so
/// that a run which is to publish it says so before its first step.
void require_publishable(const model::Model& model, const train::PublishOptions& options);

/// Turns exports off that only a preset asks for, if this network has no form as TorchScript, and
/// adds a note that says so.
void leave_out_exports(const model::Model& model, train::PublishOptions* options,
                       std::vector<std::string>* notes);

}  // namespace lockstep::daemon
