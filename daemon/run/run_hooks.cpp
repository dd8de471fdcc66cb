#include "daemon/run/run_hooks.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <map>
#include <mutex>
#include <optional>
#include <thread>

#include <ATen/ops/ones.h>
#include <fmt/chrono.h>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/log.h"
#include "base/threads.h"
#include "base/yaml/yaml_document.h"
#include "remote/http.h"
#include "train/eval_options.h"
#include "train/profiler_hook.h"

// Hooks of a run. Reports to a TrainJob follow the protocol of Kubeflow Trainer's status server:
// JSON messages with the job's token.
namespace lockstep::daemon {
namespace {

using Clock = std::chrono::steady_clock;

/// Receiver of the reports. The token is a file that Kubernetes renews from time to time.
struct StatusServer {
  std::string url, ca_file, token_file;
};

/// Content of a report.
struct Status {
  int64_t step = 0;
  std::optional<double> left_s;
  std::map<std::string, double> values;
};

/// Formats a value. Counts keep all digits.
std::string text_of(double value) {
  constexpr double kMostExact = 1e15;
  const bool is_whole = std::abs(value) < kMostExact && value == std::floor(value);
  return is_whole ? fmt::format("{}", static_cast<int64_t>(value)) : fmt::format("{:.6g}", value);
}

std::string json_of(const Status& status, int64_t total_steps) {
  nlohmann::ordered_json told;
  if (total_steps > 0)
    told["progressPercentage"] = std::min<int64_t>(100, 100 * status.step / total_steps);
  if (status.left_s) told["estimatedRemainingSeconds"] = std::llround(*status.left_s);
  told["metrics"] = nlohmann::ordered_json::array();
  for (const auto& [name, value] : status.values)
    told["metrics"].push_back({{"name", name}, {"value", text_of(value)}});
  told["lastUpdatedTime"] = fmt::format(
      "{:%Y-%m-%dT%H:%M:%SZ}",
      fmt::gmtime(std::chrono::system_clock::to_time_t(std::chrono::system_clock::now())));
  return nlohmann::ordered_json{{"trainerStatus", told}}.dump();
}

/// Hook that stores the newest values; its thread sends them, so training never waits for the
/// network.
class JobStatusHook final : public train::Hook {
 public:
  JobStatusHook(StatusServer server, int64_t total_steps, std::chrono::milliseconds interval)
      : server_(std::move(server)), total_steps_(total_steps), interval_(interval) {
    const SignalsBlocked inherited_by_the_thread;
    thread_ = std::jthread([this](const std::stop_token& stopped) { run(stopped); });
    ::pthread_setname_np(thread_.native_handle(), "lockstep-status");
  }

  void after_step(const train::IterationEnd& end) override {
    if (end.report == nullptr) return;
    const train::StepReport& report = *end.report;
    const std::lock_guard lock(mutex_);
    if (!first_step_) {
      first_step_ = report.step;
      start_ = Clock::now();
    }
    status_.step = report.step;
    const double passed_s = std::chrono::duration<double>(Clock::now() - start_).count();
    if (report.step > *first_step_)
      status_.left_s = passed_s / static_cast<double>(report.step - *first_step_) *
                       static_cast<double>(total_steps_ - report.step);
    if (report.has_loss) status_.values["loss"] = report.loss;
    status_.values["epoch"] = report.epoch;
    status_.values["sparsity"] = report.sparsity;
    status_.values["step"] = static_cast<double>(report.step);
  }

  void after_evaluation(int64_t /*step*/, const train::EvalResult& result) override {
    const std::lock_guard lock(mutex_);
    status_.values["eval_loss"] = result.loss;
    if (result.accuracy) status_.values["eval_accuracy"] = *result.accuracy;
  }

  /// Sends the last report, which says how the training ended.
  void end() override {
    thread_.request_stop();
    thread_.join();
    report();
  }

 private:
  void run(const std::stop_token& stopped) {
    while (!stops_within(interval_, stopped)) {
      std::unique_lock lock(mutex_);
      const bool has_step = first_step_.has_value();
      lock.unlock();
      if (has_step) report();
    }
  }

  void report() {
    try {
      std::unique_lock lock(mutex_);
      const std::string body = json_of(status_, total_steps_);
      // Unlock before the request, which may take seconds.
      lock.unlock();
      // Read each time, since Kubernetes renews the file.
      std::string token = YamlDocument::read_text(server_.token_file);
      token.resize(token.find_last_not_of(" \r\n") + 1);
      remote::send_message(
          {.url = server_.url,
           .headers = {"Content-Type: application/json", "Authorization: Bearer " + token},
           .body = body,
           .ca_file = server_.ca_file});
    } catch (const Error& fault) {
      if (!std::exchange(has_warned_, true))
        log::warning("metrics",
                     fmt::format("the progress is not reported to the TrainJob: {}", fault.what()));
    }
  }

