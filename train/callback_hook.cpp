// Translates hook calls to callbacks: fills the context (epoch, iteration, curve position) and the
// DataMap with only those keys that some callback reads.
#include "train/callback_hook.h"

#include <algorithm>
#include <map>
#include <span>

#include <ATen/core/Dict.h>
#include <ATen/core/ivalue.h>
#include <ATen/core/jit_type.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/scalar_tensor.h>
#include <torch/csrc/jit/serialization/pickle.h>

namespace lockstep::train {
namespace {

constexpr const char* kInputs = "inputs";
constexpr const char* kTargets = "targets";
constexpr const char* kOutputs = "logits";

std::vector<std::string> source_keys(const CallbackHookOptions& options) {
  std::vector<std::string> keys = {kInputs, kTargets, "loss", "step", "epoch"};
  if (options.has_outputs) keys.emplace_back(kOutputs);
  if (options.mode == coord::Mode::kTrain)
    keys.insert(keys.end(), {"learning_rate", "weight_decay", "sparsity", "_gradient_norm"});
  return keys;
}

coord::CallbackContext context_of(const CallbackHookOptions& options) {
  return {.mode = options.mode,
          .log_dir = options.log_dir,
          .rank = options.rank,
          .world_size = options.world_size};
}

using Kpis = std::map<std::string, double>;

/// Runs callbacks as a hook of training or of evaluations. Each iteration is a DataMap with this
/// rank's `inputs` and `targets`, `logits` (the network's outputs), and numbers: `loss`, `step`,
/// `epoch`. Training adds `learning_rate`, `weight_decay`, `sparsity`, and `_gradient_norm` if
/// known. Callbacks live as long as the hook; each evaluation calls their begin() and end().
class CallbackHook final : public Hook {
 public:
  /// `kpis`: storage for values of the callbacks' Services::set_kpi.
  CallbackHook(std::vector<coord::NamedCallback> callbacks, const CallbackHookOptions& options,
               std::shared_ptr<Kpis> kpis = std::make_shared<Kpis>())
      : options_(options),
        handler_(std::move(callbacks), source_keys(options), context_of(options)),
        keys_read_(handler_.keys_read_here()),
        kpis_(std::move(kpis)) {}

  /// True if a callback reads them: tensors are kept, and copied from a GPU, only then.
  bool reads_tensors() const override {
    return reads(kInputs) || reads(kTargets) || reads(kOutputs);
  }

  void begin(const LoopStart& start) override {
    steps_per_epoch_ = start.run.steps_per_epoch;
    num_iterations_ = start.num_iterations;
    coord::CallbackContext& context = handler_.context();
    context.number_iterations_per_epoch = start.num_iterations;
    context.summary_writer = start.summary_writer;
    if (is_evaluation()) context.log_dir = options_.log_dir / std::to_string(start.step);
    // Values of an earlier evaluation must not reach the next result.
    kpis_->clear();
    set_place(is_evaluation() ? 0 : start.step, start.step);
    handler_.begin();
  }

  void before_step(int64_t step) override {
    set_place(is_evaluation() ? iteration_ : step, step);
    handler_.on_iteration_start();
  }

  void after_step(const IterationEnd& end) override {
    handler_.context().iteration_info.execution_time = end.network_s;
    handler_.on_iteration_end(data_of(end));
    ++iteration_;
  }

  void end() override { handler_.end(); }
  void break_off() override { handler_.end(/*is_broken_off=*/true); }
  /// Adds the KPIs to the result.
  void complete(EvalResult* result) override {
    for (const auto& [name, value] : *kpis_) result->kpis[name] = value;
  }

 private:
  bool is_evaluation() const { return options_.mode == coord::Mode::kEval; }
  bool reads(const char* key) const {
    return std::binary_search(keys_read_.begin(), keys_read_.end(), key);
  }

  /// Sets the position to an iteration, after or before `step` updates.
  void set_place(int64_t iteration, int64_t step) {
    coord::CallbackContext& context = handler_.context();
    iteration_ = iteration;
    // An evaluation belongs to the epoch that it ends, training to the epoch of the iteration.
    const int64_t update = is_evaluation() ? std::max<int64_t>(step - 1, 0) : iteration;
    context.iteration_info.epoch_number = update / steps_per_epoch_;
    context.iteration_info.iteration_number = iteration;
    context.iteration_info.execution_time = 0;
    context.summary_step = is_evaluation()
                               ? coord::SummaryClock::eval_step(step, num_iterations_, iteration)
                               : coord::SummaryClock::train_step(iteration + 1);
  }

