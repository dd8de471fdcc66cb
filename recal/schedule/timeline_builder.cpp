#include "recal/schedule/timeline_builder.h"

#include <algorithm>
#include <iterator>
#include <numeric>

#include <fmt/format.h>

#include "base/text.h"

// Compilation of a recipe to a timeline.
namespace lockstep::recal {
// build() compiles each modifier in recipe order. A modifier converts its moments to steps, claims
// what it changes (conflicts become faults), and adds actions. Timeline::file_actions() sorts them.
namespace {

std::vector<std::string> names_of(const TimelineInputs& inputs) {
  std::vector<std::string> names;
  if (inputs.params)
    for (const ParamInfo& info : *inputs.params) names.push_back(info.name);
  return names;
}

std::vector<Window> windows_of(const Recipe& recipe) {
  std::vector<Window> windows;
  for (const auto& modifier : recipe.modifiers()) windows.push_back(modifier->window());
  return windows;
}

// The part of TimelineBuilder that resolves names and checks claims: which modifier may work on
// which parameters, layers and groups. Conflicts become faults, so the actions need no checks.

constexpr std::string_view kAllText = "__ALL__";

/// Returns the indexes below n that are not chosen.
std::vector<int64_t> others(const std::vector<int64_t>& chosen, size_t n) {
  std::vector<int64_t> all(n), rest;
  std::iota(all.begin(), all.end(), 0);
  std::set_difference(all.begin(), all.end(), chosen.begin(), chosen.end(),
                      std::back_inserter(rest));
  return rest;
}

}  // namespace

TimelineBuilder::TimelineBuilder(const Recipe& recipe, const TimelineInputs& inputs,
                                 Diagnostics* faults)
    : recipe_(recipe),
      inputs_(inputs),
      faults_(faults),
      converter_(windows_of(recipe), inputs.steps_per_epoch, inputs.max_steps),
      rates_("the learning rate", inputs.steps_per_epoch),
      decays_("the weight decay", inputs.steps_per_epoch),
      losses_("the distillation loss", inputs.steps_per_epoch),
      trainable_(names_of(inputs), inputs.frozen_at_start),
      quantization_(inputs.layers) {}

Timeline TimelineBuilder::build() {
  timeline_.steps_per_epoch_ = inputs_.steps_per_epoch;
  timeline_.base_learning_rate_ = inputs_.base_learning_rate;
  timeline_.total_steps_ = converter_.total_steps();
  timeline_.min_epochs_ = converter_.min_epochs();
  timeline_.max_epochs_ = converter_.max_epochs();
  timeline_.notes_ = recipe_.notes();
  // Order: deferred parts see all rates, trainability needs all claims, quantization needs all
  // masks.
  compile_all();
  compile_deferred();
  add_trainable_changes();
  check_quantization();
  timeline_.file_actions(inputs_);
  const std::vector<std::string> widening = widening_notes(timeline_);
  timeline_.notes_.insert(timeline_.notes_.end(), widening.begin(), widening.end());
  if (inputs_.params && !inputs_.frozen_at_start.empty())
    timeline_.notes_.push_back(fmt::format("{} of {} parameters are frozen from the start",
                                           inputs_.frozen_at_start.size(), inputs_.params->size()));
  if (inputs_.params && inputs_.teacher == TeacherChoice::kGiven &&
      !timeline_.has(ActionKind::kDistill))
    timeline_.warnings_.emplace_back(
        "train.distill_teacher has no effect: the recipe has no DistillationModifier");
  const std::vector<std::string> idle = idle_warnings(timeline_, inputs_.max_steps);
  timeline_.warnings_.insert(timeline_.warnings_.end(), idle.begin(), idle.end());
  return std::move(timeline_);
}

void TimelineBuilder::compile_all() {
  const int num_modifiers = static_cast<int>(recipe_.modifiers().size());
  for (current_ = 0; current_ < num_modifiers; ++current_) {
    const bool is_known = converter_.knows(now().window());
    if (!is_known)
      fault(
          fmt::format("{} lasts to the run's end (-1), which is unknown: add an "
                      "!EpochRangeModifier, or train.max_steps to the run file",
                      now().tag()));
    // Entries are added for faulty modifiers too: actions refer to modifiers by index.
    describe_current();
    if (is_known) now().compile(this);
  }
}

void TimelineBuilder::compile_deferred() {
  std::stable_sort(deferred_.begin(), deferred_.end(),
                   [](const Deferred& a, const Deferred& b) { return a.step < b.step; });
  for (const Deferred& deferred : deferred_) {
    current_ = deferred.modifier;
    deferred.compile();
  }
}

void TimelineBuilder::defer(int64_t step, std::function<void()> compile) {
  deferred_.push_back({step, current_, std::move(compile)});
}

/// Rate of a group just before `step`, from the actions added so far.
double TimelineBuilder::rate_in_force(int64_t step, int group) const {
  const Action* latest = nullptr;
  for (const Action& action : timeline_.actions_) {
    if (action.kind != ActionKind::kSetLearningRate || action.step >= step) continue;
    if (action.group != kAllGroups && action.group != group) continue;
    // A strict comparison: of actions at one step the first counts, but one step has one writer.
    if (latest == nullptr || action.step > latest->step) latest = &action;
  }
  if (latest == nullptr) return inputs_.base_learning_rate;
  if (latest->formula < 0) return latest->value;
  return timeline_.rate_formulas_[static_cast<size_t>(latest->formula)].at(step);
}

std::vector<std::pair<ParamGroups, double>> TimelineBuilder::rates_in_force(
    int64_t step, const ParamGroups& groups) const {
  std::vector<int> numbers = groups.numbers;
  for (int group = 0; groups.all() && group < kNumParamGroups; ++group) numbers.push_back(group);
  std::vector<std::pair<ParamGroups, double>> rates;
  for (const int group : numbers) rates.push_back({{{group}}, rate_in_force(step, group)});
  const double first = rates.front().second;
  if (std::all_of(rates.begin(), rates.end(), [&](const auto& r) { return r.second == first; }))
    return {{groups, first}};
  return rates;
}

/// Adds the entry of the current modifier. Steps stay unknown if the run's end is unknown.
void TimelineBuilder::describe_current() {
  const Window window = now().window();
  const auto step_or_none = [&](const std::optional<TrainTime>& moment) {
    return moment && converter_.knows(window) ? std::optional<int64_t>(step_of(*moment))
                                              : std::nullopt;
  };
  timeline_.modifiers_.push_back({.tag = now().tag(),
                                  .summary = now().summary(),
                                  .place = now().location().text(),
                                  .window = window,
                                  .start_step = step_or_none(window.start),
                                  .end_step = step_or_none(window.end),
                                  .param_logs = now().param_logs()});
}

/// Index of a modifier in the recipe; actions refer to modifiers by index.
int TimelineBuilder::index_of(const Modifier* wanted) const {
  const auto& all = recipe_.modifiers();
  const auto found =
      std::find_if(all.begin(), all.end(), [&](const auto& each) { return each.get() == wanted; });
  return static_cast<int>(found - all.begin());
}

void TimelineBuilder::add_trainable_changes() {
  for (const TrainableChange& change : trainable_.changes(faults_)) {
    // add() uses the current modifier, and each change has its own.
    current_ = index_of(change.modifier);
    add(change.step, ActionKind::kSetTrainable, change.trainable ? 1 : 0,
        add_param_set(change.params, ""));
  }
}

void TimelineBuilder::check_quantization() {
  for (const auto& [modifier, text] :
       quantization_.check_pruning(pruning_, converter_.total_steps(), faults_)) {
    current_ = index_of(modifier);
    warn(text);
  }
  timeline_.quantizes_per_channel_ = quantization_.per_channel();
}

std::optional<StepRange> TimelineBuilder::steps_of(const Window& window) {
  const StepRange steps{step_of(*window.start), step_of(*window.end)};
  if (steps.first < steps.end) return steps;
  // Equal steps in one unit: the window is shorter than a step, which is only worth a warning.
  if (steps.first == steps.end && window.start->kind == window.end->kind) return steps;
  fault(fmt::format("{} ends at {} (step {}), which is not after its start at {} (step {})",
                    now().tag(), window.end->sentence_text(), steps.end,
                    window.start->sentence_text(), steps.first));
  return std::nullopt;
}

std::vector<PeriodicUpdate> TimelineBuilder::updates(const Window& window, const Period& period,
                                                     int64_t end_step) {
  // The limit is for all modifiers together: a recipe must not exhaust memory.
  const size_t at_most = StepConverter::kMaxUpdates - num_updates_;
  if (auto found = converter_.updates(*window.start, period, end_step, at_most)) {
    num_updates_ += found->size();
    return *found;
  }
  fault(fmt::format(
      "{} has more than {} updates{}: lengthen its period", now().tag(), at_most,
      num_updates_ > 0 ? fmt::format(" (of {} for a recipe)", StepConverter::kMaxUpdates) : ""));
  return {};
}

void TimelineBuilder::add(int64_t step, ActionKind kind, double value, int param_set) {
  timeline_.actions_.push_back(
      {.step = step, .kind = kind, .value = value, .modifier = current_, .param_set = param_set});
}

size_t TimelineBuilder::add_gradual(ActionKind kind, int param_set, const GradualChange& change) {
  const int64_t end_step = step_of(*change.window.end);
  const std::vector<PeriodicUpdate> found = updates(change.window, change.period, end_step);
  // Values follow the exact moment of update k, not the step to which it is rounded up.
  for (const auto& [k, step] : found) {
    const double done = converter_.fraction_done(k, change.window, change.period);
    const double span = change.last - change.first;
    add(step, kind, change.first + span * curve(change.inter_func, done), param_set);
  }
  // The last value must hold exactly, also if no period ends at the window's end.
  add(end_step, kind, change.last, param_set);
  return found.size();
}

void TimelineBuilder::add_for_groups(int64_t step, ActionKind kind, double value,
                                     const ParamGroups& groups) {
  // Without a model the recipe may name more groups than a run has, so "all" must not be assumed.
  const bool means_all = groups.all() || (inputs_.params && groups.names_each_known());
  const std::vector<int> numbers = means_all ? std::vector<int>{kAllGroups} : groups.numbers;
  for (const int group : numbers)
    timeline_.actions_.push_back(
        {.step = step, .kind = kind, .value = value, .modifier = current_, .group = group});
}

void TimelineBuilder::add_formula(int64_t first_step, const LrSchedule& formula,
                                  const ParamGroups& groups) {
  const size_t first = timeline_.actions_.size();
  add_for_groups(first_step, ActionKind::kSetLearningRate, formula.at(first_step), groups);
  for (size_t i = first; i < timeline_.actions_.size(); ++i)
    timeline_.actions_[i].formula = static_cast<int>(timeline_.rate_formulas_.size());
  timeline_.rate_formulas_.push_back(formula);
}

void TimelineBuilder::add_transform(int64_t step, int param_set, ParamTransform transform) {
  add(step, ActionKind::kTransform, 0, param_set);
  timeline_.actions_.back().transform = static_cast<int>(timeline_.transforms_.size());
  timeline_.transforms_.push_back(std::move(transform));
}

void TimelineBuilder::note(const std::string& message) {
  timeline_.notes_.push_back(
      fmt::format("{}: {}: {}", now().location().text(), now().tag(), message));
}

void TimelineBuilder::note_default(std::string_view key, std::string_view value) {
  if (defaults_noted_.insert(fmt::format("{}.{}", now().tag(), key)).second)
    note(fmt::format("no {} is given: using {}", key, value));
}

void TimelineBuilder::warn(const std::string& message) {
  timeline_.warnings_.push_back(
      fmt::format("{}: {}: {}", now().location().text(), now().tag(), message));
}

void TimelineBuilder::fault(const std::string& message) {
  faults_->add(now().location().fault(message));
}

const std::string& TimelineBuilder::name_of_param(int64_t param) const {
  return (*inputs_.params)[static_cast<size_t>(param)].name;
}

std::vector<int64_t> TimelineBuilder::resolve(const Selection& selection, Selects what) {
  if (!inputs_.params) return {};
  Diagnostics unmatched;
  const std::vector<int64_t> params =
      what == Selects::kAny
          ? selection.params.resolve_any(*inputs_.params, &unmatched, inputs_.frozen_in_constructor)
          : selection.params.resolve_prunable(*inputs_.params, &unmatched,
                                              inputs_.frozen_in_constructor);
  // Only the modifier knows whether a missing name is a fault (params_strict).
  for (const Fault& missing : unmatched.list())
    selection.strict ? faults_->add(missing) : warn(missing.message);
  // A list without a match has its own fault; the word for all has none.
  if (params.empty() && what == Selects::kPrunable && selection.params.text() == kAllText)
    fault("the model has nothing to prune: no weight of a linear or convolution layer");
  note_selected(selection, params, what);
  return params;
}

/// Notes which parameters a word such as __ALL__ selects, and the rule.
void TimelineBuilder::note_selected(const Selection& selection, const std::vector<int64_t>& params,
                                    Selects what) {
  constexpr size_t kMaxShown = 8;
  if (!selection.params.means_all() || params.empty()) return;
  std::vector<std::string> names;
  for (const int64_t param : params) names.push_back(name_of_param(param));
  const bool only_weights = what == Selects::kPrunable || selection.params.text() != kAllText;
  note(fmt::format("{} selects {} of {} parameters, {}: {}", selection.params.text(), params.size(),
                   inputs_.params->size(),
                   only_weights ? "the weights of linear and convolution layers" : "every one",
                   first_few(names, kMaxShown)));
}

std::vector<int64_t> TimelineBuilder::resolve_layers(const ParamSelector* submodules) {
  if (!inputs_.params) return {};
  if (submodules != nullptr) return submodules->resolve_layers(inputs_.layers, faults_);
  std::vector<int64_t> all(inputs_.layers.size());
  std::iota(all.begin(), all.end(), 0);
  return all;
}

int TimelineBuilder::add_param_set(const std::vector<int64_t>& params, const std::string& text) {
  ParamSet set{.params = params};
  for (const int64_t param : params) {
    set.names.push_back(name_of_param(param));
    set.num_weights += (*inputs_.params)[static_cast<size_t>(param)].num_weights;
  }
  if (!inputs_.params) set.names.push_back(text);
  timeline_.param_sets_.push_back(std::move(set));
  return static_cast<int>(timeline_.param_sets_.size()) - 1;
}

/// Refuses groups that a run does not have. Without a model they are only noted.
void TimelineBuilder::require_known(const ParamGroups& groups) {
  const int unknown = groups.first_unknown();
  if (unknown < 0) return;
  if (inputs_.params)
    fault(fmt::format("{} names parameter group {}; available: {}", now().tag(), unknown,
                      known_param_groups()));
  else
    note(fmt::format("parameter group {} is not checked without a model; a run has {}", unknown,
                     known_param_groups()));
}

void TimelineBuilder::claim_learning_rate(const ParamGroups& groups, StepRange steps) {
  require_known(groups);
  rates_.add(now(), groups, steps, faults_);
  if (inputs_.learning_rate_decay_type != "fixed")
    fault(
        fmt::format("{} writes the learning rate, and so does optimizer.learning_rate_decay_type: "
                    "it is {}, it must be fixed with this modifier",
                    now().tag(), inputs_.learning_rate_decay_type));
  // Advice only: both combinations are valid.
  if (inputs_.optimizer_type == "adam")
    note(
        "adam scales each step itself: a warm-up of the learning rate is common with it, a longer "
        "schedule changes less than with sgd");
}

void TimelineBuilder::claim_weight_decay(const ParamGroups& groups, int64_t step) {
  require_known(groups);
  decays_.add(now(), groups, {step, step + 1}, faults_);
}

void TimelineBuilder::note_logged(const std::vector<int64_t>& params) {
  if (now().param_logs() != ParamLogs::kEverywhere || !inputs_.params) return;
  timeline_.logged_.resize(inputs_.params->size());
  for (const int64_t param : params) timeline_.logged_[static_cast<size_t>(param)] = true;
}

/// Warns if a modifier starts below the sparsity that an earlier one leaves. Pruned weights stay
/// pruned, so nothing happens until the curve exceeds it.
void TimelineBuilder::warn_of_fall(const std::vector<int64_t>& params,
                                   const GradualPruning& claim) {
  for (const int64_t param : params)
    if (const auto fall = pruning_.fall_before(param, claim))
      return warn(
          fmt::format("starts at sparsity {} while {} ({}) leaves '{}' at {}: nothing more "
                      "is pruned until the curve passes that",
                      claim.init_sparsity, fall->before->tag(), fall->before->location().text(),
                      name_of_param(param), fall->final_sparsity));
}

/// Warns if the final sparsity leaves nothing of a weight, or only its largest group.
void TimelineBuilder::warn_of_last_groups(const std::vector<int64_t>& params,
                                          const GradualPruning& pruning) {
  if (pruning.mask_rule.global) return;
  std::vector<std::string> names;
  for (const int64_t param : params) {
    const ParamInfo& info = (*inputs_.params)[static_cast<size_t>(param)];
    const int64_t num_groups = pruning.mask_rule.kind.num_prunable(info.sizes);
    if (num_groups > 0 && num_to_prune(pruning.final_sparsity, num_groups) >= num_groups)
      names.push_back(info.name);
  }
  if (names.empty()) return;
  const MaskKind& kind = pruning.mask_rule.kind;
  warn(fmt::format("final_sparsity {} prunes all of '{}'{}{}", pruning.final_sparsity,
                   names.front(),
                   names.size() > 1 ? fmt::format(" and {} more", names.size() - 1) : "",
                   kind.pattern == MaskPattern::kUnstructured
                       ? ": the layer outputs only zeros; name it in a separate modifier"
                       : fmt::format(" with mask_type {}: the largest {} is kept", kind.text(),
                                     kind.pattern == MaskPattern::kBlock ? "block" : kind.text())));
}

int TimelineBuilder::claim_gradual_pruning(const Selection& selection,
                                           const GradualPruning& pruning) {
  const std::vector<int64_t> params = resolve(selection, Selects::kPrunable);
  warn_of_fall(params, pruning);
  warn_of_last_groups(params, pruning);
  for (const int64_t param : params)
    if (!pruning_.add_gradual(now(), param, name_of_param(param), pruning, faults_))
      break;  // one fault is enough for all its parameters
  note_logged(params);
  const int index = add_param_set(params, selection.params.text());
  ParamSet& set = timeline_.param_sets_[static_cast<size_t>(index)];
  set.mask_rule = pruning.mask_rule;
  set.score = pruning.score;
  set.momentum_buffer_reset = pruning.momentum_buffer_reset;
  return index;
}

double TimelineBuilder::fisher_bytes(int param_set, const FisherOptions& options) const {
  int64_t num_bytes = 0;
  for (const int64_t param : timeline_.param_sets_[static_cast<size_t>(param_set)].params)
    num_bytes += options.memory_bytes((*inputs_.params)[static_cast<size_t>(param)].num_weights);
  return static_cast<double>(num_bytes);
}

int TimelineBuilder::with_momentum_reset(int param_set) {
  ParamSet set = timeline_.param_sets_[static_cast<size_t>(param_set)];
  set.momentum_buffer_reset = true;
  timeline_.param_sets_.push_back(std::move(set));
  return static_cast<int>(timeline_.param_sets_.size()) - 1;
}

std::vector<std::pair<int64_t, int>> TimelineBuilder::claim_constant_pruning(
    const Selection& selection, int64_t first, std::optional<int64_t> last) {
  std::map<int64_t, std::vector<int64_t>> params_by_step;
  // Without a model nothing is resolved: the plan shows the selector's text.
  if (!inputs_.params) params_by_step[first] = {};
  const std::vector<int64_t> params = resolve(selection, Selects::kPrunable);
  for (const int64_t param : params) {
    const std::optional<int64_t> step =
        pruning_.add_constant(now(), param, name_of_param(param), first, last, faults_);
    // A conflict is already a fault.
    if (!step) break;
    if (!last || *step < *last) params_by_step[*step].push_back(param);
  }
  note_logged(params);
  std::vector<std::pair<int64_t, int>> sets;
  for (const auto& [step, members] : params_by_step)
    sets.emplace_back(step, add_param_set(members, selection.params.text()));
  return sets;
}

void TimelineBuilder::claim_trainable(const Selection& selection, StepRange steps, bool trainable,
                                      bool exclusive) {
  const std::vector<int64_t> params = resolve(selection, Selects::kAny);
  if (!inputs_.params) {
    const int set = add_param_set({}, selection.params.text());
    add(steps.first, ActionKind::kSetTrainable, trainable ? 1 : 0, set);
    if (steps.end != INT64_MAX) add(steps.end, ActionKind::kSetTrainable, trainable ? 0 : 1, set);
    return;
  }
  trainable_.add(now(), params, steps, trainable, faults_);
  if (exclusive)
    trainable_.add(now(), others(params, inputs_.params->size()), steps, !trainable, faults_);
}

int TimelineBuilder::claim_quantization(QuantizationClaim claim, const std::string& text) {
  claim.modifier = &now();
  std::vector<int64_t> weights;
  for (const int64_t layer : claim.layers)
    weights.push_back(inputs_.layers[static_cast<size_t>(layer)].weight_param);
  std::sort(weights.begin(), weights.end());
  quantization_.add(std::move(claim), faults_);
  return add_param_set(weights, text);
}

int TimelineBuilder::claim_values(const Selection& selection, StepRange steps) {
  std::vector<int64_t> params = resolve(selection, Selects::kAny);
  for (const ValueClaim& claim : values_) {
    std::vector<int64_t> both;
    std::set_intersection(params.begin(), params.end(), claim.params.begin(), claim.params.end(),
                          std::back_inserter(both));
    // Overlapping sets conflict only at a common step.
    const int64_t clash = std::max(steps.first, claim.steps.first);
    if (both.empty() || clash >= std::min(steps.end, claim.steps.end)) continue;
    fault(fmt::format("{} and {} ({}) both set the values of '{}' at step {}", now().tag(),
                      claim.modifier->tag(), claim.modifier->location().text(),
                      name_of_param(both.front()), clash));
  }
  values_.push_back({&now(), steps, params});
  return add_param_set(params, selection.params.text());
}

}  // namespace lockstep::recal
