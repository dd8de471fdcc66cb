#include "recal/scheduled_modifier_manager.h"

#include <algorithm>
#include <cmath>
#include <exception>
#include <limits>
#include <set>
#include <utility>

#include <ATen/core/grad_mode.h>
#include <fmt/format.h>

#include "base/log.h"
#include "base/process.h"
#include "recal/masks/mask_update.h"
#include "recal/recipe/recipe_reader.h"
#include "recal/schedule/param_selector.h"

// Manager that executes a recipe's timeline, and the properties of parameters that it needs.
namespace lockstep::recal {

// The manager compiles the recipe into a timeline (attach) and executes the timeline's actions
// (apply_due). MaskTable holds the masks, FakeQuantizer the ranges of layer inputs. Learning rates
// and trainability are not state: they are read from the timeline for each step.
//
// Invariant: all ranks apply the same actions at the same step, in the same order. Several actions
// are collective, so a rank that skips one blocks the others.
namespace {

/// Returns the properties of a model's parameters that a timeline needs, in the model's order.
std::vector<ParamInfo> param_infos(const ParamTable& params) {
  std::vector<ParamInfo> infos;
  infos.reserve(params.size());
  for (const Param& param : params) {
    ParamInfo& info = infos.emplace_back(ParamInfo{param.name, param.prunable});
    // Without a tensor the size stays unknown.
    if (!param.tensor.defined()) continue;
    info.num_weights = param.tensor.numel();
    info.sizes = param.tensor.sizes().vec();
  }
  return infos;
}

/// Parameters that some action prunes, ascending.
std::vector<int64_t> covered_params(const Timeline& timeline) {
  std::set<int64_t> covered;
  for (const Action& action : timeline.actions()) {
    if (!traits_of(action.kind).is_on_masks) continue;
    const ParamSet& set = timeline.param_sets()[static_cast<size_t>(action.param_set)];
    covered.insert(set.params.begin(), set.params.end());
  }
  return {covered.begin(), covered.end()};
}

bool quantizes(const Timeline& timeline) {
  return std::any_of(
      timeline.actions().begin(), timeline.actions().end(),
      [](const Action& action) { return traits_of(action.kind).is_on_quantization; });
}

/// Largest finite value of a float type.
double largest_value(at::ScalarType type) {
  if (type == at::kHalf) return static_cast<double>(std::numeric_limits<at::Half>::max());
  if (type == at::kBFloat16) return static_cast<double>(std::numeric_limits<at::BFloat16>::max());
  return type == at::kFloat ? std::numeric_limits<float>::max()
                            : std::numeric_limits<double>::max();
}

double in_gib(int64_t num_bytes) { return static_cast<double>(num_bytes) / (int64_t{1} << 30); }

void sort_unique(std::vector<int64_t>* values) {
  std::sort(values->begin(), values->end());
  values->erase(std::unique(values->begin(), values->end()), values->end());
}

void append(std::vector<int64_t>* all, const std::vector<int64_t>& more) {
  all->insert(all->end(), more.begin(), more.end());
}

/// Warns of layers without any remaining weight. One threshold for several parameters may prune a
/// small one completely, and pruned weights never return.
void warn_of_empty_layers(double sparsity, const std::vector<int64_t>& changed,
                          const MaskTable& masks) {
  for (const int64_t param : changed) {
    const Mask& mask = masks.of(param);
    if (mask.num_pruned < mask.weight.numel()) continue;
    log::warning(
        "recipe",
        fmt::format("all {} weights of '{}' are pruned, where sparsity {} was requested: the layer "
                    "outputs only zeros. Prune it with a separate modifier, or more slowly",
                    mask.num_pruned, mask.name, sparsity));
  }
}

}  // namespace

ScheduledModifierManager ScheduledModifierManager::from_yaml(const std::string& path) {
  Diagnostics faults;
  Recipe recipe = load_recipe(path, &faults);
  faults.throw_if_any("recal");
  return ScheduledModifierManager(std::move(recipe));
}

ScheduledModifierManager::~ScheduledModifierManager() {
  // total_steps is a count: the last step has index total_steps - 1.
  const bool reached_end = timeline_ && timeline_->total_steps() && !is_closed_ &&
                           last_step_ + 1 >= *timeline_->total_steps() && last_step_ >= 0;
  if (stage_ == Stage::kRunning && reached_end && std::uncaught_exceptions() == 0)
    log::warning(
        "recal",
        "training reached the end of the recipe, but finalize() (of lockstep.DataParallel: "
        "finish()) was not called: a closing sparsity may be missing");
}

void ScheduledModifierManager::require_stage(bool holds, std::string_view call,
                                             std::string_view instead) const {
  if (!holds) throw StateError(fmt::format("{}() {}", call, instead));
}

void ScheduledModifierManager::attach(const ParamTable& params, const AttachOptions& options,
                                      Diagnostics* faults) {
  require_stage(stage_ == Stage::kBuilt, "attach",
                stage_ == Stage::kAttached ? "was called before: one manager, one model"
                                           : "comes before the run: it has started");
  if (params.empty()) throw StateError("attach() needs a model with parameters; this one has none");
  timeline_ = Timeline::compile(recipe_,
                                {.steps_per_epoch = options.steps_per_epoch,
                                 .base_learning_rate = options.base_learning_rate,
                                 .params = param_infos(params),
                                 .max_steps = options.max_steps,
                                 .frozen_at_start = options.frozen_at_start,
                                 .frozen_in_constructor = options.frozen_in_constructor,
                                 .layers = options.layers,
                                 .optimizer_type = options.optimizer_type,
                                 .learning_rate_decay_type = options.learning_rate_decay_type,
                                 .teacher = options.teacher},
                                faults);
  params_ = params;
  // Masks are only created for a recipe without faults: a caller must not use the manager
  // otherwise.
  if (faults->empty()) check_mask_kinds(faults);
  if (faults->empty()) check_values(faults);
  if (faults->empty())
    check_statistics(std::max<int64_t>(options.world_size, options.planned_world_size), faults);
  if (faults->empty()) {
    masks_ = MaskTable(params, covered_params(*timeline_));
    scores_ = GradientScores(params, *timeline_, options.rank, options.world_size);
  }
  updates_keep_zeros_ = options.updates_keep_zeros;
  if (quantizes(*timeline_)) quantizer_ = std::make_shared<FakeQuantizer>(options.layers);
  for (const Param& param : params)
    if (param.prunable) num_prunable_weights_ += param.tensor.numel();
  stage_ = Stage::kAttached;
}

void ScheduledModifierManager::check_mask_kinds(Diagnostics* faults) const {
  std::set<int> checked;  // all updates of a modifier use one parameter set
  for (const Action& action : timeline_->actions()) {
    if (action.kind != ActionKind::kPrune || !checked.insert(action.modifier).second) continue;
    const ParamSet& set = timeline_->param_sets()[static_cast<size_t>(action.param_set)];
    for (const int64_t index : set.params) {
      const Param& param = params_[static_cast<size_t>(index)];
      try {
        check_mask_kind(set.mask_rule.kind, param.name, param.tensor.sizes());
      } catch (const Error& fault) {
        // Adds file and line of the modifier in place of the prefix "[recal] ".
        const std::string_view text = fault.what();  // "[recal] ..."
        faults->add(recipe_.modifiers()[static_cast<size_t>(action.modifier)]->location().fault(
            std::string(text.substr(text.find(' ') + 1))));
      }
    }
  }
}

/// Refuses second-order pruning that its layers or the memory of this host do not allow.
void ScheduledModifierManager::check_statistics(int64_t world_size, Diagnostics* faults) const {
  std::set<int> checked;
  int64_t num_bytes = 0;
  for (const Action& action : timeline_->actions()) {
    if (action.kind != ActionKind::kPrune || !checked.insert(action.param_set).second) continue;
    const ParamSet& set = timeline_->param_sets()[static_cast<size_t>(action.param_set)];
    if (set.score.kind != PruneScore::kFisher) continue;
    const SourceLocation& place =
        recipe_.modifiers()[static_cast<size_t>(action.modifier)]->location();
    for (const int64_t index : set.params) {
      const Param& param = params_[static_cast<size_t>(index)];
      const auto sizes = param.tensor.sizes();
      num_bytes += set.score.fisher.memory_bytes(param.tensor.numel());
      // Blocks of a mask must be neighbours in memory, within one block of the Fisher matrix.
      const bool are_neighbours = param.tensor.numel() == sizes[0] * sizes[1];
      if (set.mask_rule.kind.pattern == MaskPattern::kBlock &&
          (!are_neighbours || sizes[1] % set.mask_rule.kind.m != 0))
        faults->add(place.fault(fmt::format(
            "{} [{}] cannot be pruned by Fisher blocks with mask_type {}: that needs a linear "
            "layer "
            "or 1x1 convolution whose inputs are a multiple of {}; use mask_type unstructured",
            param.name, fmt::join(sizes, ", "), set.mask_rule.kind.text(), set.mask_rule.kind.m)));
    }
    // The ranks of a run may all be on this host.
    const int64_t most = usable_memory_bytes();
    if (num_bytes / world_size > most)
      faults->add(place.fault(fmt::format(
          "statistics for second-order pruning need {:.1f} GiB on each of {} rank(s), this host "
          "has "
          "{:.1f} GiB: use a smaller fisher_block_size or num_grads, fewer params, or more hosts",
          in_gib(num_bytes / world_size), world_size, in_gib(most))));
  }
}

/// Refuses values outside the range of a parameter's type. They would end the run at their step.
void ScheduledModifierManager::check_values(Diagnostics* faults) const {
  std::set<int> faulty;  // one fault per modifier
  for (const Action& action : timeline_->actions()) {
    if (action.kind != ActionKind::kSetParam || faulty.contains(action.modifier)) continue;
    for (const int64_t index : timeline_->params_of(action.modifier)) {
      const Param& param = params_[static_cast<size_t>(index)];
      const double most = largest_value(param.tensor.scalar_type());
      if (std::abs(action.value) <= most) continue;
      faulty.insert(action.modifier);
      faults->add(recipe_.modifiers()[static_cast<size_t>(action.modifier)]->location().fault(
          fmt::format("{} sets '{}' to {}, and the largest {} is {}",
                      timeline_->modifiers()[static_cast<size_t>(action.modifier)].tag, param.name,
                      action.value, c10::toString(param.tensor.scalar_type()), most)));
      break;
    }
  }
}

void ScheduledModifierManager::initialize() {
  require_stage(stage_ != Stage::kBuilt, "initialize", "comes after attach()");
  if (stage_ != Stage::kAttached) return;
  masks_.recount();  // a restore may have written the bits
  trainable_.assign(params_.size(), true);
  stage_ = Stage::kRunning;
}

const Timeline& ScheduledModifierManager::timeline() const {
  require_stage(timeline_.has_value(), "timeline", "comes after attach()");
  return *timeline_;
}

AppliedActions ScheduledModifierManager::apply_due(int64_t step, dist::Communicator& control) {
  return apply_at(step, /*closing=*/false, control);
}

template <typename Part>
void ScheduledModifierManager::write_weights(dist::Communicator& control, const Part& part) {
  if (!weights_are_shared_) return part();
  // First barrier: no rank reads the weights any more. Second: no rank reads them half written.
  control.barrier();
  if (control.rank() == 0) part();
  control.barrier();
}

AppliedActions ScheduledModifierManager::apply_at(int64_t step, bool closing,
                                                  dist::Communicator& control) {
  require_stage(stage_ != Stage::kFinalized, "apply_due", "cannot follow finalize()");
  initialize();
  AppliedActions applied;
  // After a restart, optimizer and quantizer do not know the timeline's state at `step`. So the
  // first call reports it even if no action is due.
  const bool is_first = std::exchange(last_step_, step) < 0;
  if (is_first && control.rank() == 0) report_start();
  bool trainability = is_first, quantization = is_first;
  for (const Action& action : timeline_->due_at(step)) {
    // At the end no update follows in which a weight could grow back. The reported and saved model
    // is the pruned one.
    if (closing && action.kind == ActionKind::kRelease) continue;
    apply(action, control, &applied);
    trainability = trainability || action.kind == ActionKind::kSetTrainable;
    quantization = quantization || traits_of(action.kind).is_on_quantization;
    if (action.kind == ActionKind::kDistill && !closing) applied.distillation_begins = true;
  }
  if (trainability) follow_trainable(step, &applied);
  if (quantization) follow_quantization(step);
  if (!closing) scores_.begin_step(step);
  sort_unique(&applied.changed_params);
  sort_unique(&applied.reset_params);
  applied.masks_changed = !applied.changed_params.empty();
  num_mask_updates_ += applied.num_mask_updates;
  return applied;
}

void ScheduledModifierManager::apply(const Action& action, dist::Communicator& control,
                                     AppliedActions* applied) {
  if (action.param_set < 0) return;
  const ParamSet& set = timeline_->param_sets()[static_cast<size_t>(action.param_set)];
  if (traits_of(action.kind).is_on_masks) apply_to_masks(action, set, control, applied);
  if (!traits_of(action.kind).is_on_values) return;
  write_weights(control, [&] { change_values(action, set); });
}

void ScheduledModifierManager::apply_to_masks(const Action& action, const ParamSet& set,
                                              dist::Communicator& control,
                                              AppliedActions* applied) {
  std::vector<int64_t> changed;
  if (action.kind == ActionKind::kPrune) {
    changed = prune(action, set, control);
    if (control.rank() == 0) warn_of_empty_layers(action.value, changed, masks_);
  } else {
    for (const int64_t param : set.params) {
      const bool is_new =
          action.kind == ActionKind::kRelease ? masks_.release(param) : masks_.keep_zeros(param);
      if (is_new) changed.push_back(param);
    }
  }
  // Compares every computed mask, also if this rank saw no change: a rank that differs may have
  // seen one. Compares now, because a later action of this step may hide the difference.
  masks_.require_equal(fmt::format("the new mask at step {}", last_step_), set.params, control);
  write_weights(control, [&] {
    for (const int64_t param : set.params) masks_.enforce(param);
  });
  append(&applied->changed_params, changed);
  if (set.momentum_buffer_reset) append(&applied->reset_params, changed);
  applied->num_mask_updates += static_cast<int64_t>(set.params.size());
}

std::vector<int64_t> ScheduledModifierManager::prune(const Action& action, const ParamSet& set,
                                                     dist::Communicator& control) {
  const std::vector<at::Tensor> scores =
      scores_.scores(action.param_set, set.mask_rule.global, control);
  std::vector<at::Tensor> kept_before;
  if (!scores.empty())
    for (const int64_t param : set.params)
      kept_before.push_back(masks_.of(param).kept_bits.clone());
  std::vector<int64_t> changed =
      masks_.prune(set.params, action.value, set.mask_rule, control, scores);
  const std::vector<at::Tensor> changes =
      scores.empty() ? scores : scores_.changes(action.param_set, kept_before, masks_, control);
  write_weights(control, [&] {
    const at::NoGradGuard no_grad;
    for (size_t i = 0; i < changes.size(); ++i) {
      const at::Tensor& weight = params_[static_cast<size_t>(set.params[i])].tensor;
      weight.detach().sub_(changes[i].to(weight.device(), weight.scalar_type()));
    }
  });
  // Also after an update by magnitude: the next window begins here.
  scores_.reset(action.param_set);
  return changed;
}

/// Sets or transforms parameter values. Pruned weights stay zero.
void ScheduledModifierManager::change_values(const Action& action, const ParamSet& set) {
  const at::NoGradGuard no_grad;
  for (const int64_t param : set.params) {
    at::Tensor values = params_[static_cast<size_t>(param)].tensor.detach();
    if (action.kind == ActionKind::kTransform)
      timeline_->transforms()[static_cast<size_t>(action.transform)].apply(values, action.step);
    else
      values.fill_(action.value);
    // Actions of one step may combine: a value set here must not fill pruned weights.
    if (masks_.covers(param)) masks_.enforce(param);
  }
}

/// Reports trainability if it differs from the last call.
void ScheduledModifierManager::follow_trainable(int64_t step, AppliedActions* applied) {
  std::vector<bool> wanted = timeline_->trainable_at(step);
  if (wanted == trainable_) return;
  trainable_ = wanted;
  applied->trainable = std::move(wanted);
}

void ScheduledModifierManager::follow_quantization(int64_t step) {
  if (!quantizer_) return;
  const Quantization now = timeline_->quantization_at(step);
  quantizer_->configure(now.on ? now.layers : std::vector<int64_t>(), now.per_channel,
                        now.observers_on);
}

void ScheduledModifierManager::mask_gradients() { masks_.enforce_gradients(); }

void ScheduledModifierManager::agree(bool updated, dist::Communicator& control) {
  if (quantizer_ && updated) quantizer_->agree(control);
}

void ScheduledModifierManager::end_step(bool updated, dist::Communicator& control) {
  require_stage(stage_ == Stage::kRunning, "end_step", "comes after apply_due()");
  if (updated) scores_.end_step(last_step_, masks_);
  // Counting comes first: enforce() removes what count_revived() looks for.
  const bool looks = last_step_ % kReviveCheckSteps == 0;
  if (updated && looks) num_revived_ += masks_.count_revived();
  if (updated && (looks || !updates_keep_zeros_)) write_weights(control, [&] { masks_.enforce(); });
  if (quantizer_) quantizer_->end_step(control, updated);
}

AppliedActions ScheduledModifierManager::apply_closing(int64_t step, dist::Communicator& control) {
  is_closed_ = true;
  // last_step_ == step: apply_due() of this step has already applied these actions.
  if (stage_ == Stage::kFinalized || last_step_ == step) return {};
  AppliedActions applied = apply_at(step, /*closing=*/true, control);
  write_weights(control, [&] { masks_.enforce(); });
  return applied;
}

void ScheduledModifierManager::finalize(int64_t step, dist::Communicator& control) {
  if (stage_ == Stage::kFinalized) return;
  (void)apply_closing(step, control);
  finalize_stopped();
}

void ScheduledModifierManager::finalize_stopped() {
  if (stage_ == Stage::kFinalized) return;
  require_stage(stage_ != Stage::kBuilt, "finalize_stopped", "comes after attach()");
  masks_.enforce();
  // Masks are frozen into the weights here: later changes of weights are no longer masked.
  masks_.drop();
  if (quantizer_) quantizer_->stop_observing();
  stage_ = Stage::kFinalized;
}

StateList ScheduledModifierManager::state() {
  StateList all = masks_.state();
  // Before the first step a restore may bring statistics. Later a save holds those that exist.
  const StateList statistics = scores_.state(/*all=*/stage_ != Stage::kRunning);
  all.insert(all.end(), statistics.begin(), statistics.end());
  if (!quantizer_) return all;
  const StateList ranges = quantizer_->state();
  all.insert(all.end(), ranges.begin(), ranges.end());
  return all;
}

void ScheduledModifierManager::restored(dist::Communicator& control) {
  require_stage(stage_ == Stage::kAttached || stage_ == Stage::kRunning, "restored",
                "comes after attach() and before finalize()");
  // A restore restarts the run: the next apply_due() is a first step again.
  stage_ = Stage::kAttached;
  last_step_ = -1;
  is_closed_ = false;
  initialize();
  std::vector<int64_t> params;
  for (const Mask& mask : masks_.all()) params.push_back(mask.param);
  masks_.require_equal("the restored mask", params, control);
  write_weights(control, [&] { masks_.enforce(); });
}

void ScheduledModifierManager::zero_pruned(int64_t param, const at::Tensor& values) const {
  if (masks_.covers(param)) masks_.zero_pruned(param, values);
}

}  // namespace lockstep::recal
