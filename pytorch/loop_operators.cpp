// Operators of lockstep.DataParallel. Python names a loop by a number, since an operator's
// arguments and results are numbers, texts and tensors. python/lockstep/data_parallel.py calls
// them.
#include <chrono>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include <torch/library.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include "base/error.h"
#include "base/log.h"
#include "base/tensors/state_list.h"
#include "data/sampler.h"
#include "dist/communicator.h"
#include "dist/cpu/make_communicator.h"
#include "model/networks/user_network.h"
#include "optim/optimizer_options.h"
#include "pytorch/gloo_ranks.h"
#include "pytorch/loop_checkpoints.h"
#include "pytorch/loop_metrics.h"
#include "pytorch/training_loop.h"

namespace lockstep::pytorch {
namespace {

using GroupPtr = c10::intrusive_ptr<c10d::ProcessGroup>;
using Texts = std::vector<std::string>;

/// The ranks of a loop, and the loop once its module is known.
struct Entry {
  std::unique_ptr<dist::Communicator> comm;  ///< null after attach()
  std::unique_ptr<TrainingLoop> loop;        ///< null before attach()
  std::unique_ptr<LoopMetrics> metrics;      ///< null without pages
  std::unique_ptr<LoopCheckpoints> checkpoints;
};

/// Loops of this process by number. Thread-safe.
class Loops {
 public:
  int64_t add(std::unique_ptr<dist::Communicator> comm) {
    const std::lock_guard lock(mutex_);
    entries_[++last_] = std::make_shared<Entry>(Entry{std::move(comm), nullptr, nullptr, nullptr});
    return last_;
  }
  std::shared_ptr<Entry> entry(int64_t number) {
    const std::lock_guard lock(mutex_);
    const auto found = entries_.find(number);
    if (found == entries_.end())
      throw Error(ExitCode::kUsage, "pytorch", "this lockstep.DataParallel was closed");
    return found->second;
  }
  void remove(int64_t number) {
    std::shared_ptr<Entry> removed;  // destroyed after the lock
    const std::lock_guard lock(mutex_);
    const auto found = entries_.find(number);
    if (found == entries_.end()) return;
    removed = std::move(found->second);
    entries_.erase(found);
    const auto kept = quantizers_.find(number);
    if (kept != quantizers_.end()) kept->second->stop_observing();
  }

  /// Keeps the quantizer of a loop, also after remove(): the layers of its module use it.
  void keep(int64_t number, std::shared_ptr<recal::FakeQuantizer> quantizer) {
    const std::lock_guard lock(mutex_);
    quantizers_[number] = std::move(quantizer);
  }
  std::shared_ptr<recal::FakeQuantizer> quantizer(int64_t number) {
    const std::lock_guard lock(mutex_);
    return quantizers_.at(number);
  }

