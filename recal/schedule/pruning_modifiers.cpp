#include <string>
#include <vector>

#include <fmt/format.h>
#include <yaml-cpp/yaml.h>

#include "recal/masks/mask_kind.h"
#include "recal/schedule/modifier_fields.h"
#include "recal/schedule/modifier_table.h"
#include "recal/schedule/param_selector.h"
#include "recal/schedule/timeline_builder.h"
#include "recal/schedule/train_time.h"

// Modifiers that prune: gradually by magnitude, or by keeping zeros.
namespace lockstep::recal {
namespace {

/// Modifier name that means one threshold over all parameters.
constexpr std::string_view kGlobalTag = "GlobalMagnitudePruningModifier";

/// Options of one modifier. A sparsity is a pruned fraction in [0, 1) of one parameter's weights.
/// With a global mask rule it counts all parameters together.
struct GradualMagnitudePruningOptions {
  Selection selected;
  GradualPruning pruning;  ///< but for its steps, which compile() sets
  Window window;
  Period update_frequency;               ///< time from one mask to the next
  std::string inter_func = "cubic";      ///< recal/schedule/train_time.h
  std::string score_type = "magnitude";  ///< the only supported type
};

// Usual values, from SparseML's advice to users. Others cause warnings.
constexpr double kUsefulSparsity = 0.4;  // with less, zeros bring no speed
constexpr double kUsualFinalFrom = 0.6, kUsualFinalTo = 0.95;
constexpr double kUsualInitTo = 0.2;
constexpr size_t kFewMasks = 3;

/// Prunes the smallest weights of each named parameter, more at each update
/// (TimelineBuilder::add_gradual). So for a window in epochs the values do not depend on the batch
/// size. The last update is at the end.
class GradualMagnitudePruning final : public ModifierWith<GradualMagnitudePruningOptions> {
 public:
  using ModifierWith::ModifierWith;

  std::string summary() const override {
    const MaskRule& rule = options_.pruning.mask_rule;
    return fmt::format(
        "prunes {} from {} to {} ({}), every {}{}{}{}", options_.selected.params.text(),
        options_.pruning.init_sparsity, options_.pruning.final_sparsity, options_.inter_func,
        options_.update_frequency.text(), rule.kind == MaskKind() ? "" : ", " + rule.kind.text(),
        rule.global ? ", one threshold over all" : "",
        options_.pruning.leave_enabled ? "" : ", then releases the masks");
  }
  void compile(TimelineBuilder* builder) const override {
    const std::optional<StepRange> steps = builder->steps_of(options_.window);
    if (!steps) return;
    GradualPruning pruning = options_.pruning;
    pruning.steps = *steps;
    const int param_set = builder->claim_gradual_pruning(options_.selected, pruning);
    const size_t num_updates =
        builder->add_gradual(ActionKind::kPrune, param_set,
                             {options_.window, options_.update_frequency, options_.inter_func,
                              pruning.init_sparsity, pruning.final_sparsity});
    if (!options_.pruning.leave_enabled)
      builder->add(steps->end, ActionKind::kRelease, 0, param_set);
    warn_of_unusual_values(builder, num_updates + 1);
  }
  bool prunes() const override { return true; }
  ParamLogs param_logs() const override { return options_.selected.logs; }

