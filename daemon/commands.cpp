#include "daemon/commands.h"

#include <filesystem>

#include <fmt/format.h>
#include <yaml-cpp/yaml.h>

#include "base/error.h"
#include "base/files/files.h"
#include "daemon/dry_run.h"
#include "daemon/publish/saved_models.h"
#include "daemon/run/find_data.h"
#include "daemon/run/run_hooks.h"
#include "daemon/run/training_context.h"
#include "dist/self_communicator.h"
#include "recal/plan/timeline_views.h"
#include "recal/recipe/recipe_reader.h"
#include "recal/time/step_converter.h"

namespace lockstep::daemon {
namespace {

/// Run file without faults, and what was built from it. `context` refers to the other members.
struct Checked {
  RunConfig config;
  std::optional<flags::Frozen> frozen;
  dist::SelfCommunicator alone;
  std::unique_ptr<TrainingContext> context;
};

/// Note for a run whose number of steps depends on the world size, which the file does not state.
std::string note_on_world(const RunConfig& config) {
  if (!config.data.batch_size_per_rank || config.run.expect_world_size) return "";
  return "  note: counted for 1 rank; with data.batch_size_per_rank, steps depend on the world "
         "size (give "
         "run.expect_world_size)\n";
}

/// Builds everything that a run builds before its first step, in a world of one rank.
std::unique_ptr<Checked> check_all(const std::string& config_file,
                                   const std::vector<Override>& overrides) {
  auto checked = std::make_unique<Checked>();
  Diagnostics faults;
  checked->config = load_run_config(config_file, overrides, &faults);
  faults.throw_if_any("config");
  checked->frozen.emplace(checked->config.flag_texts);
  take_expected_world(&checked->config);
  const FoundData found = find_data(checked->config.data, checked->alone);
  checked->context = std::make_unique<TrainingContext>(checked->config, checked->alone,
                                                       checked->alone, checked->alone, found);
  // Builds the callbacks of both modes only to find their faults; they are dropped again.
  for (const coord::Mode mode : {coord::Mode::kTrain, coord::Mode::kEval})
    (void)callback_hook(mode, *checked->context);
  return checked;
}

/// Compiles a recipe without a run file: the data are unknown, so the user states the epoch's
/// length.
recal::Timeline timeline_of_bare_recipe(const PlanOptions& options) {
  if (!options.steps_per_epoch)
    throw Error(ExitCode::kUsage, "plan",
                options.file + " is a bare recipe: give --steps-per-epoch N");
  if (*options.steps_per_epoch < 1 ||
      *options.steps_per_epoch > recal::StepConverter::kMaxStepsPerEpoch)
    throw Error(ExitCode::kUsage, "plan",
                fmt::format("--steps-per-epoch is {}, it must be 1 to {}", *options.steps_per_epoch,
                            recal::StepConverter::kMaxStepsPerEpoch));
  Diagnostics faults;
  const recal::Recipe recipe = recal::load_recipe(options.file, &faults, options.stage);
  faults.throw_if_any("recipe");
  const recal::Timeline timeline =
      recal::Timeline::compile(recipe,
                               {.steps_per_epoch = *options.steps_per_epoch,
                                // A learning rate that the recipe does not set is that of a default
                                // optimizer.
                                .base_learning_rate = optim::OptimizerOptions().learning_rate},
                               &faults);
  faults.throw_if_any("recipe");
  return timeline;
}

}  // namespace

CommandResult check_command(const std::string& config_file,
                            const std::vector<Override>& overrides) {
  const std::unique_ptr<Checked> checked = check_all(config_file, overrides);
  // A preset may ask for exports that this network has no form for: drop them as the run does.
  leave_out_exports(*checked->context->model, &checked->config.publish, &checked->config.notes);
  dry_run(*checked->context);
  const TrainingContext& context = *checked->context;
  std::string text = fmt::format(
      "{}: ok\n  run {} in {}: {} on {} training samples, {} steps an epoch, {} steps in all\n",
      config_file, checked->config.run.name, checked->config.run.project_dir,
      checked->config.model.type, context.train_data->num_samples(), context.clock.steps_per_epoch,
      context.total_steps());
  for (const std::string& warning : checked->config.warnings)
    text += "  warning: " + warning + "\n";
  for (const std::string& note : checked->config.notes) text += "  note: " + note + "\n";
  for (const std::string& warning : context.recipe.timeline().warnings())
    text += "  warning: " + warning + "\n";
  for (const std::string& note : context.recipe.timeline().notes())
    text += "  note: " + note + "\n";
  text += note_on_world(checked->config);
  return {text, 0};
}

void check_before_queue(const std::string& config_file, const std::vector<Override>& overrides) {
  (void)check_all(config_file, overrides);
}

CommandResult plan_command(const PlanOptions& options) {
  std::unique_ptr<Checked> checked;
  // A recipe alone has no data and no network; a run file has both.
  const bool bare = recal::is_recipe(options.file);
  if (bare && !options.overrides.empty())
    throw Error(ExitCode::kUsage, "plan",
                options.file + " is a bare recipe: it has no keys for --set");
  if (!bare && options.steps_per_epoch)
    throw Error(ExitCode::kUsage, "plan",
                options.file +
                    " is a run file: its data give the steps of an epoch; leave "
                    "--steps-per-epoch out");
  if (!bare && !options.stage.empty())
    throw Error(ExitCode::kUsage, "plan",
                options.file + " is a run file: it names a stage itself (recipe_stage)");
  if (!bare) checked = check_all(options.file, options.overrides);
  const recal::Timeline timeline =
      bare ? timeline_of_bare_recipe(options) : checked->context->recipe.timeline();
  if (!options.svg_file.empty())
    files::write_atomically(
        options.svg_file,
        recal::plan_svg(timeline, bare ? options.file : checked->config.run.name));
  if (!options.csv_file.empty())
    files::write_atomically(options.csv_file, recal::plan_csv(timeline));
  if (!options.json_file.empty())
    files::write_atomically(options.json_file, recal::plan_json(timeline));
  return {recal::plan_text(timeline) + "\n" + recal::plot_text(timeline), 0};
}

std::string run_file_reference() {
  std::string text =
      "| key | type | default | range | meaning |\n| --- | --- | --- | --- | --- |\n";
  for (const FieldDoc& field : run_file_meanings())
    text += fmt::format("| `{}` | {} | {} | {} | {} |\n", field.path, field.type,
                        field.default_text, field.range, field.help);
  return text;
}

}  // namespace lockstep::daemon
