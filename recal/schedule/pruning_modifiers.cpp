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

// Modifiers that prune: gradually by magnitude, movement or second-order statistics, or by keeping
// zeros.
namespace lockstep::recal {
namespace {

/// Modifier name that means one threshold over all parameters.
constexpr std::string_view kGlobalTag = "GlobalMagnitudePruningModifier";

/// Words for messages and plans.
std::string text_of(const ScoreRule& score) {
  if (score.kind == PruneScore::kMagnitude) return "";
  if (score.kind == PruneScore::kMovement) return ", by movement";
  return fmt::format(", by Fisher blocks of {} over {} gradients", score.fisher.block_size,
                     score.fisher.num_grads);
}

/// Options of one modifier. A sparsity is a pruned fraction in [0, 1) of one parameter's weights.
/// With a global mask rule it counts all parameters together.
struct GradualMagnitudePruningOptions {
  Selection selected;
  GradualPruning pruning;  ///< but for its steps, which compile() sets
  Window window;
  Period update_frequency;           ///< time from one mask to the next
  std::string inter_func = "cubic";  ///< recal/schedule/train_time.h
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
    return fmt::format("prunes {} from {} to {} ({}), every {}{}{}{}{}",
                       options_.selected.params.text(), options_.pruning.init_sparsity,
                       options_.pruning.final_sparsity, options_.inter_func,
                       options_.update_frequency.text(), text_of(options_.pruning.score),
                       rule.kind == MaskKind() ? "" : ", " + rule.kind.text(),
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
    if (pruning.score.kind != PruneScore::kMagnitude) note_gradients(builder, *steps, param_set);
  }
  bool prunes() const override { return true; }
  ParamLogs param_logs() const override { return options_.selected.logs; }