  coord::DataMap data_of(const IterationEnd& end) const {
    coord::DataMap data;
    const auto put = [&](const char* key, double value) {
      if (reads(key)) data.put(key, at::scalar_tensor(value, at::TensorOptions(at::kDouble)));
    };
    // Copies to the CPU only what some callback reads.
    if (reads(kInputs)) data.put(kInputs, end.tensors->inputs_BX().cpu());
    if (reads(kTargets)) data.put(kTargets, end.tensors->targets_BY().cpu());
    if (reads(kOutputs) && options_.has_outputs)
      data.put(kOutputs, end.tensors->outputs_BO().cpu());
    put("loss", end.loss);
    if (reads("step")) data.put("step", at::scalar_tensor(end.step, at::TensorOptions(at::kLong)));
    put("epoch", static_cast<double>(end.step) / static_cast<double>(steps_per_epoch_));
    // Values of an update; an evaluation has none.
    if (end.report == nullptr) return data;
    const StepReport& report = *end.report;
    put("learning_rate", report.rates[kWeightGroup].learning_rate);
    put("weight_decay", report.rates[kWeightGroup].weight_decay);
    put("sparsity", report.sparsity);
    if (report.gradient_norm) put("gradient_norm", *report.gradient_norm);
    return data;
  }

  const CallbackHookOptions options_;
  coord::CallbacksHandler handler_;
  const std::vector<std::string> keys_read_;
  int64_t steps_per_epoch_ = 1;
  int64_t num_iterations_ = 0;  // of the loop; as in LoopStart
  int64_t iteration_ = 0;       // the current or next one
  const std::shared_ptr<Kpis> kpis_;
};

}  // namespace

std::unique_ptr<Hook> to_hook(coord::NamedCallback callback, const CallbackHookOptions& options) {
  std::vector<coord::NamedCallback> callbacks;
  callbacks.push_back(std::move(callback));
  return std::make_unique<CallbackHook>(std::move(callbacks), options);
}

std::unique_ptr<Hook> make_callback_hook(
    const std::vector<coord::WantedCallback>& wanted, const CallbackHookOptions& options,
    dist::Communicator& control,
    const std::function<void(const std::string& name, double value)>& show_kpi) {
  const auto kpis = std::make_shared<Kpis>();
  coord::Services services = services_over(control);
  services.own_figures = options.own_figures;
  services.class_names = options.class_names;
  services.num_classes = options.num_classes;
  services.set_kpi = [kpis, show_kpi](const std::string& name, double value) {
    (*kpis)[name] = value;
    if (show_kpi) show_kpi(name, value);
  };
  std::vector<coord::NamedCallback> callbacks =
      coord::make_callbacks(wanted, options.mode, services);
  if (callbacks.empty()) return nullptr;
  return std::make_unique<CallbackHook>(std::move(callbacks), options, kpis);
}

// Maps travel between ranks as pickled dictionaries, LibTorch's format of torch.save.

static c10::IValue to_ivalue(const coord::DataMap& data);

static c10::IValue to_ivalue(const coord::DataValue& value) {
  if (const auto* tensor = std::get_if<at::Tensor>(&value)) return tensor->contiguous();
  if (const auto* texts = std::get_if<std::vector<std::string>>(&value)) return *texts;
  return to_ivalue(*std::get<std::shared_ptr<const coord::DataMap>>(value));
}

static c10::IValue to_ivalue(const coord::DataMap& data) {
  c10::impl::GenericDict dict(c10::StringType::get(), c10::AnyType::get());
  for (const auto& [key, value] : data.values()) dict.insert(key, to_ivalue(value));
  return dict;
}

static coord::DataMap to_map(const c10::IValue& dict) {
  coord::DataMap data;
  for (const auto& item : dict.toGenericDict()) {
    const std::string key = item.key().toStringRef();
    const c10::IValue& value = item.value();
    if (value.isTensor())
      data.put(key, value.toTensor());
    else if (value.isList())
      data.put(key, value.to<std::vector<std::string>>());
    else
      data.put(key, std::make_shared<const coord::DataMap>(to_map(value)));
  }
  return data;
}

/// Serialises a map in LibTorch's format, as torch.save does.
static std::string bytes_of(const coord::DataMap& data) {
  const std::vector<char> bytes = torch::jit::pickle_save(to_ivalue(data));
  return {bytes.begin(), bytes.end()};
}

coord::Services services_over(dist::Communicator& control) {
  coord::Services services;
  // In place: from_blob() shares the caller's memory.
  services.sum_over_ranks = [&control](std::span<double> numbers) {
    const at::Tensor values_K =
        at::from_blob(numbers.data(), {static_cast<int64_t>(numbers.size())}, at::kDouble);
    control.all_reduce(values_K, dist::ReduceOp::kSum)->wait();
  };
  services.gather_over_ranks = [&control](const coord::DataMap& own) {
    std::vector<coord::DataMap> all;
    for (const std::string& text : dist::gather_texts(control, bytes_of(own)))
      all.push_back(to_map(torch::jit::pickle_load({text.begin(), text.end()})));
    return all;
  };
  return services;
}

}  // namespace lockstep::train
