#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/named_table.h"
#include "base/yaml/config_reader.h"
#include "metrics/training_metrics.h"
#include "model/model.h"
#include "train/evaluator.h"
#include "train/step/step_report.h"

namespace lockstep::train {

/// Facts of the run that a callback belongs to; all of them outlive the callback.
struct CallbackContext {
  int rank = 0;
  int world_size = 1;
  std::filesystem::path project_dir;  ///< of the run; a callback that writes does so on one rank
  int64_t total_steps = 0;
  const model::Model& model;
  metrics::TrainingMetrics& metrics;  ///< registry() takes series of one's own
};

/// A user's code around the steps of a run, in the manner of Keras. Every rank has its own and
/// makes the same calls in the same order: begin, then on_step_end for each step and
/// on_evaluation_end for each evaluation, and end where the run ends without an error. It reads the
/// weights and changes none. What it throws ends the run on all ranks.
///
/// Threads: called by the thread that trains, which waits.
class Callback {
 public:
  virtual ~Callback() = default;
  virtual void begin(const CallbackContext&) {}
  virtual void on_step_end(const StepReport&) {}
  /// After `step` updates.
  virtual void on_evaluation_end(int64_t /*step*/, const EvalResult&) {}
  /// After the last save of the run.
  virtual void end() {}
};

using MakeCallback = std::function<std::unique_ptr<Callback>()>;

/// One row of the table of callbacks that section `callbacks` of the run file may name:
///
///   callback_types().add({.name = "print_loss", .read = [](ConfigReader* in) -> MakeCallback {
///     int64_t every = 100;
///     in->read("every", &every, count_from(1), "print_loss: steps from one line to the next");
///     return [every] { return std::make_unique<PrintLoss>(every); };
///   }});
///
/// and in the run file: `callbacks: {print_loss: {every: 10}}`
struct CallbackType {
  std::string name;
  /// Reads the keys of the callback's own section.
  std::function<MakeCallback(ConfigReader* in)> read;
};

/// The table. Lockstep has no callbacks of its own in it.
NamedTable<CallbackType>& callback_types();

/// Those that the section asks for, in the table's order. Faults go where `in` sends them.
std::vector<MakeCallback> read_callbacks(ConfigReader in);

/// Callbacks called one after the other.
class Callbacks {
 public:
  explicit Callbacks(const std::vector<MakeCallback>& wanted);
  void begin(const CallbackContext& context);
  void on_step_end(const StepReport& report);
  void on_evaluation_end(int64_t step, const EvalResult& result);
  void end();

 private:
  std::vector<std::unique_ptr<Callback>> all_;
};

}  // namespace lockstep::train
