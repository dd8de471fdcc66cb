#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <fmt/format.h>
#include <yaml-cpp/yaml.h>

#include "base/text.h"
#include "base/yaml/config_reader.h"
#include "recal/quantization/quantization_scheme.h"
#include "recal/schedule/modifier_fields.h"
#include "recal/schedule/modifier_table.h"
#include "recal/schedule/param_selector.h"
#include "recal/schedule/timeline_builder.h"

// QuantizationModifier, and the layers that it quantizes.
namespace lockstep::recal {
namespace {

// Reads the two forms of SparseML: `scheme` with overrides, and `config_groups`. Both become a list
// of rules, which choose() applies to the model's layers. Faults of a scheme are kept until a layer
// is known to have it.

constexpr size_t kMaxLayersShown = 8;
constexpr std::string_view kNothing =
    "no layer is quantized: every linear layer and convolution is ignored or has no scheme";

std::string_view strategy(const LayerScheme& scheme) {
  return scheme.per_channel ? "channel" : "tensor";
}

/// True if some target can be a layer that is quantized here.
bool has_known_target(const std::vector<LayerTarget>& targets) {
  return std::any_of(targets.begin(), targets.end(),
                     [](const LayerTarget& target) { return !target.is_foreign_class(); });
}

std::string no_module_message(const LayerTarget& target, const std::vector<LayerInfo>& layers) {
  std::vector<std::string> names;
  for (const LayerInfo& layer : layers) names.push_back(layer.name);
  const std::string hint = did_you_mean(target.text(), names);
  return fmt::format("the model has nothing named '{}'{}", target.text(),
                     hint.empty() ? "; its layers are " + first_few(names, kMaxLayersShown) : hint);
}

/// True if both keys are present, which is a fault at the second one.
bool clash(ConfigReader* in, std::string_view a, std::string_view b) {
  if (!in->has(a) || !in->has(b)) return false;
  in->refuse(b, fmt::format("and '{}' both say how layers are quantized: keep one of them", a));
  return true;
}

/// Layers that a QuantizationModifier quantizes, and the scales of their weights. Keys:
/// `submodules`, `ignore`, `weights`, `scheme`, `scheme_overrides`, `config_groups` and `strict`.
///
/// A layer is quantized if `submodules` contains it (absent: all layers), `ignore` does not, and
/// its scheme quantizes. The scheme is that of the matching entry of `config_groups`. Without
/// groups it is that of the most specific key of `scheme_overrides`: the longest name, then the
/// class. Else it is `scheme`. All quantized layers must have the same strategy.
class QuantizedLayers {
 public:
  /// Reads the keys; wrong forms become faults.
  void read(ConfigReader* in) {
    if (in->has("submodules")) submodules_.emplace().read(in, "submodules");
    in->take("submodules");
    ignore_ = read_layer_targets(in, "ignore");
    std::string weights = "per_channel";
    in->read_choice("weights", &weights, {"per_channel", "per_tensor"},
                    "a scale per output channel of a weight, or one for all of it");
    scheme_.per_channel = weights == "per_channel";
    // One clash is enough for each key, hence the short circuit.
    clash(in, "config_groups", "weights") || clash(in, "scheme", "weights");
    clash(in, "config_groups", "scheme") || clash(in, "config_groups", "scheme_overrides");
    read_schemes(in);
    read_groups(in);
    in->read("strict", &strict_, "whether each name must be in the model");
  }

