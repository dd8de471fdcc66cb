#include "train/past_evaluations.h"

#include <cmath>
#include <map>
#include <sstream>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/error.h"
#include "base/files/project.h"
#include "train/records.h"

// Patience of a run, and the evaluations in its files.
namespace lockstep::train {

bool is_better(const std::string& metric, double value, const std::optional<double>& best) {
  if (!std::isfinite(value)) return false;
  if (!best) return true;
  return metric == "eval.loss" ? value < *best : value > *best;
}

bool Patience::add(double value) {
  const bool is_best = is_better(metric_, value, best_);
  num_without_ = is_best ? 0 : num_without_ + 1;
  if (is_best) best_ = value;
  return is_best;
}

// Reconstructs eval.patience and missing work of a resumed run from its own files, so that no extra
// state is saved.

namespace {

bool is_due(const PastOptions& options) {
  if (!options.has_eval_data || options.clock.step == 0) return false;
  const bool is_of_epoch = ends_eval_epoch(options.eval, options.clock);
  return options.is_own_save ? options.eval.on_save || is_of_epoch
                             : options.is_from_memory && is_of_epoch;
}

bool is_done(const PastOptions& options, const std::filesystem::path& record) {
  std::error_code ignored;
  const int64_t step = options.clock.step;
  return read_evals(record, "loss").contains(step) &&
         (!options.publish.after_evaluation ||
          std::filesystem::exists(Project(options.project_dir).saved_model(step), ignored));
}

/// Returns "1" if an evaluation is missing, else "0", then the values.
std::string found(const PastOptions& options) {
  const std::string name =
      options.publish.best_by.substr(std::string_view("eval.").size());  // loss, accuracy
  const std::filesystem::path record = Project(options.project_dir).train() / "evals.csv";
  std::map<int64_t, double> evals = read_evals(record, name);
  const bool is_missing = is_due(options) && !is_done(options, record);
  // The missing evaluation will be made again, so it must not count twice.
  if (is_missing) evals.erase(options.clock.step);
  std::vector<double> values;
  for (const auto& [step, value] : evals) values.push_back(value);
  return fmt::format("{} {}", is_missing ? 1 : 0, fmt::join(values, " "));
}

/// Returns nullopt if there is no record, or none of this step.
std::optional<double> recorded_loss(const std::filesystem::path& steps, int64_t step) {
  try {
    const std::optional<StepLine> line = last_step(steps);
    if (line && line->step == step && line->has_loss) return line->loss;
  } catch (const Error&) {  // an unreadable record is no reason to fail
  }
  return std::nullopt;
}

}  // namespace

bool ends_eval_epoch(const EvalOptions& options, const StepClock& clock) {
  return options.every_epochs > 0 && clock.step > 0 && clock.step % clock.steps_per_epoch == 0 &&
         (clock.step / clock.steps_per_epoch) % options.every_epochs == 0;
}

PastEvaluations past_evaluations(const PastOptions& options, dist::Communicator& control) {
  const std::string text = dist::on_all_ranks(
      control, [&] { return control.rank() == 0 ? found(options) : std::string(); });
  std::istringstream words(dist::broadcast_text(control, text));
  PastEvaluations past{.patience = Patience(options.publish.best_by, options.eval.patience)};
  words >> past.is_missing;
  for (std::string value; words >> value;) (void)past.patience.add(std::stod(value));
  if (past.is_missing && control.rank() == 0)
    past.train_loss =
        recorded_loss(Project(options.project_dir).train() / "steps.csv", options.clock.step);
  return past;
}

}  // namespace lockstep::train