 private:
  void warn_of_unusual_values(TimelineBuilder* builder, size_t num_masks) const {
    const double init = options_.pruning.init_sparsity;
    const double last = options_.pruning.final_sparsity;
    if (init <= 0 || init > kUsualInitTo)
      builder->warn(fmt::format("init_sparsity {} is far from the usual 0.05", init));
    // N:M has a limit of its own, so the usual range does not apply.
    const bool is_free = options_.pruning.mask_rule.kind.pattern != MaskPattern::kNofM;
    if (is_free && last < kUsefulSparsity) {
      builder->warn(fmt::format("final_sparsity {} is below {}: so few zeros give no speedup", last,
                                kUsefulSparsity));
    } else if (is_free && (last < kUsualFinalFrom || last > kUsualFinalTo)) {
      builder->warn(fmt::format("final_sparsity {} is outside the usual {} to {}", last,
                                kUsualFinalFrom, kUsualFinalTo));
    }
    if (options_.update_frequency.epochs > Decimal(1))
      builder->warn(fmt::format(
          "update_frequency {} is longer than the usual 1 epoch: each mask prunes more at once",
          options_.update_frequency.epochs.text()));
    if (num_masks < kFewMasks)
      builder->warn(
          fmt::format("computes only {} mask{} between its start and its end: shorten "
                      "update_frequency, so that each prunes less",
                      num_masks, num_masks == 1 ? "" : "s"));
  }
};

/// Final sparsity and its parameters.
struct Target {
  double final_sparsity = 0;
  ParamSelector params;
};

std::string falls_message(const ConfigReader& in, double final_sparsity, double init_sparsity) {
  return fmt::format("'{}.final_sparsity' is {}, it must not be less than init_sparsity ({})",
                     in.path(), final_sparsity, init_sparsity);
}

/// Reads {0.8: [names], 0.9: [names]}: one target per entry.
std::vector<Target> read_targets(ConfigReader* in, const YAML::Node& map, double init_sparsity) {
  constexpr std::string_view kKey = "final_sparsity";
  std::vector<Target> targets;
  for (const auto& pair : map) {
    const YAML::Node key = pair.first;
    Target target;
    const auto number = key.IsScalar() ? parse_number(key.Scalar()) : std::nullopt;
    if (!number || !half_open(0, 1).holds(*number)) {
      in->fault_at(key, fmt::format("'{}.{}' is a map: its keys must be sparsities, >= 0 and < 1",
                                    in->path(), kKey));
      continue;
    }
    target.final_sparsity = *number;
    if (*number < init_sparsity) in->fault_at(key, falls_message(*in, *number, init_sparsity));
    if (target.params.read_node(in, kKey, pair.second)) targets.push_back(std::move(target));
  }
  if (map.size() == 0) in->refuse(kKey, "is empty: map sparsities to parameters");
  // SparseML writes `params: []` next to such a map, since the map names the parameters.
  const YAML::Node params = in->take("params");
  if (params.IsDefined() && !(params.IsSequence() && params.size() == 0))
    in->refuse("params", "must be [] or omitted, as final_sparsity names the parameters");
  return targets;
}

std::vector<Target> read_sparsities(ConfigReader* in, GradualMagnitudePruningOptions* options) {
  const bool is_map = in->has("final_sparsity") && in->node()["final_sparsity"].IsMap();
  Target one;
  if (!is_map) one.params.read(in, "params");
  const bool has_init = read_required(in, "init_sparsity", &options->pruning.init_sparsity,
                                      half_open(0, 1), "pruned fraction at the start; usual: 0.05");
  if (is_map) return read_targets(in, in->take("final_sparsity"), options->pruning.init_sparsity);
  const bool has_final = read_required(in, "final_sparsity", &one.final_sparsity, half_open(0, 1),
                                       "pruned fraction from the end on; usual: 0.6 to 0.95");
  if (has_init && has_final && one.final_sparsity < options->pruning.init_sparsity)
    in->fault("final_sparsity",
              falls_message(*in, one.final_sparsity, options->pruning.init_sparsity));
  return {std::move(one)};
}

/// Text of a mask type. [1, 4] is a YAML list.
std::string mask_text(const YAML::Node& node) {
  if (node.IsScalar()) return node.Scalar();
  std::vector<std::string> items;
  if (node.IsSequence())
    for (const YAML::Node& item : node) items.push_back(item.IsScalar() ? item.Scalar() : "?");
  return fmt::format("[{}]", fmt::join(items, ", "));
}

void read_mask_kind(ConfigReader* in, GradualMagnitudePruningOptions* options) {
  const YAML::Node node = in->take("mask_type", "unstructured, block4, N:M, filter or channel",
                                   "which weights are pruned together");
  if (!node.IsDefined()) return;
  const std::string text = mask_text(node);
  const std::optional<MaskKind> kind = MaskKind::parse(text);
  if (kind) {
    options->pruning.mask_rule.kind = *kind;
    return;
  }
  in->refuse(
      "mask_type",
      fmt::format("must be unstructured, block4 (or [1, N]: blocks of N inputs of one output, N <= "
                  "64), N:M such as 2:4 with 0 < N < M <= 64, filter or channel, not '{}'",
                  text));
}

/// Refuses a sparsity above 1 - N/M: N:M prunes at most M - N of M weights.
void check_reach(ConfigReader* in, const MaskKind& kind, const std::vector<Target>& targets) {
  if (kind.pattern != MaskPattern::kNofM) return;
  const double most = 1.0 - static_cast<double>(kind.n) / static_cast<double>(kind.m);
  for (const Target& target : targets)
    if (target.final_sparsity > most + kRoundingOfSparsity)
      in->refuse("final_sparsity",
                 fmt::format("is {}: mask_type {} prunes {} of {} weights, which is at most {:.6g}",
                             target.final_sparsity, kind.text(), kind.m - kind.n, kind.m, most));
}

void read_mask_rule(ConfigReader* in, GradualMagnitudePruningOptions* options) {
  read_mask_kind(in, options);
  const bool is_global = in->path() == kGlobalTag;
  options->pruning.mask_rule.global = is_global;
  in->read("global_sparsity", &options->pruning.mask_rule.global,
           "one threshold over all parameters, not one each");
  if (is_global && !options->pruning.mask_rule.global)
    in->refuse("global_sparsity", "is false: for one threshold a parameter use !GradualKSModifier");
  in->read_choice("score_type", &options->score_type, {"magnitude"},
                  "scope of the smallest weights");
  bool phased = false;
  in->read("phased", &phased, "false: SparseML's old key for its ACDCPruningModifier");
  if (phased)
    in->refuse("phased",
               "is true: alternating compressed and dense phases (!ACDCPruningModifier) are not "
               "supported; write false, or remove it");
}

struct ConstantPruningOptions {
  Selection selected;
  Window window;  ///< open bounds: those of the run
};

/// Keeps the existing zeros of the named weights, for a model that was pruned before. For
/// parameters of a gradual modifier listed before, it starts at that modifier's end and keeps its
/// zeros.
class ConstantPruning final : public ModifierWith<ConstantPruningOptions> {
 public:
  using ModifierWith::ModifierWith;