  /// Indexes in TimelineInputs::layers, ascending; empty without a model.
  struct Choice {
    std::vector<int64_t> layers;
    bool per_channel = true;
  };
  /// Chooses the layers. Adds faults to the builder for a layer with an unsupported scheme and for
  /// an entry without a match. It is also a fault if no layer remains. Without a model: if a layer
  /// could have such a scheme.
  Choice choose(TimelineBuilder* builder) const {
    const TimelineInputs& inputs = builder->inputs();
    if (inputs.params && inputs.layers.empty()) {
      builder->fault("the model has no layer to quantize: no linear layer or convolution");
      return {};
    }
    check_targets(builder);
    Choice choice{.layers = {}, .per_channel = per_channel()};
    if (!inputs.params) return check_without_model(builder), choice;
    std::vector<const LayerScheme*> schemes;  // of the chosen layers
    const auto wanted = builder->resolve_layers(submodules_ ? &*submodules_ : nullptr);
    for (const int64_t index : wanted) {
      const LayerInfo& layer = inputs.layers[static_cast<size_t>(index)];
      const auto& weight = (*inputs.params)[static_cast<size_t>(layer.weight_param)];
      const LayerScheme* scheme = scheme_of(layer, weight.sizes);
      if (scheme == nullptr) continue;
      // FakeQuantizer has one setting for all layers.
      if (!schemes.empty() && scheme->per_channel != schemes.front()->per_channel) {
        const LayerInfo& first = inputs.layers[static_cast<size_t>(choice.layers.front())];
        builder->fault(
            fmt::format("the weights of '{}' have the strategy {}, those of '{}' have {}: a model "
                        "has a single strategy, use the same one",
                        first.name, strategy(*schemes.front()), layer.name, strategy(*scheme)));
        return {};
      }
      // Each scheme reports its faults once, not once per layer.
      if (std::find(schemes.begin(), schemes.end(), scheme) == schemes.end())
        for (const Fault& fault : scheme->unsupported) builder->fault(fault);
      schemes.push_back(scheme);
      choice.layers.push_back(index);
    }
    if (!schemes.empty())
      choice.per_channel = schemes.front()->per_channel;
    else if (!wanted.empty())
      builder->fault(std::string(kNothing));
    return choice;
  }

  /// Text of the selection: __ALL__ or [a, Linear], with exceptions: "__ALL__ except [head]".
  std::string text() const {
    std::vector<std::string> on, off;
    for (const LayerTarget& target : ignore_)
      if (!target.is_foreign_class()) off.push_back(target.text());
    for (const Rule& rule : rules_)
      for (const LayerTarget& target : rule.targets)
        if (!target.is_foreign_class() && (has_groups_ || !rule.scheme.quantized))
          (rule.scheme.quantized ? on : off).push_back(target.text());
    std::string text = submodules_ ? submodules_->text() : "__ALL__";
    if (has_groups_) text = "[" + first_few(on, kMaxLayersShown) + "]";
    return off.empty() ? text
                       : fmt::format("{} except [{}]", text, first_few(off, kMaxLayersShown));
  }
  /// True if weights have one scale per output channel, as far as is known without a model.
  bool per_channel() const {
    if (!has_groups_) return scheme_.per_channel;
    return std::any_of(rules_.begin(), rules_.end(), [](const Rule& rule) {
      return rule.scheme.per_channel && has_known_target(rule.targets);
    });
  }

 private:
  struct Rule {
    std::vector<LayerTarget> targets;
    LayerScheme scheme;
  };

