#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "coord/callback_types.h"
#include "coord/callbacks_handler.h"
#include "coord/services.h"
#include "dist/communicator.h"
#include "train/hooks/hook.h"

namespace lockstep::train {

struct CallbackHookOptions {
  coord::Mode mode = coord::Mode::kTrain;
  int rank = 0;
  int world_size = 1;
  /// Results of training; of an evaluation they are in the folder <step> of it.
  std::filesystem::path log_dir;
  bool has_outputs = true;  ///< false: the network computes its own loss in training
  /// Names of what stands beside KPIs in kpi.json and the result of an evaluation.
  std::vector<std::string> own_figures = {};
  std::vector<std::string> class_names = {};  ///< as coord::Services have them
  int64_t num_classes = 0;                    ///< likewise
};

/// Callbacks as a hook of a training or of evaluations: each iteration is a DataMap with this
/// rank's `inputs` and `targets`, `logits` (what the network gives), and numbers: `loss`, `step`,
/// `epoch`, and in training `learning_rate`, `weight_decay`, `sparsity`, and `_gradient_norm` where
/// it is known. Callbacks live as long as the hook; each evaluation is a begin() and an end() of
/// them.
class CallbackHook final : public Hook {
 public:
  using Kpis = std::map<std::string, double>;

  /// `kpis`: where the callbacks' Services::set_kpi leaves values. Throws Error(kConfig) as
  /// coord::CallbacksHandler does.
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
  /// Their KPIs.
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
  int64_t num_iterations_ = 0;  // of the loop, as LoopStart
  int64_t iteration_ = 0;       // the one that is under way or comes next
  const std::shared_ptr<Kpis> kpis_;
};

/// One callback under a name of its own.
std::unique_ptr<Hook> to_hook(coord::NamedCallback callback, const CallbackHookOptions& options);

/// Those that the run file asks for in this mode; null if there are none. `show_kpi` is called for
/// each new value of a KPI, on every rank; it may be empty. `control` must outlive the hook.
std::unique_ptr<Hook> make_callback_hook(
    const std::vector<coord::WantedCallback>& wanted, const CallbackHookOptions& options,
    dist::Communicator& control,
    const std::function<void(const std::string& name, double value)>& show_kpi);

/// What callbacks may ask of the ranks, over `control`, which must outlive it.
coord::Services services_over(dist::Communicator& control);

}  // namespace lockstep::train