 private:
  /// Notes where the gradients come from, and their memory.
  void note_gradients(TimelineBuilder* builder, const StepRange& steps, int param_set) const {
    const FisherOptions& fisher = options_.pruning.score.fisher;
    if (steps.first == 0)
      builder->note("the update at step 0 has no gradients before it: it prunes by magnitude");
    if (options_.pruning.score.kind != PruneScore::kFisher) return;
    std::string memory;
    if (builder->inputs().params)
      memory = fmt::format(", {:.1f} MiB divided among the ranks",
                           builder->fisher_bytes(param_set, fisher) / 1048576.0);
    builder->note(
        fmt::format("each update takes the mean gradients of up to {} steps before it, "
                    "since the update before{}",
                    fisher.num_grads, memory));
  }
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

void read_global(ConfigReader* in, GradualMagnitudePruningOptions* options) {
  in->read("global_sparsity", &options->pruning.mask_rule.global,
           "one threshold over all parameters, not one each");
}

/// Reads the keys of modifiers that prune by magnitude, or by movement if a recipe says so.
void read_magnitude_keys(ConfigReader* in, GradualMagnitudePruningOptions* options) {
  const bool is_global = in->path() == kGlobalTag;
  options->pruning.mask_rule.global = is_global;
  read_global(in, options);
  if (is_global && !options->pruning.mask_rule.global)
    in->refuse("global_sparsity", "is false: for one threshold a parameter use !GradualKSModifier");
  std::string score_type = "magnitude";
  in->read_choice("score_type", &score_type, {"magnitude", "movement"},
                  "order in which weights are pruned");
  if (score_type == "movement") options->pruning.score.kind = PruneScore::kMovement;
  bool phased = false;
  in->read("phased", &phased, "false: SparseML's old key for its ACDCPruningModifier");
  if (phased) in->refuse("phased", "is true: write an !ACDCPruningModifier, or remove it");
}

/// Reads the keys of second-order pruning.
void read_fisher(ConfigReader* in, ScoreRule* score) {
  score->kind = PruneScore::kFisher;
  FisherOptions& fisher = score->fisher;
  in->read("num_grads", &fisher.num_grads, between(1, 1e5),
           "most gradients that count for an update");
  in->read("damp", &fisher.damp, more_than(0), "damping of the Fisher matrix");
  in->read("fisher_block_size", &fisher.block_size, between(1, 1e4),
           "weights of a block of the Fisher matrix");
  in->take("grad_sampler_kwargs");  // gradients are those of the run's own steps
}

/// Refuses masks whose weights the scores do not describe together.
void check_score(ConfigReader* in, const GradualPruning& pruning) {
  const MaskKind& kind = pruning.mask_rule.kind;
  const PruneScore score = pruning.score.kind;
  const bool is_single =
      kind.pattern == MaskPattern::kUnstructured || kind.pattern == MaskPattern::kNofM;
  if (score == PruneScore::kMagnitude || is_single) return;
  if (score == PruneScore::kMovement)
    return in->refuse("mask_type",
                      fmt::format("is {}: movement prunes unstructured or N:M", kind.text()));
  if (kind.pattern != MaskPattern::kBlock)
    return in->refuse(
        "mask_type",
        fmt::format("is {}: second-order pruning is unstructured, N:M or block4", kind.text()));
  if (pruning.score.fisher.block_size % kind.m != 0)
    in->refuse("fisher_block_size",
               fmt::format("is {}, it must be a multiple of {} for mask_type "
                           "{}",
                           pruning.score.fisher.block_size, kind.m, kind.text()));
}

/// Reads a modifier that prunes gradually. options: its defaults. read_more: reads the keys that
/// only it has.
template <typename ReadMore>
Modifiers read_gradual(ConfigReader* in, const SourceLocation& location,
                       GradualMagnitudePruningOptions options, const ReadMore& read_more) {
  std::vector<Target> targets = read_sparsities(in, &options);
  read_window(in, &options.window);
  read_update_frequency(in, &options.update_frequency);
  in->read_choice("inter_func", &options.inter_func, interpolation_names(),
                  "curve from init_sparsity to final_sparsity");
  in->read("leave_enabled", &options.pruning.leave_enabled, "whether masks are kept after the end");
  read_mask_kind(in, &options.pruning.mask_rule.kind);
  read_more(in, &options);
  check_reach(in, options.pruning.mask_rule.kind, targets);
  check_score(in, options.pruning);
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
  return read_gradual(in, location, {}, read_magnitude_keys);
}

Modifiers read_movement_pruning(ConfigReader* in, const SourceLocation& location) {
  return read_gradual(in, location, {}, [](ConfigReader* reader, auto* options) {
    options->pruning.score.kind = PruneScore::kMovement;
    read_global(reader, options);
  });
}

Modifiers read_obs_pruning(ConfigReader* in, const SourceLocation& location) {
  GradualMagnitudePruningOptions options;
  options.pruning.mask_rule.global = true;
  return read_gradual(in, location, options, [](ConfigReader* reader, auto* read) {
    read_global(reader, read);
    read_fisher(reader, &read->pruning.score);
    int64_t num_recomputations = 1;
    reader->read("num_recomputations", &num_recomputations, between(1, 1),
                 "may only be 1: an update has one set of gradients");
  });
}

Modifiers read_mfac_pruning(ConfigReader* in, const SourceLocation& location) {
  GradualMagnitudePruningOptions options;
  options.pruning.score.fisher = {.num_grads = 64, .damp = 1e-5, .block_size = 2000};
  return read_gradual(in, location, options, [](ConfigReader* reader, auto* read) {
    read_global(reader, read);
    read_fisher(reader, &read->pruning.score);
    bool buffers = true;
    reader->read("use_gradient_buffering", &buffers, "may only be true: gradients are the run's");
    if (!buffers)
      reader->refuse("use_gradient_buffering", "may only be true: gradients are those of the run");
    // Where SparseML computes: without effect here.
    for (const char* key : {"grads_device", "num_pages", "available_gpus", "available_devices"})
      if (is_written(*reader, key)) reader->take(key);
  });
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
