#include "daemon/exports/saved_model.h"

#include <algorithm>
#include <optional>
#include <set>
#include <sstream>
#include <string_view>

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>

#include "base/bits/bit_mask.h"
#include "base/tensors/params.h"
#include "base/yaml/config_reader.h"
#include "checkpoint/files/state_names.h"
#include "checkpoint/inspect/inspect.h"
#include "checkpoint/reader/bundle_reader.h"
#include "checkpoint/reader/dense_view.h"
#include "daemon/config/renamed_keys.h"

// Reads a checkpoint without the code of its network: parameters, masks and quantization follow
// from the keys alone.
namespace lockstep::daemon {
namespace {

using checkpoint::BundleReader;

constexpr std::string_view kModel = "model/";
constexpr std::string_view kEma = "ema/";
constexpr std::string_view kMasks = "_lockstep/masks/";
constexpr std::string_view kQuantization = "_lockstep/quantization/";
constexpr std::string_view kScheme = "/scheme";

std::string dotted(std::string_view slashed_name) {
  std::string name(slashed_name);
  std::replace(name.begin(), name.end(), '/', '.');
  return name;
}

template <typename T>
/// Reads a required number; throws Error(kBadData) if it is missing or not a single number.
T read_number(BundleReader* reader, const std::string& key) {
  const std::string name = checkpoint::index_name(key);
  if (reader->find(name) == nullptr) reader->refuse(name, "is missing");
  const at::Tensor value = reader->read(name);
  if (value.numel() != 1) reader->refuse(name, "is not one number");
  return value.item<T>();
}

/// Expands a mask's bits to bools; true where the mask prunes.
at::Tensor pruned_by(const at::Tensor& bits, at::IntArrayRef shape) {
  at::Tensor pruned = at::empty(shape, at::kBool);
  auto* flags = pruned.mutable_data_ptr<bool>();
  for (int64_t i = 0; i < pruned.numel(); ++i)
    flags[i] = !is_kept(bits.const_data_ptr<uint8_t>(), i);
  return pruned;
}

/// Reads a text; empty if the checkpoint does not contain it.
std::string read_text(BundleReader* reader, const std::string& name) {
  if (reader->find(name) == nullptr) return "";
  const std::vector<std::string> texts = reader->read_strings(name);
  if (texts.size() != 1) reader->refuse(name, "is not one text");
  return texts.front();
}

template <typename T>
std::optional<T> find_number(BundleReader* reader, const std::string& key) {
  if (reader->find(checkpoint::index_name(key)) == nullptr) return std::nullopt;
  return read_number<T>(reader, key);
}

/// Reads the facts about the run; checkpoints of older versions have fewer of them.
void read_facts(BundleReader* reader, SavedModel* model) {
  model->steps_per_epoch = find_number<int64_t>(reader, "_lockstep/sampler/steps_per_epoch");
  model->settings = read_text(reader, "_lockstep/settings");
  model->input_shape = read_text(reader, "_lockstep/data/input_shape");
  model->class_names = read_text(reader, "_lockstep/data/class_names");
  model->num_classes = find_number<int64_t>(reader, "_lockstep/data/num_classes").value_or(0);
}

/// Reads a parameter's mask. `rest`: blocks/0/conv/weight.
SavedModel::Param read_param(BundleReader* reader, const at::Tensor& values,
                             std::string_view rest) {
  const std::string mask_name = std::string(kMasks).append(rest);
  if (reader->find(mask_name) == nullptr) return {values, at::zeros(values.sizes(), at::kBool)};
  const at::Tensor bits = reader->read(mask_name);
  if (bits.scalar_type() != at::kByte || bits.numel() != num_mask_bytes(values.numel()))
    reader->refuse(mask_name,
                   fmt::format("does not hold one bit for each of {} weights", values.numel()));
  return {values, pruned_by(bits, values.sizes())};
}

/// Reads a layer's quantization. `folder`: _lockstep/quantization/blocks/0/conv.
SavedModel::Quantization read_quantization(BundleReader* reader, const std::string& folder) {
  SavedModel::Quantization layer;
  const auto scheme = read_number<int64_t>(reader, folder + std::string(kScheme));
  if (scheme < 0 || scheme > static_cast<int64_t>(recal::QuantizationScheme::kPerOutput))
    reader->refuse(folder + std::string(kScheme), fmt::format("is {}, which is unknown", scheme));
  layer.scheme = static_cast<recal::QuantizationScheme>(scheme);
  layer.input_range = {read_number<float>(reader, folder + "/input_min"),
                       read_number<float>(reader, folder + "/input_max"),
                       read_number<int64_t>(reader, folder + "/observations")};
  return layer;
}

/// Throws Error(kBadData) for a quantized layer without its weight.
void require_weights(const BundleReader& reader, const SavedModel& model) {
  for (const auto& [name, layer] : model.layers)
    if (!model.params.contains(name + ".weight"))
      reader.refuse(checkpoint::index_name("model/" + slashed(name) + "/weight"),
                    "is missing, although the save holds its quantization");
}

void require_ema(const std::set<std::string>& names, const std::string& prefix) {
  for (const std::string& name : names)
    if (checkpoint::state_key(name).value_or("").starts_with(kEma)) return;
  throw Error(ExitCode::kUsage, "export",
              fmt::format("{} holds no moving average of the weights (its run had no "
                          "optimizer.ema_decay): leave --ema out",
                          prefix));
}

}  // namespace

bool evaluated_averages(const std::string& settings) {
  bool has_averages = false, uses_them = true;
  std::istringstream lines(settings);
  for (std::string line; std::getline(lines, line);) {
    // A checkpoint of an earlier version may contain former names of keys.
    line = with_new_names(line);
    const size_t mark = std::min(line.find('='), line.size());
    const std::string_view key = std::string_view(line).substr(0, mark);
    if (key == "optimizer.ema_decay") has_averages = true;
    if (key == "eval.use_ema" && mark < line.size())  // parsed like the run file's value
      uses_them = parse_bool(line.substr(mark + 1)).value_or(true);
  }
  return has_averages && uses_them;
}

std::string ema_name(std::string_view model_key) {
  return checkpoint::index_name(std::string(kEma).append(model_key.substr(kModel.size())));
}

SavedModel read_saved_model(const std::string& where, bool ema) {
  BundleReader reader(checkpoint::save_at(where));
  SavedModel model{.prefix = reader.prefix(),
                   .step = read_number<int64_t>(&reader, "_lockstep/step")};
  read_facts(&reader, &model);
  checkpoint::DenseView view(&reader);
  const auto& all = view.names();
  const std::set<std::string> names(all.begin(), all.end());
  if (ema) require_ema(names, model.prefix);
  for (const std::string& name : all) {
    const std::string key = checkpoint::state_key(name).value_or("");
    if (key.starts_with(kModel)) {
      const std::string_view rest = std::string_view(key).substr(kModel.size());
      // Only weights with an average are replaced; buffers have none.
      const bool is_averaged = ema && names.contains(ema_name(key));
      const at::Tensor values = view.read(is_averaged ? ema_name(key) : name);
      model.params.emplace(dotted(rest), read_param(&reader, values, rest));
    } else if (key.starts_with(kQuantization) && key.ends_with(kScheme)) {
      const std::string folder = key.substr(0, key.size() - kScheme.size());
      const SavedModel::Quantization layer = read_quantization(&reader, folder);
      if (layer.scheme != recal::QuantizationScheme::kNone)
        model.layers.emplace(dotted(folder.substr(kQuantization.size())), layer);
    }
  }
  require_weights(reader, model);
  return model;
}

}  // namespace lockstep::daemon
