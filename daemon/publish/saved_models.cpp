#include "daemon/publish/saved_models.h"

#include <utility>

#include <fmt/format.h>

#include "base/error.h"
#include "base/files/project.h"
#include "base/log.h"
#include "daemon/exports/portable_network.h"
#include "daemon/exports/torchscript.h"
#include "daemon/publish/publish_model.h"
#include "dist/agree.h"
#include "train/gradients/stopwatch.h"

// One background thread per export, on rank 0. Training waits only if the previous export is still
// running, or if a save begins while the checkpoint is still being read.
namespace lockstep::daemon {

SavedModels::SavedModels(std::filesystem::path project_dir, const train::PublishOptions& options,
                         dist::Communicator& control, std::function<void(bool ok)> on_done)
    : project_dir_(std::move(project_dir)),
      options_(options),
      control_(control),
      on_done_(std::move(on_done)) {
  if (control_.rank() != 0) return;
  try {
    remove_unfinished_exports(project_dir_);
  } catch (const Error& fault) {
    log::warning("export", fmt::format("what an earlier export left stays: {}", fault.what()));
  }
}

SavedModels::~SavedModels() { join(); }

namespace {

/// Returns why the network has no TorchScript form; empty if it has one.
std::string fault_of_form(const model::Model& model) {
  if (!model.torchscript_archive().empty()) return "";
  try {
    (void)torchscript_source(portable(model, {}, 0));
  } catch (const Error& fault) {
    return fault.what();
  }
  return "";
}

}  // namespace

void SavedModels::join() {
  if (done_.valid()) last_ok_ = done_.get();
}

void SavedModels::begin(const train::Evaluated& evaluated) {
  if (control_.rank() != 0) return;
  // At most one export at a time. The wait counts as training time.
  train::Stopwatch watch;
  join();
  std::promise<void> has_read;
  read_ = has_read.get_future();
  try {
    done_ = std::async(std::launch::async, [this, evaluated, read = std::move(has_read)]() mutable {
      return run(evaluated, std::move(read));
    });
  } catch (const std::system_error& fault) {
    log::warning("export", fmt::format("step {} is not exported: no thread for it ({})",
                                       evaluated.step, fault.what()));
    read_ = {};
    last_ok_ = false;
  }
  waited_s_ += watch.lap();
}

bool SavedModels::run(const train::Evaluated& evaluated, std::promise<void> has_read) const {
  train::Stopwatch watch;
  bool ok = false;
  std::string fault;
  try {
    publish_model(project_dir_, evaluated, options_, [&] { has_read.set_value(); });
    ok = true;
  } catch (const std::exception& error) {
    fault = error.what();
  }
  // A failed export never ends the run; settle() reports it at the end.
  if (ok)
    log::info("export",
              fmt::format("published step {}: {} ({:.3f} s)", evaluated.step,
                          Project(project_dir_).saved_model(evaluated.step).string(), watch.lap()));
  else
    log::warning("export", fmt::format("step {} could not be exported: {}; training goes on, the "
                                       "save {} stands",
                                       evaluated.step, fault, evaluated.save));
  if (on_done_) on_done_(ok);
  return ok;
}

void SavedModels::wait_until_read() {
  if (!read_.valid()) return;
  train::Stopwatch watch;
  read_.get();
  waited_s_ += watch.lap();
}

bool SavedModels::settle() {
  log::debug("export", fmt::format("training waited {:.6f} s for exports", waited_s_));
  join();
  // A collective: all ranks learn whether rank 0's last export succeeded.
  return !dist::any_of(control_, control_.rank() == 0 && !last_ok_);
}

void require_publishable(const model::Model& model, const train::PublishOptions& options) {
  if (!options.any()) return;
  const std::string fault = fault_of_form(model);
  if (fault.empty()) return;
  const std::string beside = options.preset.empty() ? "" : " beside '" + options.preset + "'";
  throw Error(ExitCode::kUsage, "export",
              fmt::format("section 'export'{} asks for TorchScript, and this network has no such "
                          "form: {}; remove the section",
                          beside, fault));
}

void leave_out_exports(const model::Model& model, train::PublishOptions* options,
                       std::vector<std::string>* notes) {
  if (!options->any() || !options->is_from_preset || fault_of_form(model).empty()) return;
  options->after_evaluation = options->at_end = false;
  notes->push_back(fmt::format(
      "'{}' exports nothing: this network has no form as TorchScript (docs/models.md names those "
      "that have one)",
      options->preset));
}

}  // namespace lockstep::daemon
