#include "infer/exports/checkpoint_model.h"

#include <algorithm>
#include <set>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>
#include <yaml-cpp/yaml.h>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/files/files.h"
#include "base/flags.h"
#include "base/simd/bit_mask.h"
#include "base/tensors/params.h"
#include "base/text.h"
#include "base/yaml/config_reader.h"
#include "base/yaml/yaml_document.h"
#include "checkpoint/format/bundle_reader.h"
#include "checkpoint/format/object_graph.h"
#include "checkpoint/format/saved_values.h"
#include "checkpoint/tools/inspect.h"
#include "daemon/config/preset.h"
#include "daemon/config/renamed_keys.h"
#include "daemon/config/run_config.h"
#include "estimator/estimator.h"
#include "estimator/open_plugin.h"
#include "infer/saved_model.h"
#include "model/networks/model_table.h"
#include "python/python_types.h"

// Model and network of a checkpoint. Reads a checkpoint without the code of its network:
// parameters, masks and quantization follow from the keys alone.
namespace lockstep::exports {
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

/// Reads a required number; throws Error(kBadData) if it is missing or not a single number.
template <typename T>
T read_number(BundleReader* reader, const std::string& key) {
  const std::string name = checkpoint::index_name(key);
  if (reader->find(name) == nullptr) reader->refuse(name, "is missing");
  const at::Tensor value = reader->read(name);
  if (value.numel() != 1) reader->refuse(name, "is not a single number");
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
  if (texts.size() != 1) reader->refuse(name, "is not a single string");
  return texts.front();
}

/// Reads an optional number; nullopt if the checkpoint does not contain it.
template <typename T>
std::optional<T> find_number(BundleReader* reader, const std::string& key) {
  if (reader->find(checkpoint::index_name(key)) == nullptr) return std::nullopt;
  return read_number<T>(reader, key);
}

/// Reads the facts about the run; checkpoints of older versions have fewer of them.
void read_facts(BundleReader* reader, CheckpointModel* model) {
  model->steps_per_epoch = find_number<int64_t>(reader, "_lockstep/sampler/steps_per_epoch");
  model->settings = read_text(reader, "_lockstep/settings");
  model->input_shape = read_text(reader, "_lockstep/data/input_shape");
  model->class_names = read_text(reader, "_lockstep/data/class_names");
  model->num_classes = find_number<int64_t>(reader, "_lockstep/data/num_classes").value_or(0);
}

/// Reads a parameter's mask. `rest`: blocks/0/conv/weight.
CheckpointModel::Param read_param(BundleReader* reader, const at::Tensor& values,
                                  std::string_view rest) {
  const std::string mask_name = std::string(kMasks).append(rest);
  if (reader->find(mask_name) == nullptr) return {values, at::zeros(values.sizes(), at::kBool)};
  const at::Tensor bits = reader->read(mask_name);
  if (bits.scalar_type() != at::kByte || bits.numel() != num_mask_bytes(values.numel()))
    reader->refuse(mask_name,
                   fmt::format("does not have one bit for each of {} weights", values.numel()));
  return {values, pruned_by(bits, values.sizes())};
}

/// Reads a layer's quantization. `folder`: _lockstep/quantization/blocks/0/conv.
CheckpointModel::Quantization read_quantization(BundleReader* reader, const std::string& folder) {
  CheckpointModel::Quantization layer;
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
void require_weights(const BundleReader& reader, const CheckpointModel& model) {
  for (const auto& [name, layer] : model.layers)
    if (!model.params.contains(name + ".weight"))
      reader.refuse(checkpoint::index_name("model/" + slashed(name) + "/weight"),
                    "is missing, although the checkpoint contains its quantization");
}

void require_ema(const std::set<std::string>& names, const std::string& prefix) {
  for (const std::string& name : names)
    if (checkpoint::state_key(name).value_or("").starts_with(kEma)) return;
  throw Error(ExitCode::kUsage, "export",
              fmt::format("{} contains no moving average of the weights (its run had no "
                          "optimizer.ema_decay): remove --ema",
                          prefix));
}

}  // namespace

bool evaluated_averages(const std::string& settings) {
  bool has_averages = false, uses_them = true;
  for (std::string line : split(settings)) {
    // A checkpoint of an earlier version may contain former names of keys.
    line = daemon::with_new_names(line);
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

CheckpointModel read_checkpoint_model(const std::string& where, bool ema) {
  BundleReader reader(checkpoint::save_at(where));
  CheckpointModel model{.prefix = reader.prefix(),
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
      const CheckpointModel::Quantization layer = read_quantization(&reader, folder);
      if (layer.scheme != recal::QuantizationScheme::kNone)
        model.layers.emplace(dotted(folder.substr(kQuantization.size())), layer);
    }
  }
  require_weights(reader, model);
  return model;
}

// Rebuilds a checkpoint's network. The settings in the checkpoint, lines "path=value", become a run
// file again. The usual readers build the network from it, and the tensors are copied into it.

/// Longest list that settings may contain; a larger index means a damaged checkpoint.
constexpr size_t kMaxItems = 4096;

[[noreturn]] static void refuse(const CheckpointModel& saved, const std::string& what) {
  throw Error(ExitCode::kBadData, "export", saved.prefix + ": " + what);
}

/// Returns the number in channels[3]. Throws std::exception if there is none.
static size_t item_of(const std::string& path, size_t bracket) {
  const size_t item = std::stoul(path.substr(bracket + 1));
  if (item >= kMaxItems) throw std::out_of_range(path);
  return item;
}

/// Writes one setting into the tree: model.channels[3]=64 sets item 3 of the list channels in
/// section model. Settings are sorted as texts, so [10] comes before [2] and lists may grow with
/// gaps.
static void place(const std::string& path, const std::string& value, YAML::Node* root) {
  const size_t dot = path.find('.');
  YAML::Node section = dot == std::string::npos ? *root : (*root)[path.substr(0, dot)];
  const std::string key = path.substr(dot == std::string::npos ? 0 : dot + 1);
  const size_t bracket = key.find('[');
  if (bracket == std::string::npos) {
    section[key] = value;
    return;
  }
  const size_t item = item_of(key, bracket);
  YAML::Node list = section[key.substr(0, bracket)];
  while (list.size() < item) list.push_back("");
  list[item] = value;
}

constexpr std::string_view kArgs = "model.args";  ///< arguments of a class in Python
constexpr const char* kArgsHere = "arguments_of_python";

using Json = nlohmann::ordered_json;

/// Finds the place of .channels[3].width in the arguments. Throws std::exception for an invalid
/// path.
static Json* find_argument(const std::string& path, Json* args) {
  for (size_t begin = 0, end; begin < path.size(); begin = end) {
    end = std::min(path.find_first_of(".[", begin + 1), path.size());
    args = path[begin] == '[' ? &(*args)[item_of(path, begin)]
                              : &(*args)[path.substr(begin + 1, end - begin - 1)];
  }
  return args;
}

/// Parses a value that flat_settings() wrote.
static Json argument_of(const std::string& text) {
  if (text == "{}" || text == "[]") return Json::parse(text);
  if (text.starts_with('\'')) return YAML::Load(text).Scalar();
  return Json::parse(python::json_of_plain(text));
}

static bool concerns_network(const std::string& line) {
  return line.starts_with("model.") || line.starts_with("estimator.") ||
         line.starts_with("plugins[") || line.starts_with("plugins=");
}

/// Returns the path under which this process has opened the plug-in `named`, identified by the
/// digest in the settings. If it is not open, returns the path as named: a run file's plug-ins may
/// be next to it.
static std::string opened_path(const CheckpointModel& saved, const std::string& named) {
  for (const estimator::Plugin& plugin : estimator::opened_plugins()) {
    const std::string told = fmt::format("plugin {} sha256={}\n", named, plugin.sha256);
    if ((saved.settings + "\n").find(told) != std::string::npos) return plugin.path;
  }
  return named;
}

/// Returns the sections of the run file that describe the network.
static std::string network_sections(const CheckpointModel& saved) {
  YAML::Node root(YAML::NodeType::Map);
  Json args = Json::object();
  for (const std::string& line : split(saved.settings)) {
    const size_t mark = line.find('=');
    if (mark == std::string::npos || !concerns_network(line)) continue;
    const std::string path = line.substr(0, mark), value = line.substr(mark + 1);
    try {
      if (path.starts_with(kArgs))
        *find_argument(path.substr(kArgs.size()), &args) = argument_of(value);
      else
        place(path, opened_path(saved, value), &root);
    } catch (const std::exception&) {
      refuse(saved, "no network can be built from its settings: " + line);
    }
  }
  if (args.empty()) return YAML::Dump(root);
  // YAML::Dump() would drop the quotes that distinguish texts from numbers.
  root["model"]["args"] = kArgsHere;
  std::string text = YAML::Dump(root);
  return text.replace(text.find(kArgsHere), std::string_view(kArgsHere).size(), args.dump());
}

/// Returns the settings as a document, with `beside` as the file to which paths are relative.
static YamlDocument settings_document(const CheckpointModel& saved, const std::string& beside,
                                      Diagnostics* faults) {
  return YamlDocument::parse(beside.empty() ? "settings" : beside, network_sections(saved), faults);
}

static model::ModelOptions options_of(const CheckpointModel& saved, const std::string& beside) {
  python::add_types();
  estimator::add_types();
  Diagnostics faults;
  const YamlDocument document = settings_document(saved, beside, &faults);
  // The network's type may be a row that a plug-in adds.
  (void)estimator::open_plugins_of(document);
  ConfigReader in(document.root(), "", document, &faults);
  const model::ModelOptions options = estimator::Estimator::read(&in).read_model(&in);
  try {
    faults.throw_if_any("export");
  } catch (const Error& fault) {
    refuse(saved, fmt::format("no network can be built from its settings: {}", fault.what()));
  }
  return options;
}

/// Sets a value at a.b.c, unless a scalar is on the way.
static void place_deep(const std::string& path, const std::string& value, YAML::Node node) {
  size_t begin = 0;
  for (size_t dot; (dot = path.find('.', begin)) != std::string::npos; begin = dot + 1) {
    node.reset(node[path.substr(begin, dot - begin)]);
    if (node.IsScalar()) return;
  }
  node[path.substr(begin)] = value;
}

/// Returns the flags of the checkpoint's run. Choices in its settings (type of optimizer, of
/// network) decide which keys exist, and thus the defaults. Items of lists are not choices.
static flags::Values flags_of(const CheckpointModel& saved) {
  std::vector<std::string> settings;
  YAML::Node root(YAML::NodeType::Map);
  for (const std::string& line : split(saved.settings)) {
    const size_t mark = line.find('=');
    if (mark == std::string::npos) continue;
    settings.push_back(line);
    if (line.find('[') > mark) place_deep(line.substr(0, mark), line.substr(mark + 1), root);
  }
  Diagnostics ignored;
  const auto document = YamlDocument::parse("settings", YAML::Dump(root), &ignored);
  return daemon::flag_values(settings, daemon::fields_read_with(document));
}

static std::vector<int64_t> shape_of(const CheckpointModel& saved) {
  const auto list = nlohmann::json::parse(saved.input_shape, nullptr, false);
  std::vector<int64_t> shape;
  if (!list.is_array())
    refuse(saved, "the shape of its inputs is not a list: " + saved.input_shape);
  for (const auto& extent : list) {
    if (!extent.is_number_unsigned() || extent.get<uint64_t>() > 1'000'000'000)
      refuse(saved, "the shape of its inputs is not a list of counts: " + saved.input_shape);
    shape.push_back(extent.get<int64_t>());
  }
  return shape;
}

static bool is_python_class(const CheckpointModel& saved) {
  return ("\n" + saved.settings + "\n").find("\nmodel.type=python\n") != std::string::npos;
}

static bool says_what_is_needed(const CheckpointModel& saved) {
  return !saved.settings.empty() && !saved.input_shape.empty() && saved.num_classes > 0;
}

static void require_python_file(const CheckpointModel& saved, const std::string& beside) {
  Diagnostics ignored;
  const YamlDocument document = settings_document(saved, beside, &ignored);
  const std::string named = document.root()["model"]["path"].as<std::string>("");
  if (files::is_file(path_beside(document, named))) return;
  throw Error(ExitCode::kInputMissing, "infer",
              fmt::format("{}: the code of its network, {}, was not found: start in the folder "
                          "where the run was started, or name its run file with --config (for an "
                          "export: --set model.path=FILE)",
                          saved.prefix, named));
}

static void require_facts(const CheckpointModel& saved, NetworkUse use) {
  if (is_python_class(saved) && use == NetworkUse::kExport)
    throw Error(ExitCode::kUsage, "export",
                fmt::format("{}: its network is a class in Python: use --format pt2 (torch.export) "
                            "or onnx",
                            saved.prefix));
  const char* const means = saved.settings.empty()
                                ? "it contains no settings of a run"
                                : "it was written before checkpoints contained the shape of their "
                                  "inputs; continue its run, whose next checkpoint does";
  if (!says_what_is_needed(saved))
    throw Error(
        ExitCode::kUsage, "export",
        fmt::format(
            "{}: its network is unknown: {}. --format safetensors and tensorflow need no network",
            saved.prefix, means));
}

/// Runs one forward pass, because only a class in Python itself knows its input type.
static void require_forward(model::Model& model, const std::vector<int64_t>& input_shape,
                            at::ScalarType dtype) {
  const at::NoGradGuard no_grad;
  std::vector<int64_t> shape{1};
  shape.insert(shape.end(), input_shape.begin(), input_shape.end());
  model.set_training(false);
  (void)model.forward(at::zeros(shape, dtype));
}

/// True if the network's code accepts inputs of this type.
static bool accepts(model::Model& model, const std::vector<int64_t>& input_shape,
                    at::ScalarType dtype) {
  try {
    require_forward(model, input_shape, dtype);
    return true;
  } catch (const Error&) {
    return false;
  }
}

/// Builds the network, trying both input types. A checkpoint does not contain the type. No built-in
/// network accepts both numbers and tokens, so one that refuses numbers may accept tokens.
static void make_into(CheckpointNetwork* network, const CheckpointModel& saved, NetworkUse use,
                      const std::string& beside) {
  const model::ModelOptions options = options_of(saved, beside);
  std::optional<flags::Frozen> frozen;  // the network may read flags of the running or ended run
  if (!flags::are_frozen()) frozen.emplace(flags_of(saved));
  std::optional<Error> refusal;
  for (const at::ScalarType dtype : {at::kFloat, at::kLong}) try {
      network->model = options.make({network->input_shape, saved.num_classes, /*seed=*/0, dtype});
      if (is_python_class(saved) && use == NetworkUse::kInference)
        require_forward(*network->model, network->input_shape, dtype);
      network->input_dtype = dtype;
      if (is_python_class(saved) && use == NetworkUse::kInference && dtype == at::kFloat &&
          accepts(*network->model, network->input_shape, at::kLong))
        network->input_dtype = infer::IoNode::kFloatOrInt;
      return;
    } catch (const Error& fault) {
      // kConfig: the network refuses this input type. The first refusal is the one to report.
      if (fault.code() != ExitCode::kConfig) throw;
      if (!refusal) refusal = fault;
    }
  if (is_python_class(saved)) throw Error(*refusal);  // names the user's file and line
  refuse(saved, fmt::format("no network can be built from its settings: {}", refusal->what()));
}

bool names_its_network(const CheckpointModel& saved, NetworkUse use) {
  return says_what_is_needed(saved) && (use != NetworkUse::kExport || !is_python_class(saved));
}

CheckpointNetwork rebuild_network(const CheckpointModel& saved, NetworkUse use,
                                  const std::string& beside) {
  require_facts(saved, use);
  if (is_python_class(saved)) require_python_file(saved, beside);
  CheckpointNetwork network{.input_shape = shape_of(saved), .num_classes = saved.num_classes};
  make_into(&network, saved, use, beside);
  size_t num_filled = 0;
  const auto fill = [&](const std::string& name, const at::Tensor& live) {
    const auto found = saved.params.find(name);
    if (found == saved.params.end())
      refuse(saved, fmt::format("its network needs {}, which it does not contain", name));
    const at::Tensor& values = found->second.values;
    if (values.sizes() != live.sizes() || values.scalar_type() != live.scalar_type())
      refuse(saved, fmt::format("its {} is {} [{}], its network's {} [{}]", name,
                                toString(values.scalar_type()), fmt::join(values.sizes(), ", "),
                                toString(live.scalar_type()), fmt::join(live.sizes(), ", ")));
    const at::NoGradGuard no_grad;
    live.copy_(values);
    ++num_filled;
  };
  for (const Param& param : network.model->params()) fill(param.name, param.tensor);
  for (const model::Buffer& buffer : network.model->buffers()) fill(buffer.name, buffer.tensor);
  if (num_filled != saved.params.size())
    refuse(saved, fmt::format("it contains {} tensors that its network does not have",
                              saved.params.size() - num_filled));
  network.model->set_training(false);
  return network;
}

}  // namespace lockstep::exports