  void place_in(StageSpan* stage) override { stage->place_open(&options_.window); }
  std::string summary() const override {
    return fmt::format("keeps the zeros of {}", options_.selected.params.text());
  }
  void compile(TimelineBuilder* builder) const override {
    const auto& [start, end] = options_.window;
    // A fault in the window was reported by steps_of(); nothing to add then.
    if (start && end && !builder->steps_of(options_.window)) return;
    const int64_t first = start ? builder->step_of(*start) : 0;
    // An end at the run's end does not release the mask: the exported model must keep its zeros.
    const std::optional<int64_t> last =
        end && !end->is_run_end() ? std::optional<int64_t>(builder->step_of(*end)) : std::nullopt;
    for (const auto& [step, param_set] :
         builder->claim_constant_pruning(options_.selected, first, last)) {
      builder->add(step, ActionKind::kKeepZeros, 0, param_set);
      if (last) builder->add(*last, ActionKind::kRelease, 0, param_set);
    }
  }
  bool prunes() const override { return true; }
  ParamLogs param_logs() const override { return options_.selected.logs; }
};

}  // namespace

Modifiers read_gradual_ks(ConfigReader* in, const SourceLocation& location) {
  GradualMagnitudePruningOptions options;
  std::vector<Target> targets = read_sparsities(in, &options);
  read_window(in, &options.window);
  read_update_frequency(in, &options.update_frequency);
  in->read_choice("inter_func", &options.inter_func, interpolation_names(),
                  "curve from init_sparsity to final_sparsity");
  in->read("leave_enabled", &options.pruning.leave_enabled, "whether masks are kept after the end");
  read_mask_rule(in, &options);
  check_reach(in, options.pruning.mask_rule.kind, targets);
  if (targets.size() > 1 && options.pruning.mask_rule.global)
    in->refuse("final_sparsity",
               "names several sparsities, but global_sparsity has one threshold for all");
  in->read("momentum_buffer_reset", &options.pruning.momentum_buffer_reset,
           "true: reset the optimizer's momentum to 0 at each new mask");
  read_params_strict(in, &options.selected.strict);
  read_log_types(in, &options.selected.logs);
  in->done();
  // Each target becomes a modifier; they share all options but parameters and final sparsity.
  Modifiers modifiers;
  for (Target& target : targets) {
    options.selected.params = std::move(target.params);
    options.pruning.final_sparsity = target.final_sparsity;
    modifiers.push_back(std::make_unique<GradualMagnitudePruning>(options, in->path(), location));
  }
  return modifiers;
}

Modifiers read_constant_ks(ConfigReader* in, const SourceLocation& location) {
  ConstantPruningOptions options;
  options.selected.params.read(in, "params");
  read_window(in, &options.window, Bounds::kOptional);
  read_params_strict(in, &options.selected.strict);
  read_log_types(in, &options.selected.logs);
  read_minus_one(in, "update_frequency", "masks are kept at every step");
  in->done();
  return one_modifier<ConstantPruning>(std::move(options), *in, location);
}

}  // namespace lockstep::recal