  const StatusServer server_;
  const int64_t total_steps_;
  const std::chrono::milliseconds interval_;
  std::mutex mutex_;
  Status status_;                      // guarded by mutex_, as the next two
  std::optional<int64_t> first_step_;  // of this process
  Clock::time_point start_;            // time at the end of first_step_
  bool has_warned_ = false;            // used by the thread, and by end() after it
  std::jthread thread_;                // declared last: joined first
};

}  // namespace

std::unique_ptr<train::Hook> job_status_hook(
    int64_t total_steps, const std::function<const char*(const char*)>& variable,
    std::chrono::milliseconds interval) {
  const char* url = variable("KUBEFLOW_TRAINER_SERVER_URL");
  const char* ca_file = variable("KUBEFLOW_TRAINER_SERVER_CA_CERT");
  const char* token_file = variable("KUBEFLOW_TRAINER_SERVER_TOKEN");
  if (url == nullptr || ca_file == nullptr || token_file == nullptr) {
    if (url != nullptr || ca_file != nullptr || token_file != nullptr)
      log::warning("metrics",
                   "the progress is not reported to the TrainJob: KUBEFLOW_TRAINER_SERVER_URL, "
                   "_CA_CERT and _TOKEN are not all set; set all three");
    return nullptr;
  }
  return std::make_unique<JobStatusHook>(StatusServer{url, ca_file, token_file}, total_steps,
                                         interval);
}

// Order of the hooks: recorder, estimator's, callbacks, profiler, reports. The recorder is added
// last but placed first, since it is created after the others.

/// Returns the facts that every hook gets.
static train::HookContext context_of(const TrainingContext& context, Telemetry& telemetry,
                                     const dist::ProcessInfo& process) {
  return {.rank = process.rank,
          .world_size = process.world_size,
          .project_dir = context.config.run.project().folder(),
          .total_steps = context.total_steps(),
          .steps_per_epoch = context.clock.steps_per_epoch,
          .model = *context.model,
          .metrics = &telemetry.metrics()};
}

/// Returns the names in kpi.json and in an evaluation's result that are not KPIs. Callbacks must
/// not use them.
static std::vector<std::string> figures_of_evaluations(const TrainingContext& context) {
  std::vector<std::string> names = {"global_step", "num_samples", "accuracy", "loss"};
  if (!context.eval_data) return names;
  for (const train::EvalMetric& metric : train::make_eval_metrics(
           context.config.eval, context.eval_data->spec(), !context.loss.is_own()))
    for (const train::EvalValue& value : metric.values(at::ones({metric.num_sums}, at::kDouble)))
      names.push_back(value.name);
  return names;
}

std::unique_ptr<train::Hook> callback_hook(
    coord::Mode mode, const TrainingContext& context,
    const std::function<void(const std::string& name, double value)>& show_kpi) {
  const bool is_training = mode == coord::Mode::kTrain;
  return train::make_callback_hook(
      context.config.callbacks,
      {.mode = mode,
       .rank = context.control.rank(),
       .world_size = context.control.world_size(),
       .log_dir = context.config.run.project().callbacks(coord::mode_name(mode)),
       .has_outputs = !is_training || !context.loss.is_own(),
       .own_figures = is_training ? std::vector<std::string>() : figures_of_evaluations(context),
       .class_names = context.spec.class_names,
       .num_classes =
           context.spec.target_kind == data::TargetKind::kClass ? context.spec.num_classes : 0},
      context.control, show_kpi);
}

RunHooks::RunHooks(const TrainingContext& context, Telemetry& telemetry,
                   const dist::ProcessInfo& process)
    : context_(context),
      training_(context_of(context, telemetry, process)),
      evaluation_(context_of(context, telemetry, process)) {
  for (const train::MakeHook& make : context.config.hooks) add(make(), &training_);
  for (const coord::Mode mode : {coord::Mode::kTrain, coord::Mode::kEval})
    add(callback_hook(mode, context,
                      [this, mode](const std::string& name, double value) {
                        recorder_->kpi(mode, name, value);
                      }),
        mode == coord::Mode::kTrain ? &training_ : &evaluation_);
  if (context.config.profile)
    add(std::make_unique<train::ProfilerHook>(*context.config.profile, context.control,
                                              process.node, context.flat_params.device()),
        &training_);
  if (process.rank == 0) add(job_status_hook(context.total_steps(), std::getenv), &training_);
}

void RunHooks::add(std::unique_ptr<train::Hook> hook, train::Hooks* hooks) {
  if (hook == nullptr) return;
  hooks->add(*hook);
  owned_.push_back(std::move(hook));
}

void RunHooks::set_recorder(train::Recorder& recorder) {
  recorder_ = &recorder;
  training_.add_first(recorder);
  evaluation_.add_first(recorder);
  training_.set_summaries(summaries_of(coord::Mode::kTrain));
  evaluation_.set_summaries(summaries_of(coord::Mode::kEval));
}

/// Returns the options of the summary writer. In evaluations, ranks have different numbers of
/// batches, so a collective mean is not possible.
summary::DefaultWriterOptions RunHooks::summaries_of(coord::Mode mode) {
  summary::DefaultWriterOptions made{
      .policy = {.every_n_steps = context_.config.summary.every_n_steps()},
      .world_size = context_.control.world_size()};
  if (recorder_->summaries() != nullptr) made.file = &recorder_->summaries()->writer(mode);
  if (mode == coord::Mode::kTrain)
    made.mean_over_ranks = [&control = context_.control](double value) {
      train::services_over(control).sum_over_ranks({&value, 1});
      return value / control.world_size();
    };
  return made;
}

}  // namespace lockstep::daemon
