// The part of TimelineBuilder that resolves names and checks claims: which modifier may work on
// which parameters, layers and groups. Conflicts become faults, so the actions need no checks.

#include <algorithm>
#include <iterator>
#include <map>
#include <numeric>

#include <fmt/format.h>

#include "recal/timeline/timeline_builder.h"

namespace lockstep::recal {
namespace {

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
  std::string names;
  for (size_t i = 0; i < std::min(params.size(), kMaxShown); ++i)
    names += (i == 0 ? "" : ", ") + name_of_param(params[i]);
  if (params.size() > kMaxShown) names += fmt::format(" and {} more", params.size() - kMaxShown);
  const bool only_weights = what == Selects::kPrunable || selection.params.text() != kAllText;
  note(fmt::format("{} selects {} of {} parameters, {}: {}", selection.params.text(), params.size(),
                   inputs_.params->size(),
                   only_weights ? "the weights of linear and convolution layers" : "every one",
                   names));
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
    fault(fmt::format("{} names parameter group {}; there are {}", now().tag(), unknown,
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
                    "it is {}, it must be fixed beside this modifier",
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
void TimelineBuilder::warn_of_fall(const std::vector<int64_t>& params, const GradualClaim& claim) {
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
  warn(fmt::format("final_sparsity {} takes all of '{}'{}{}", pruning.final_sparsity, names.front(),
                   names.size() > 1 ? fmt::format(" and {} more", names.size() - 1) : "",
                   kind.pattern == MaskPattern::kUnstructured
                       ? ": the layer passes nothing on; name it in a modifier of its own"
                       : fmt::format(" with mask_type {}: the largest {} is kept", kind.text(),
                                     kind.pattern == MaskPattern::kBlock ? "block" : kind.text())));
}

int TimelineBuilder::claim_gradual_pruning(const Selection& selection,
                                           const GradualPruning& pruning) {
  const std::vector<int64_t> params = resolve(selection, Selects::kPrunable);
  const GradualClaim claim{.steps = pruning.steps,
                           .init_sparsity = pruning.init_sparsity,
                           .final_sparsity = pruning.final_sparsity,
                           .leave_enabled = pruning.leave_enabled};
  warn_of_fall(params, claim);
  warn_of_last_groups(params, pruning);
  for (const int64_t param : params)
    if (!pruning_.add_gradual(now(), param, name_of_param(param), claim, faults_))
      break;  // one fault is enough for all its parameters
  note_logged(params);
  const int index = add_param_set(params, selection.params.text());
  ParamSet& set = timeline_.param_sets_[static_cast<size_t>(index)];
  set.mask_rule = pruning.mask_rule;
  set.momentum_buffer_reset = pruning.momentum_buffer_reset;
  return index;
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