 private:
  std::mutex mutex_;
  std::map<int64_t, std::shared_ptr<Entry>> entries_;
  std::map<int64_t, std::shared_ptr<recal::FakeQuantizer>> quantizers_;
  int64_t last_ = 0;
};

Loops& loops() {
  static Loops& all = *new Loops;  // never destroyed: LibTorch may end before it
  return all;
}

TrainingLoop& loop_of(const Entry& entry) {
  check(entry.loop != nullptr, "a loop without a module");
  return *entry.loop;
}
TrainingLoop& loop_of(int64_t number) { return loop_of(*loops().entry(number)); }

/// Begins a phase of the step, for the pages.
void enter(const Entry& entry, LoopMetrics::Phase phase) {
  if (entry.metrics != nullptr) entry.metrics->enter(phase);
}

/// Returns the number of a new loop over the ranks of the backend gloo of `gloo`. Collective.
int64_t connect(const GroupPtr& gloo, at::IntArrayRef world_ranks_N, double timeout_s) {
  auto inner = gloo->getBackend(at::kCPU);
  const int rank = inner->getRank(), world_size = inner->getSize();
  log::configure({.rank = rank, .world_size = world_size});
  if (world_size == 1) return loops().add(std::make_unique<dist::SelfCommunicator>());
  return loops().add(dist::cpu::make_communicator(
      std::make_unique<GlooRanks>(std::move(inner), world_ranks_N.vec()),
      {.timeout_s = timeout_s}));
}

/// Returns the number of a new loop of this process alone.
int64_t alone() { return loops().add(std::make_unique<dist::SelfCommunicator>()); }

/// Returns the rule of a type of update (docs/optimizers.md); nullopt for an empty name. numbers:
/// momentum, nesterov (0 or 1), beta1, beta2, epsilon, decoupled (0 or 1).
std::optional<optim::OptimizerOptions> rule_of(std::string_view type,
                                               at::ArrayRef<double> numbers) {
  if (type.empty()) return std::nullopt;
  check(numbers.size() == 6, "a rule has six numbers");
  optim::OptimizerOptions rule = optim::default_options(std::string(type));
  rule.type = std::string(type);
  rule.momentum = numbers[0];
  rule.nesterov = numbers[1] != 0;
  rule.adam_beta1 = numbers[2];
  rule.adam_beta2 = numbers[3];
  rule.opt_epsilon = numbers[4];
  rule.decoupled = numbers[5] != 0;
  return rule;
}

/// Gives a new loop its module, optimizer and recipe. Collective. classes_P: class of the layer of
/// each parameter. weights_L: weight of each layer that can be quantized, as an index. rule: empty,
/// or a type of update that the loop makes; division: of its state and weights, 0 none, 1 shards of
/// the state, 2 one copy of the weights.
void attach(int64_t number, at::TensorList params_P, const Texts& names_P, const Texts& classes_P,
            const Texts& frozen, const Texts& layers_L, at::IntArrayRef weights_L,
            bool has_batch_norm, std::string_view recipe, int64_t steps_per_epoch,
            double learning_rate, std::string_view optimizer, bool keeps_zeros,
            int64_t bucket_bytes, double timeout_s, std::string_view rule,
            at::ArrayRef<double> rule_numbers, int64_t division) {
  const std::shared_ptr<Entry> entry = loops().entry(number);
  check(entry->comm != nullptr, "a loop has one module");
  check(params_P.size() == names_P.size() && params_P.size() == classes_P.size(),
        "each parameter has a name and a class");
  LoopOptions options{.frozen_params = frozen,
                      .recipe = std::string(recipe),
                      .steps_per_epoch = steps_per_epoch,
                      .learning_rate = learning_rate,
                      .optimizer_type = std::string(optimizer),
                      .updates_keep_zeros = keeps_zeros};
  check(layers_L.size() == weights_L.size(), "each layer has a weight");
  for (size_t i = 0; i < layers_L.size(); ++i)
    options.layers.push_back(
        {.name = layers_L[i], .weight_param = weights_L[i], .has_batch_norm = has_batch_norm});
  options.rule = rule_of(rule, rule_numbers);
  options.share_weights = division == 2;
  options.sync.shard_optimizer = division == 1;
  options.sync.bucket_bytes = bucket_bytes;
  options.sync.timeout_s = timeout_s;
  for (size_t i = 0; i < params_P.size(); ++i) {
    const model::ParamUse use = model::use_of(names_P[i], params_P[i].dim(), classes_P[i]);
    options.params.push_back({.name = names_P[i],
                              .tensor = params_P[i],
                              .prunable = use.prunable,
                              .decayed = use.decayed});
  }
  entry->loop = std::make_unique<TrainingLoop>(std::move(entry->comm), std::move(options));
  entry->checkpoints = std::make_unique<LoopCheckpoints>(*entry->loop);
  if (const auto& quantizer = entry->loop->recipe().quantizer()) loops().keep(number, quantizer);
}

std::tuple<std::vector<int64_t>, std::vector<int64_t>> lists_of(StateChanges changes) {
  return {std::move(changes.pruned), std::move(changes.reset)};
}

std::tuple<std::vector<int64_t>, std::vector<int64_t>> begin_step(int64_t number, bool syncs) {
  const std::shared_ptr<Entry> entry = loops().entry(number);
  enter(*entry, &metrics::PhaseSeconds::modifier);
  StateChanges changes = loop_of(*entry).begin_step(syncs);
  enter(*entry, &metrics::PhaseSeconds::backward);
  return lists_of(std::move(changes));
}

/// Returns learning rate and weight decay of each parameter group, NaN for those that the recipe
/// does not set; nothing if it sets none.
std::vector<double> begin_update(int64_t number) {
  const std::shared_ptr<Entry> entry = loops().entry(number);
  enter(*entry, &metrics::PhaseSeconds::optimizer);
  const RecipeRates rates = loop_of(*entry).begin_update();
  if (rates.set_nothing()) return {};
  std::vector<double> numbers;
  for (const auto* const kind : {&rates.learning_rates, &rates.weight_decays})
    for (const std::optional<double>& rate : *kind)
      numbers.push_back(rate.value_or(std::numeric_limits<double>::quiet_NaN()));
  return numbers;
}

optim::StepRates by_group(at::ArrayRef<double> rates) {
  check(rates.size() == size_t{2} * kNumParamGroups, "a rate and a decay for each group");
  optim::StepRates sorted;
  for (size_t group = 0; group < sorted.size(); ++group)
    sorted[group] = {.learning_rate = rates[group], .weight_decay = rates[kNumParamGroups + group]};
  return sorted;
}

/// Makes the update by the loop's rule. rates: learning rate and weight decay of each parameter
/// group, in the order of begin_update().
void update(int64_t number, at::ArrayRef<double> rates) { loop_of(number).update(by_group(rates)); }

/// Serves the pages of a rank; returns their address. facts: name of the run, class of the module,
/// releases of Lockstep and torch. Collective.
std::string serve(int64_t number, std::string_view listen, std::string_view token_file,
                  const Texts& facts, int64_t num_parameters, int64_t steps_per_epoch) {
  check(facts.size() == 4, "four facts");
  const std::shared_ptr<Entry> entry = loops().entry(number);
  entry->metrics = std::make_unique<LoopMetrics>(loop_of(*entry),
                                                 PageOptions{.listen = std::string(listen),
                                                             .token_file = std::string(token_file),
                                                             .run_name = facts[0],
                                                             .model = facts[1],
                                                             .version = facts[2],
                                                             .torch_version = facts[3],
                                                             .num_parameters = num_parameters,
                                                             .steps_per_epoch = steps_per_epoch});
  entry->checkpoints->set_on_saved(
      [pages = entry->metrics.get()](const auto& save) { pages->record_save(save); });
  return entry->metrics->origin();
}

/// Records the update that has ended on the pages. rates: as in update().
void record(int64_t number, int64_t num_samples, at::ArrayRef<double> rates) {
  loops().entry(number)->metrics->record(num_samples, by_group(rates));
}

/// Returns the slots of a parameter in its shape; none if the user's optimizer has them, or other
/// ranks a part of them.
std::vector<at::Tensor> slots(int64_t number, int64_t param) {
  return loop_of(number).slots_of(param);
}

/// Returns the number of updates done.
int64_t end_update(int64_t number) {
  TrainingLoop& loop = loop_of(number);
  loop.end_update();
  return loop.step();
}

std::tuple<std::vector<int64_t>, std::vector<int64_t>> finalize(int64_t number) {
  const std::shared_ptr<Entry> entry = loops().entry(number);
  StateChanges changes = loop_of(*entry).finalize();
  if (entry->metrics != nullptr) entry->metrics->finish();
  return lists_of(std::move(changes));
}

void broadcast(int64_t number, at::TensorList tensors) { loop_of(number).broadcast(tensors); }

void zero_pruned(int64_t number, int64_t param, at::TensorList tensors) {
  for (const at::Tensor& tensor : tensors) loop_of(number).zero_pruned(param, tensor);
}

/// Returns the number of backward passes.
int64_t passes(int64_t number) { return loop_of(number).num_passes(); }

/// Returns the parameter group of each parameter (base/tensors/param_info.h).
std::vector<int64_t> groups(int64_t number) { return loop_of(number).groups_P(); }

/// Returns the input or weight of a layer as its forward pass must use it. Observes inputs if
/// gradients are recorded and the loop is not closed. layer: index in LoopOptions::layers.
at::Tensor quantize(int64_t number, int64_t layer, bool is_weight, const at::Tensor& values) {
  const auto quantizer = loops().quantizer(number);
  return is_weight ? quantizer->weight(layer, values) : quantizer->input(layer, values);
}

/// Returns the output of a linear layer. param: index of its weight.
at::Tensor linear(int64_t number, int64_t param, const at::Tensor& inputs, const at::Tensor& weight,
                  const std::optional<at::Tensor>& bias) {
  return loop_of(number).linear(param, inputs, weight, bias.value_or(at::Tensor()));
}

/// Returns facts for the user: step, sparsity, bytes that the last average sent and saved. Then
/// flags: the recipe quantizes; batch normalisation is frozen.
std::vector<double> facts(int64_t number) {
  const TrainingLoop& loop = loop_of(number);
  return {static_cast<double>(loop.step()),
          loop.recipe().sparsity(),
          static_cast<double>(loop.totals().bytes_reduced),
          static_cast<double>(loop.totals().bytes_saved),
          loop.recipe().quantizer() ? 1.0 : 0.0,
          loop.freezes_batch_norm() ? 1.0 : 0.0};
}

/// Returns every rank's text, by rank. Collective.
Texts gather_texts(int64_t number, std::string_view text) {
  return dist::gather_texts(loop_of(number).control(), text);
}

LoopCheckpoints& checkpoints_of(int64_t number) {
  LoopCheckpoints* const checkpoints = loops().entry(number)->checkpoints.get();
  check(checkpoints != nullptr, "a loop without a module");
  return *checkpoints;
}

/// Lists tensors and texts under their keys. The list refers to the texts.
StateList entries_of(const Texts& keys, at::TensorList tensors, const Texts& text_keys,
                     Texts* texts) {
  check(keys.size() == tensors.size() && text_keys.size() == texts->size(), "each key has a value");
  StateList entries;
  for (size_t i = 0; i < keys.size(); ++i)
    entries.push_back({.key = keys[i], .tensor = tensors[i].detach()});
  for (size_t i = 0; i < text_keys.size(); ++i)
    entries.push_back({.key = text_keys[i], .text = &(*texts)[i]});
  return entries;
}

/// num_steady: the first tensors change only in the optimizer's update.
void save(int64_t number, std::string_view folder, int64_t keep, const Texts& keys,
          at::TensorList tensors, int64_t num_steady, const Texts& text_keys, Texts texts) {
  StateList entries = entries_of(keys, tensors, text_keys, &texts);
  for (int64_t i = 0; i < num_steady; ++i) entries.at(static_cast<size_t>(i)).steady = true;
  checkpoints_of(number).begin(std::string(folder), keep, std::move(entries));
}

/// Waits for the save in progress. Returns its prefix; if it failed, the error and its exit code.
std::tuple<std::string, std::string, int64_t> saved(int64_t number) {
  const checkpoint::SaveResult result = checkpoints_of(number).wait();
  return {result.prefix, result.error, static_cast<int64_t>(result.code)};
}

/// Restores into these tensors. num_required: the first tensors must be in the checkpoint; others
/// become 0 if they are not. Returns the prefix of the checkpoint, empty for a folder without any,
/// and the texts.
std::tuple<std::string, Texts> restore(int64_t number, std::string_view from, const Texts& keys,
                                       at::TensorList tensors, int64_t num_required,
                                       const Texts& text_keys, bool accepts_changes) {
  Texts texts(text_keys.size());
  StateList entries = entries_of(keys, tensors, text_keys, &texts);
  for (size_t i = 0; i < entries.size(); ++i)
    if (i >= static_cast<size_t>(num_required)) entries[i].value_if_missing = 0;
  const auto begin = std::chrono::steady_clock::now();
  const auto report =
      checkpoints_of(number).restore(std::string(from), std::move(entries), accepts_changes);
  const std::chrono::duration<double> duration = std::chrono::steady_clock::now() - begin;
  const std::shared_ptr<Entry> entry = loops().entry(number);
  if (report && entry->metrics != nullptr)
    entry->metrics->record_restore({.step = entry->loop->step(),
                                    .duration_s = duration.count(),
                                    .num_damaged_saves = report->num_damaged});
  return {report ? report->prefix : std::string(), std::move(texts)};
}

/// Returns the order of the samples in an epoch: that of a run with this seed.
std::vector<int64_t> order(int64_t num_samples, int64_t seed, int64_t epoch, bool shuffles) {
  data::Sampler sampler({.num_samples = num_samples,
                         .global_batch_size = num_samples,
                         .seed = seed,
                         .shuffle = shuffles});
  sampler.set_position({.epoch = epoch, .num_taken = 0});
  return sampler.next().indices;
}

void close(int64_t number) { loops().remove(number); }

/// Text and exit code of the last error of a loop; "" and 0 if there was none.
std::tuple<std::string, int64_t> error() {
  LoopError last = last_loop_error();
  return {std::move(last.text), static_cast<int64_t>(last.code)};
}

/// Function whose errors are kept for error().
template <auto kFunction>
struct Guarded;
template <typename Result, typename... Args, Result (*kFunction)(Args...)>
struct Guarded<kFunction> {
  static Result call(Args... args) {
    try {
      return kFunction(std::forward<Args>(args)...);
    } catch (...) {
      rethrow_for_pytorch();
    }
  }
};

}  // namespace
}  // namespace lockstep::pytorch

