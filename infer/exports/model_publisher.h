#pragma once

#include <filesystem>
#include <functional>
#include <future>
#include <string>
#include <vector>

#include "dist/communicator.h"
#include "model/model.h"
#include "train/eval_options.h"
#include "train/run.h"

namespace lockstep::exports {

/// Publisher of a run's models, RUN/saved_models/<step>. A thread of rank 0 runs publish_model().
class ModelPublisher final : public train::Exports {
 public:
  /// `control` must outlive the object. The thread calls `on_done` after each export, with ok =
  /// true if it succeeded. `on_done` may be empty.
  ModelPublisher(std::filesystem::path project_dir, const train::PublishOptions& options,
                 dist::Communicator& control, std::function<void(bool ok)> on_done = {});
  /// Waits for the export in progress.
  ~ModelPublisher() override;

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
  double waited_s_ = 0;  ///< time that this thread waited for exports in progress
  std::future<void> read_;
  std::future<bool> done_;  ///< of the export in progress
  bool last_ok_ = true;
};

/// Throws Error(kConfig) if exports are requested in a form that this network does not have. The
/// message names the formats that it has. Call it before the first step, so that such a run fails
/// early.
void require_publishable(const model::Model& model, const std::vector<int64_t>& input_shape,
                         const train::PublishOptions& options);

/// Turns off exports that only a preset requests, if this network has no TorchScript form. Adds a
/// note about it.
void leave_out_exports(const model::Model& model, train::PublishOptions* options,
                       std::vector<std::string>* notes);

}  // namespace lockstep::exports
