#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "coord/callback.h"
#include "coord/callback_types.h"
#include "coord/callbacks_handler.h"
#include "dist/communicator.h"
#include "train/hook.h"

namespace lockstep::train {

struct CallbackHookOptions {
  coord::Mode mode = coord::Mode::kTrain;
  int rank = 0;
  int world_size = 1;
  /// Folder for results of training. An evaluation uses its subfolder <step>.
  std::filesystem::path log_dir;
  bool has_outputs = true;  ///< false: the network computes its own loss in training
  /// Names of other values next to KPIs in kpi.json and in an evaluation's result.
  std::vector<std::string> own_figures = {};
  std::vector<std::string> class_names = {};  ///< as in coord::Services
  int64_t num_classes = 0;                    ///< as in coord::Services
};

/// Creates a hook from one callback with a given name. Throws Error(kConfig) like
/// coord::CallbacksHandler.
std::unique_ptr<Hook> to_hook(coord::NamedCallback callback, const CallbackHookOptions& options);

/// Creates the callbacks of the run file for this mode; null if there are none. `show_kpi` is
/// called for each new value of a KPI, on every rank; it may be empty. `control` must outlive the
/// hook.
std::unique_ptr<Hook> make_callback_hook(
    const std::vector<coord::WantedCallback>& wanted, const CallbackHookOptions& options,
    dist::Communicator& control,
    const std::function<void(const std::string& name, double value)>& show_kpi);

/// Returns callbacks' services that need other ranks, over `control`, which must outlive them.
coord::Services services_over(dist::Communicator& control);

}  // namespace lockstep::train
