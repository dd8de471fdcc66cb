// Writes curves through event files, which have their own writer threads and bounded queues.
#include "train/summary_saver_hook.h"

#include <algorithm>
#include <array>

#include <fmt/format.h>

#include "base/files/project.h"
#include "base/log.h"
#include "train/recorder.h"

namespace lockstep::train {
namespace {

// Limit on the queue of the event files; later points are dropped
constexpr int64_t kPoints_bytes = 64 << 20;
constexpr int kTensorBoardPort = 6006;  ///< TensorBoard's default port

/// Returns the memory of one copy of the weights, which may wait until its histograms are computed.
int64_t histogram_bytes(const RecorderOptions& options) {
  if (options.summary.histogram_steps == 0) return 0;
  int64_t num_bytes = 0;
  for (const Param& param : *options.params)
    num_bytes += param.tensor.numel() * static_cast<int64_t>(sizeof(float));
  return num_bytes;
}

metrics::EventFileOptions event_file(const RecorderOptions& options,
                                     const std::filesystem::path& folder) {
  return {.folder = folder,
          .node = options.node,
          .resumed_step = options.resumed_from_step,
          .flush_s = options.summary.flush_s,
          .axis_units_per_step = options.summary.axis_units_per_step(options.global_batch_size),
          .capacity_bytes = kPoints_bytes + histogram_bytes(options)};
}

void tell_viewers(const RecorderOptions& options) {
  const std::string folder = options.project_dir.string();
  log::info("summary", fmt::format("for TensorBoard: tensorboard --logdir {}, then "
                                   "http://localhost:{} in a browser, or with --bind_all "
                                   "http://{}:{} from elsewhere",
                                   folder, kTensorBoardPort, options.node, kTensorBoardPort));
  const bool is_ascii =
      std::all_of(folder.begin(), folder.end(), [](unsigned char letter) { return letter < 128; });
  if (!is_ascii)
    log::warning("summary", fmt::format("{} contains non-ASCII characters, which TensorBoard may "
                                        "not support: choose another run.project_dir",
                                        folder));
}

/// Returns tags such as top_5/eval, recall/eval/3.
std::vector<std::string> tags_of(const std::vector<metrics::ValidationValue>& numbers) {
  std::vector<std::string> tags;
  for (const metrics::ValidationValue& number : numbers) {
    tags.push_back(number.name + "/eval");
    if (number.class_number) tags.back() += fmt::format("/{}", *number.class_number);
  }
  return tags;
}

}  // namespace

SummarySaverHook::SummarySaverHook(const RecorderOptions& options,
                                   const recal::ScheduledModifierManager& recipe)
    : options_(options),
      recipe_(recipe),
      train_(event_file(options, Project(options.project_dir).train())),
      eval_(event_file(options, Project(options.project_dir).eval())) {
  tell_viewers(options_);
  if (!options.run_text.empty())
    train_.add(options.resumed_from_step.value_or(0), "run/settings",
               metrics::TextSummary{options.run_text});
}

void SummarySaverHook::after_step(const IterationEnd& end) {
  if (end.report == nullptr) return;
  if (const int64_t every = options_.summary.histogram_steps; every > 0 && end.step % every == 0)
    write_histograms(end.step);
  const StepReport& report = *end.report;
  const optim::GroupRates& weights = report.rates[kWeightGroup];
  last_step_ = end.step;
  last_ = {{"lr", weights.learning_rate},
           {"weight_decay", weights.weight_decay},
           {"sparsity", report.sparsity}};
  if (report.has_loss) last_.insert(last_.begin(), {"loss/train", report.loss});
  // The first step too: short runs have a curve, and mistakes are visible early.
  if (written_step_ == 0 || end.step % options_.summary.save_summary_steps == 0) write_point();
}

void SummarySaverHook::end_training() {
  if (last_step_ > written_step_) write_point();
}

void SummarySaverHook::write_point() {
  written_step_ = last_step_;
  train_.add(last_step_, last_);
  if (!recipe_.recipe().empty()) write_recipe(last_step_, last_step_ - 1);
}

void SummarySaverHook::write_histograms(int64_t step) {
  for (const Param& param : *options_.params) {
    // A copy, since training changes the weights before the writer thread computes the histogram.
    const at::Tensor copy = param.tensor.detach().to(at::kCPU, at::kFloat, /*non_blocking=*/false,
                                                     /*copy=*/true, at::MemoryFormat::Contiguous);
    const auto histogram = [copy]() -> metrics::SummaryValue {
      return metrics::histogram_of(
          {copy.const_data_ptr<float>(), static_cast<size_t>(copy.numel())});
    };
    train_.add(step, "weights/" + slashed(param.name), histogram,
               static_cast<int64_t>(copy.nbytes()));
  }
}

/// Writes the recipe's state at `step`, under recal/.
void SummarySaverHook::write_recipe(int64_t num_updates, int64_t step) {
  std::vector<recal::Summary> all = recipe_.summaries(step);
  std::vector<metrics::Scalar> scalars;
  for (recal::Summary& one : all) {
    one.name.insert(0, "recal/");
    scalars.push_back({one.name, one.value});
  }
  train_.add(num_updates, scalars);
}

void add_evaluation(metrics::EventFile* curves, int64_t step, const EvalResult& result) {
  std::vector<metrics::Scalar> scalars{{"loss/eval", result.loss}};
  if (result.accuracy) scalars.push_back({"accuracy/eval", *result.accuracy});
  const std::vector<metrics::ValidationValue> numbers =
      numbers_of(result.metrics, kMaxShownClasses);
  const std::vector<std::string> tags = tags_of(numbers);
  for (size_t i = 0; i < numbers.size(); ++i) scalars.push_back({tags[i], numbers[i].value});
  curves->add(step, scalars);
}

void SummarySaverHook::after_evaluation(int64_t step, const EvalResult& result) {
  add_evaluation(&eval_, step, result);
}

void SummarySaverHook::closing(int64_t step) {
  end_training();  // the point before the closing actions
  // A second point at the same step: the state after the closing actions.
  const std::array<metrics::Scalar, 1> sparsity{{{"sparsity", recipe_.sparsity()}}};
  train_.add(step, sparsity);
  write_recipe(step, step);
}

void SummarySaverHook::flush() {
  train_.flush();
  eval_.flush();
}

}  // namespace lockstep::train