TORCH_LIBRARY_FRAGMENT(lockstep, library) {
  namespace here = lockstep::pytorch;
  library.def(
      "loop_connect(__torch__.torch.classes.c10d.ProcessGroup gloo, int[] world_ranks, float "
      "timeout_s) -> int",
      TORCH_FN(here::Guarded<here::connect>::call));
  library.def("loop_alone() -> int", TORCH_FN(here::alone));
  library.def(
      "loop_attach(int loop, Tensor[] params, str[] names, str[] classes, str[] frozen, str[] "
      "layers, int[] layer_weights, bool has_batch_norm, str recipe, int steps_per_epoch, float "
      "learning_rate, str optimizer, bool keeps_zeros, int bucket_bytes, float timeout_s, str "
      "rule, float[] rule_numbers, int division) -> ()",
      TORCH_FN(here::Guarded<here::attach>::call));
  library.def("loop_quantize(int loop, int layer, bool is_weight, Tensor values) -> Tensor",
              TORCH_FN(here::Guarded<here::quantize>::call));
  library.def(
      "loop_linear(int loop, int param, Tensor inputs, Tensor weight, Tensor? bias) -> Tensor",
      TORCH_FN(here::Guarded<here::linear>::call));
  library.def("loop_update(int loop, float[] rates) -> ()",
              TORCH_FN(here::Guarded<here::update>::call));
  library.def(
      "loop_serve(int loop, str listen, str token_file, str[] facts, int num_parameters, int "
      "steps_per_epoch) -> str",
      TORCH_FN(here::Guarded<here::serve>::call));
  library.def("loop_record(int loop, int samples, float[] rates) -> ()",
              TORCH_FN(here::Guarded<here::record>::call));
  library.def("loop_slots(int loop, int param) -> Tensor[]",
              TORCH_FN(here::Guarded<here::slots>::call));
  library.def("loop_begin_step(int loop, bool syncs) -> (int[], int[])",
              TORCH_FN(here::Guarded<here::begin_step>::call));
  library.def("loop_begin_update(int loop) -> float[]",
              TORCH_FN(here::Guarded<here::begin_update>::call));
  library.def("loop_end_update(int loop) -> int", TORCH_FN(here::Guarded<here::end_update>::call));
  library.def("loop_finalize(int loop) -> (int[], int[])",
              TORCH_FN(here::Guarded<here::finalize>::call));
  library.def("loop_broadcast(int loop, Tensor[] tensors) -> ()",
              TORCH_FN(here::Guarded<here::broadcast>::call));
  library.def("loop_zero_pruned(int loop, int param, Tensor[] tensors) -> ()",
              TORCH_FN(here::Guarded<here::zero_pruned>::call));
  library.def("loop_gather_texts(int loop, str text) -> str[]",
              TORCH_FN(here::Guarded<here::gather_texts>::call));
  library.def(
      "loop_save(int loop, str folder, int keep, str[] keys, Tensor[] tensors, int num_steady, "
      "str[] text_keys, str[] texts) -> ()",
      TORCH_FN(here::Guarded<here::save>::call));
  library.def("loop_saved(int loop) -> (str, str, int)",
              TORCH_FN(here::Guarded<here::saved>::call));
  library.def(
      "loop_restore(int loop, str source, str[] keys, Tensor[] tensors, int num_required, str[] "
      "text_keys, bool accepts_changes) -> (str, str[])",
      TORCH_FN(here::Guarded<here::restore>::call));
  library.def("loop_order(int num_samples, int seed, int epoch, bool shuffles) -> int[]",
              TORCH_FN(here::Guarded<here::order>::call));
  library.def("loop_groups(int loop) -> int[]", TORCH_FN(here::groups));
  library.def("loop_passes(int loop) -> int", TORCH_FN(here::passes));
  library.def("loop_facts(int loop) -> float[]", TORCH_FN(here::facts));
  library.def("loop_close(int loop) -> ()", TORCH_FN(here::close));
  library.def("loop_error() -> (str, int)", TORCH_FN(here::error));
}
