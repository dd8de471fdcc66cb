#pragma once

#include <filesystem>
#include <map>
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

/// Runs callbacks as a hook of training or of evaluations. Each iteration is a DataMap with this
/// rank's `inputs` and `targets`, `logits` (the network's outputs), and numbers: `loss`, `step`,
/// `epoch`. Training adds `learning_rate`, `weight_decay`, `sparsity`, and `_gradient_norm` if
/// known. Callbacks live as long as the hook; each evaluation calls their begin() and end().
class CallbackHook final : public Hook {
 public:
  using Kpis = std::map<std::string, double>;

  /// `kpis`: storage for values of the callbacks' Services::set_kpi. Throws Error(kConfig) like
  /// coord::CallbacksHandler.
  CallbackHook(std::vector<coord::NamedCallback> callbacks, const CallbackHookOptions& options,
               std::shared_ptr<Kpis> kpis = std::make_shared<Kpis>());
  CallbackHook(const CallbackHook&) = delete;
  CallbackHook& operator=(const CallbackHook&) = delete;

  bool reads_tensors() const override { return reads_tensors_; }
  void begin(const LoopStart& start) override;
  void before_step(int64_t step) override;
  void after_step(const IterationEnd& end) override;
  void end() override;
  void break_off() override;
  /// Adds the KPIs to the result.
  void complete(EvalResult* result) override;

 private:
  bool is_evaluation() const { return options_.mode == coord::Mode::kEval; }
  bool reads(const char* key) const;
  coord::DataMap data_of(const IterationEnd& end) const;
  void set_place(int64_t iteration, int64_t step);

  const CallbackHookOptions options_;
  coord::CallbacksHandler handler_;
  std::vector<std::string> keys_read_;
  bool reads_tensors_ = false;
  int64_t steps_per_epoch_ = 1;
  int64_t num_iterations_ = 0;  // of the loop; as in LoopStart
  int64_t iteration_ = 0;       // the current or next one
  const std::shared_ptr<Kpis> kpis_;
};

/// Creates a hook from one callback with a given name.
std::unique_ptr<Hook> to_hook(coord::NamedCallback callback, const CallbackHookOptions& options);

/// Creates the callbacks of the run file for this mode; null if there are none. `show_kpi` is
/// called for each new value of a KPI, on every rank; it may be empty. `control` must outlive the
/// hook.
std::unique_ptr<Hook> make_callback_hook(
    const std::vector<coord::WantedCallback>& wanted, const CallbackHookOptions& options,
    dist::Communicator& control,
    const std::function<void(const std::string& name, double value)>& show_kpi);

/// Returns the services of callbacks that need other ranks, over `control`, which must outlive
/// them.
coord::Services services_over(dist::Communicator& control);

}  // namespace lockstep::train