  void read_schemes(ConfigReader* in) {
    constexpr std::string_view kOverrides = "scheme_overrides";
    const YAML::Node scheme = in->take("scheme");
    // Next to schemes, an absent `weights` means SparseML's default: one scale per tensor.
    if ((scheme.IsDefined() || in->has(kOverrides)) && !in->has("weights"))
      scheme_.per_channel = false;
    if (scheme.IsDefined())
      scheme_ = read_scheme_or_name(scheme, in->path() + ".scheme", LayerScheme(), in);
    const YAML::Node overrides = in->take(kOverrides);
    if (!overrides.IsDefined()) return;
    if (!overrides.IsMap())
      return in->refuse(kOverrides, "must be a map from names of layers and classes to schemes");
    for (const auto& pair : overrides) {
      Rule rule;
      rule.targets.emplace_back(pair.first, kOverrides, in);
      rule.scheme = read_scheme_or_name(
          pair.second, fmt::format("{}.{}.{}", in->path(), kOverrides, rule.targets.front().text()),
          scheme_, in);
      rules_.push_back(std::move(rule));
    }
  }
  void read_groups(ConfigReader* in) {
    constexpr std::string_view kGroups = "config_groups";
    has_groups_ = in->has(kGroups);
    const YAML::Node groups = in->take(kGroups);
    if (!has_groups_) return;
    if (!groups.IsMap() || groups.size() == 0)
      return in->refuse(
          kGroups, "must be a map of groups, each with targets, weights and input_activations");
    for (const auto& pair : groups) {
      const std::string name = pair.first.IsScalar() ? pair.first.Scalar() : "?";
      ConfigReader group(pair.second, fmt::format("{}.{}.{}", in->path(), kGroups, name),
                         in->document(), in->faults());
      Rule rule;
      group.require("targets");
      rule.targets = read_layer_targets(&group, "targets");
      rule.scheme = read_layer_scheme(&group, SchemeForm::kConfigGroup);
      group.done();
      rules_.push_back(std::move(rule));
    }
  }
  /// Returns the scheme of a layer, or null if it is not quantized.
  const LayerScheme* scheme_of(const LayerInfo& layer,
                               const std::vector<int64_t>& weight_sizes) const {
    for (const LayerTarget& target : ignore_)
      if (target.match(layer, weight_sizes) > 0) return nullptr;
    // With groups, a layer without a group is not quantized. Else `scheme` is the default.
    const LayerScheme* best = has_groups_ ? nullptr : &scheme_;
    size_t narrowest = 0;
    for (const Rule& rule : rules_)
      for (const LayerTarget& target : rule.targets) {
        const size_t match = target.match(layer, weight_sizes);
        // The first rule wins among equally specific ones.
        if (match <= narrowest) continue;
        narrowest = match;
        best = &rule.scheme;
      }
    return best != nullptr && best->quantized ? best : nullptr;
  }
  void check_without_model(TimelineBuilder* builder) const {
    std::vector<const LayerScheme*> schemes;
    // Without a model any layer might have any of the schemes, so all of them are checked.
    if (!has_groups_) schemes.push_back(&scheme_);
    for (const Rule& rule : rules_)
      if (has_known_target(rule.targets)) schemes.push_back(&rule.scheme);
    bool quantizes = false;
    for (const LayerScheme* scheme : schemes) {
      for (const Fault& fault : scheme->unsupported) builder->fault(fault);
      quantizes = quantizes || scheme->quantized;
    }
    if (!quantizes) builder->fault(std::string(kNothing));
  }
  /// Refuses names that match nothing. Adds a note about classes that are never quantized.
  void check_targets(TimelineBuilder* builder) const {
    const auto& layers = builder->inputs().layers;
    const auto& params = builder->inputs().params;
    std::vector<std::string> foreign;
    for (const LayerTarget* target : all_targets()) {
      const bool is_in = params && target->is_in(layers, *params);
      if (target->is_foreign_class() && !is_in) {
        foreign.push_back(target->text());
      } else if (params && !is_in) {
        const std::string message = no_module_message(*target, layers);
        strict_ ? builder->fault(target->location().fault(message)) : builder->warn(message);
      }
    }
    if (!foreign.empty())
      builder->note(fmt::format("only linear layers and convolutions are quantized: {} {} none",
                                first_few(foreign, kMaxLayersShown),
                                foreign.size() == 1 ? "is" : "are"));
  }
  /// All entries whose names must exist in the model.
  std::vector<const LayerTarget*> all_targets() const {
    std::vector<const LayerTarget*> all;
    for (const LayerTarget& target : ignore_) all.push_back(&target);
    for (const Rule& rule : rules_)
      for (const LayerTarget& target : rule.targets) all.push_back(&target);
    return all;
  }

  std::optional<ParamSelector> submodules_;
  std::vector<LayerTarget> ignore_;
  LayerScheme scheme_;  ///< of layers that no rule names; not used with groups
  std::vector<Rule> rules_;
  bool has_groups_ = false;
  bool strict_ = true;
};

struct QuantizationOptions {
  Window window;                  ///< only a start
  bool start_is_default = false;  ///< the recipe gives no start
  QuantizedLayers layers;
  std::optional<TrainTime> observers_off;      ///< step from which input ranges stay
  std::optional<TrainTime> batch_norm_frozen;  ///< step from which batch statistics stay
};

/// Fake-quantizes layers from its start on: weights and inputs are rounded to int8 values. It has
/// no end.
class QuantizationModifier final : public ModifierWith<QuantizationOptions> {
 public:
  using ModifierWith::ModifierWith;

