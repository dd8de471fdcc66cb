#include "recal/modifiers/modifiers.h"

#include <algorithm>
#include <optional>

#include <fmt/format.h>
#include <yaml-cpp/yaml.h>

#include "recal/modifiers/modifier_fields.h"
#include "recal/quantization/quantized_layers.h"
#include "recal/timeline/timeline_builder.h"

namespace lockstep::recal {
namespace {

struct QuantizationOptions {
  std::optional<TrainTime> start;
  bool start_is_default = false;
  QuantizedLayers layers;
  std::optional<TrainTime> observers_off;      ///< step from which input ranges stay
  std::optional<TrainTime> batch_norm_frozen;  ///< step from which batch statistics stay
};

/// Fake-quantizes layers from its start on: weights and inputs are rounded to int8 values. It has
/// no end.
class QuantizationModifier final : public Modifier {
 public:
  QuantizationModifier(QuantizationOptions options, std::string tag, SourceLocation location)
      : Modifier(std::move(tag), std::move(location)), options_(std::move(options)) {}

  Window window() const override { return {options_.start, std::nullopt}; }
  void place_in(StageSpan* stage) override;
  std::string summary() const override;
  void compile(TimelineBuilder* builder) const override;

 private:
  QuantizationOptions options_;
};

void read_later(ConfigReader* in, std::string_view name, std::string_view help,
                std::optional<TrainTime>* moment) {
  std::optional<TrainTime> read;
  read_moment(in,
              {.name = name, .help = help, .is_required = false, .minus_one = MinusOne::kRunEnd},
              &read);
  if (read && !read->is_run_end()) *moment = read;  // -1 means never
}

/// True if a key is present, even with the value null. Some keys of SparseML do nothing here. They
/// are only taken if present, which keeps them out of lists of known keys.
bool is_written(const ConfigReader& in, std::string_view key) {
  const YAML::Node& map = in.node();
  return map.IsMap() && map[std::string(key)].IsDefined();
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
    in->fault(key,
              fmt::format("'{}.{}' may only be false: outputs of layers are not rounded, their "
                          "inputs are",
                          in->path(), key));
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
      in->fault(key, fmt::format("'{}.{}' is {}, it may only be {} or left out: {}", in->path(),
                                 key, text, value, why));
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
      in->fault(
          "exclude_module_types",
          fmt::format("'{}.exclude_module_types' holds {}, and nothing else is quantized: name "
                      "the layers that shall be, in submodules",
                      in->path(), type));
  for (const std::string& type : custom)
    if (std::find(excluded.begin(), excluded.end(), type) == excluded.end())
      in->fault("custom_quantizable_module_types",
                fmt::format("'{}.custom_quantizable_module_types' holds {}: only linear layers and "
                            "convolutions can be quantized",
                            in->path(), type));
}

void QuantizationModifier::place_in(StageSpan* stage) {
  stage->place(&options_.start);
  stage->place(&options_.observers_off);
  stage->place(&options_.batch_norm_frozen);
}

std::string QuantizationModifier::summary() const {
  const std::string layers = options_.layers.text();
  return fmt::format("quantizes {} to int8, weights {}",
                     layers == "__ALL__" ? "all layers" : layers,
                     options_.layers.per_channel() ? "per channel" : "per tensor");
}

void QuantizationModifier::compile(TimelineBuilder* builder) const {
  if (options_.start_is_default)
    builder->note_default("start_epoch",
                          "-1, the run's start; input ranges follow the inputs of training, there "
                          "is no calibration before it,");
  const int64_t first = builder->step_of(*options_.start);
  const auto step_from = [&](std::string_view key, const std::optional<TrainTime>& moment) {
    if (!moment) return std::optional<int64_t>();
    const int64_t step = builder->step_of(*moment);
    if (step < first)
      builder->fault(fmt::format("{} has {} at step {}, before its start at step {}", tag(), key,
                                 step, first));
    return std::optional<int64_t>(step);
  };
  const auto observers_off = step_from("disable_quantization_observer", options_.observers_off);
  // Ranges of inputs come from training steps alone, so at least one step must observe.
  if (observers_off == first)
    builder->fault(fmt::format(
        "{} has disable_quantization_observer at step {}, where it starts: ranges of inputs would "
        "never be observed; leave it at least one step later",
        tag(), first));
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
  if (builder->inputs().params && std::none_of(layers.begin(), layers.end(), [](const auto& layer) {
        return layer.has_batch_norm;
      }))
    builder->warn("freeze_bn_stats has no effect: the model has no batch normalisation");
}

}  // namespace

Modifiers read_quantization(ConfigReader* in, const SourceLocation& location) {
  QuantizationOptions options;
  options.start_is_default = lacks_moment(*in, "start");
  read_moment(in,
              {.name = "start",
               .help = "moment from which on layers are quantized",
               .minus_one = MinusOne::kRunStart,
               .is_minus_one_by_default = true},
              &options.start);
  options.layers.read(in);
  read_later(in, "disable_quantization_observer", "moment from which on ranges stay as they are",
             &options.observers_off);
  read_later(in, "freeze_bn_stats",
             "moment from which on running statistics of batch normalisation stay",
             &options.batch_norm_frozen);
  read_no_end(in, "once on, quantization stays on");
  read_output_keys(in);
  read_fixed_keys(in);
  read_module_types(in);
  in->done();
  return one_modifier<QuantizationModifier>(std::move(options), *in, location);
}

}  // namespace lockstep::recal
