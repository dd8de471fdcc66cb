#include "recal/quantization_modifier.h"

#include <algorithm>

#include <fmt/format.h>
#include <yaml-cpp/yaml.h>

#include "recal/modifier_fields.h"
#include "recal/timeline_builder.h"

namespace lockstep::recal {
namespace {

void read_later(YamlFields* in, std::string_view name, std::string_view help,
                std::optional<Moment>* moment) {
  std::optional<Moment> read;
  read_moment(in,
              {.name = name, .help = help, .is_required = false, .minus_one = MinusOne::kRunEnd},
              &read);
  if (read && !read->is_run_end()) *moment = read;  // -1: never
}

void read_weights(YamlFields* in, QuantizationOptions* options) {
  std::string weights = "per_channel";
  in->read_choice("weights", &weights, {"per_channel", "per_tensor"},
                  "a scale per output channel of a weight, or one for all of it");
  options->per_channel = weights == "per_channel";
}

/// Keys of SparseML that may say what holds here anyway: outputs of layers are never rounded,
/// inputs and weights are.
void read_output_keys(YamlFields* in) {
  for (const std::string_view key : {"quantize_conv_activations", "quantize_linear_activations",
                                     "quantize_embedding_activations"}) {
    if (!in->has(key)) continue;
    const YAML::Node node = in->take(key);
    const std::string text = node.IsScalar() ? node.Scalar() : "";
    if (parse_bool(text) == false || text == "0") continue;
    in->fault(key,
              fmt::format("'{}.{}' may only be false: outputs of layers are not rounded, their "
                          "inputs are",
                          in->path(), key));
  }
  if (in->has("quantize_embeddings")) in->take("quantize_embeddings");  // there are none
}

/// Lists of kinds of modules: those that are never quantized may be excluded, and what is excluded
/// may be named as quantizable beside.
void read_module_types(YamlFields* in) {
  std::vector<std::string> excluded, custom;
  const auto read = [&](std::string_view key, std::vector<std::string>* types) {
    if (in->has(key)) in->read(key, types, "");
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

}  // namespace

std::unique_ptr<Modifier> QuantizationModifier::read(YamlFields* in, Place place) {
  QuantizationOptions options;
  read_moment(in,
              {.name = "start",
               .help = "moment from which on layers are quantized",
               .minus_one = MinusOne::kRunStart},
              &options.start);
  if (in->has("submodules")) options.submodules.emplace().read(in, "submodules");
  in->take("submodules");
  read_later(in, "disable_quantization_observer", "moment from which on ranges stay as they are",
             &options.observers_off);
  read_later(in, "freeze_bn_stats",
             "moment from which on running statistics of batch normalisation stay",
             &options.batch_norm_frozen);
  read_weights(in, &options);
  read_no_end(in, "once on, quantization stays on");
  read_output_keys(in);
  read_module_types(in);
  in->done();
  return std::make_unique<QuantizationModifier>(std::move(options), in->path(), std::move(place));
}

void QuantizationModifier::place_in(StageSpan* stage) {
  stage->place(&options_.start);
  stage->place(&options_.observers_off);
  stage->place(&options_.batch_norm_frozen);
}

std::string QuantizationModifier::summary() const {
  return fmt::format("quantizes {} to int8, weights {}",
                     options_.submodules ? options_.submodules->text() : "all layers",
                     options_.per_channel ? "per channel" : "per tensor");
}

void QuantizationModifier::contribute(TimelineBuilder* builder) const {
  const int64_t first = builder->step_of(*options_.start);
  const auto step_from = [&](std::string_view key, const std::optional<Moment>& moment) {
    if (!moment) return std::optional<int64_t>();
    const int64_t step = builder->step_of(*moment);
    if (step < first)
      builder->fault(fmt::format("{} has {} at step {}, before its start at step {}", tag(), key,
                                 step, first));
    return std::optional<int64_t>(step);
  };
  const auto observers_off = step_from("disable_quantization_observer", options_.observers_off);
  if (observers_off == first)
    builder->fault(fmt::format(
        "{} has disable_quantization_observer at step {}, where it starts: ranges of inputs would "
        "never be observed; leave it at least one step later",
        tag(), first));
  const auto batch_norm_frozen = step_from("freeze_bn_stats", options_.batch_norm_frozen);
  const int weights =
      builder->claim_quantization(options_.submodules ? &*options_.submodules : nullptr,
                                  {.first_step = first,
                                   .per_channel = options_.per_channel,
                                   .observers_off = observers_off,
                                   .batch_norm_frozen = batch_norm_frozen});
  builder->add(first, ActionKind::kQuantize, 0, weights);
  if (observers_off) builder->add(*observers_off, ActionKind::kFreezeObservers, 0, weights);
  if (!batch_norm_frozen) return;
  builder->add(*batch_norm_frozen, ActionKind::kFreezeBatchNorm, 0, weights);
  const auto& layers = builder->inputs().layers;
  if (builder->inputs().params && std::none_of(layers.begin(), layers.end(), [](const auto& layer) {
        return layer.has_batch_norm;
      }))
    builder->warn("freeze_bn_stats has no effect: the model has no batch normalisation");
}

}  // namespace lockstep::recal