  void place_in(StageSpan* stage) override {
    stage->place(&options_.window);
    stage->place(&options_.observers_off);
    stage->place(&options_.batch_norm_frozen);
  }
  std::string summary() const override {
    const std::string layers = options_.layers.text();
    return fmt::format("quantizes {} to int8, weights {}",
                       layers == "__ALL__" ? "all layers" : layers,
                       options_.layers.per_channel() ? "per channel" : "per tensor");
  }
  void compile(TimelineBuilder* builder) const override {
    if (options_.start_is_default)
      builder->note_default(
          "start_epoch",
          "-1, the run's start; input ranges follow the inputs of training, there "
          "is no calibration before it,");
    const int64_t first = builder->step_of(*options_.window.start);
    const auto step_from = [&](std::string_view key, const std::optional<TrainTime>& moment) {
      if (!moment) return std::optional<int64_t>();
      const int64_t step = builder->step_of(*moment);
      if (step < first)
        builder->fault(fmt::format("{} has {} at step {}, before its start at step {}", tag(), key,
                                   step, first));
      return std::optional<int64_t>(step);
    };
    auto observers_off = step_from("disable_quantization_observer", options_.observers_off);
    // Ranges of inputs come from training steps alone, so at least one step must observe.
    if (observers_off == first) {
      ++*observers_off;
      builder->warn(
          "disable_quantization_observer is at its start: ranges of inputs are those of one step; "
          "set it an epoch later");
    }
    const auto batch_norm_frozen = step_from("freeze_bn_stats", options_.batch_norm_frozen);
    QuantizedLayers::Choice choice = options_.layers.choose(builder);
    const int weights = builder->claim_quantization({.first_step = first,
                                                     .layers = std::move(choice.layers),
                                                     .per_channel = choice.per_channel,
                                                     .observers_off = observers_off,
                                                     .batch_norm_frozen = batch_norm_frozen},
                                                    options_.layers.text());
    builder->add(first, ActionKind::kQuantize, 0, weights);
    if (observers_off) builder->add(*observers_off, ActionKind::kFreezeObservers, 0, weights);
    if (!batch_norm_frozen) return;
    builder->add(*batch_norm_frozen, ActionKind::kFreezeBatchNorm, 0, weights);
    const auto& layers = builder->inputs().layers;
    // Whether the model has batch normalisation is only known with a model.
    if (builder->inputs().params &&
        std::none_of(layers.begin(), layers.end(),
                     [](const auto& layer) { return layer.has_batch_norm; }))
      builder->warn("freeze_bn_stats has no effect: the model has no batch normalisation");
  }
};

void read_later(ConfigReader* in, std::string_view name, std::string_view help,
                std::optional<TrainTime>* moment) {
  std::optional<TrainTime> read;
  read_moment(in,
              {.name = name, .help = help, .is_required = false, .minus_one = MinusOne::kRunEnd},
              &read);
  if (read && !read->is_run_end()) *moment = read;  // -1 means never
}

/// Reads SparseML's keys for layer outputs and embeddings. Here outputs are never rounded; inputs
/// and weights always are, for each layer separately. Other values are refused.
void read_output_keys(ConfigReader* in) {
  for (const std::string_view key : {"quantize_conv_activations", "quantize_linear_activations",
                                     "quantize_embedding_activations"}) {
    if (!is_written(*in, key)) continue;
    const YAML::Node node = in->take(key);
    if (!node.IsDefined()) continue;
    const std::string text = node.IsScalar() ? node.Scalar() : "";
    if (parse_bool(text) == false || text == "0") continue;
    in->refuse(key, "may only be false: outputs of layers are not rounded, their inputs are");
  }
  for (const std::string_view key : {"quantize_embeddings", "exclude_batchnorm"})
    if (is_written(*in, key)) in->take(key);  // neither kind of layer is quantized here
}

/// Key of SparseML with only one allowed value. why: the reason, and what to do instead.
struct FixedKey {
  std::string_view key, value, why;
};
constexpr FixedKey kFixedKeys[] = {
    {"num_calibration_steps", "0",
     "there is no calibration before training: input ranges follow the inputs of training, until "
     "disable_quantization_observer_epoch"},
    {"post_oneshot_calibration", "false", "there is no calibration after training"},
    {"model_fuse_fn_name", "no_fuse", "layers are quantized one by one, none are fused"},
    {"model_fuse_fn_kwargs", "null", "layers are quantized one by one, none are fused"},
    {"activation_bits", "8", "layers are rounded to int8"},
    {"weight_bits", "8", "layers are rounded to int8"},
    {"reduce_range", "false", "all 8 bits are used"},
    {"tensorrt", "false", "inputs have a zero point"},
    {"activation_qconfig_kwargs", "null", "input ranges are a moving average over steps"},
    {"weight_qconfig_kwargs", "null", "scales follow the largest magnitudes of the weights"},
};

/// Text of a scalar. An empty map, `none` and `None` mean null, as in SparseML.
std::string plain_text(const YAML::Node& node) {
  if (node.IsMap() && node.size() == 0) return "null";
  const std::string text = node.IsScalar() ? node.Scalar() : "a map or list";
  return text == "None" || text == "none" ? "null" : text;
}

void read_fixed_keys(ConfigReader* in) {
  for (const auto& [key, value, why] : kFixedKeys) {
    if (!is_written(*in, key)) continue;
    const YAML::Node node = in->take(key);
    if (!node.IsDefined()) continue;
    const std::string text = plain_text(node);
    // The same value in another spelling is accepted, such as 0 and 0.0.
    const bool is_same = text == value || text == "null" ||
                         (parse_bool(text) && parse_bool(text) == parse_bool(value)) ||
                         (parse_number(text) && parse_number(text) == parse_number(value));
    if (!is_same)
      in->refuse(key, fmt::format("is {}, it may only be {} or omitted: {}", text, value, why));
  }
}

/// Reads SparseML's lists of module types. Types that are never quantized may be excluded. A type
/// that is excluded may also be listed as quantizable.
void read_module_types(ConfigReader* in) {
  std::vector<std::string> excluded, custom;
  const auto read = [&](std::string_view key, std::vector<std::string>* types) {
    if (is_written(*in, key)) in->read(key, types, "");
  };
  read("exclude_module_types", &excluded);
  read("custom_quantizable_module_types", &custom);
  for (const std::string& type : excluded)
    if (type.starts_with("Linear") || type.starts_with("Conv"))
      in->refuse("exclude_module_types", fmt::format("holds {}, and nothing else is quantized: "
                                                     "name the layers that shall be, in submodules",
                                                     type));
  for (const std::string& type : custom)
    if (std::find(excluded.begin(), excluded.end(), type) == excluded.end())
      in->refuse(
          "custom_quantizable_module_types",
          fmt::format("holds {}: only linear layers and convolutions can be quantized", type));
}

}  // namespace

Modifiers read_quantization(ConfigReader* in, const SourceLocation& location) {
  QuantizationOptions options;
  options.start_is_default = read_start(in, "start of quantization", &options.window);
  options.layers.read(in);
  read_later(in, "disable_quantization_observer", "moment from which ranges are frozen",
             &options.observers_off);
  read_later(in, "freeze_bn_stats",
             "moment from which running statistics of batch normalisation are frozen",
             &options.batch_norm_frozen);
  read_no_end(in, "once on, quantization stays on");
  read_output_keys(in);
  read_fixed_keys(in);
  read_module_types(in);
  in->done();
  return one_modifier<QuantizationModifier>(std::move(options), *in, location);
}

}  // namespace lockstep::recal
