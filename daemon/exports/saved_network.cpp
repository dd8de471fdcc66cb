#include "daemon/exports/saved_network.h"

#include <algorithm>
#include <filesystem>
#include <optional>
#include <sstream>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>
#include <yaml-cpp/yaml.h>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/flags.h"
#include "base/yaml/path_beside.h"
#include "base/yaml/yaml_document.h"
#include "daemon/config/preset.h"
#include "daemon/config/run_sections.h"
#include "estimator/estimator.h"
#include "estimator/open_plugin.h"
#include "model/networks/model_table.h"
#include "python/add_types.h"
#include "python/python_args.h"

namespace lockstep::daemon {
namespace {

constexpr size_t kMaxItems = 4096;

[[noreturn]] void refuse(const SavedModel& saved, const std::string& what) {
  throw Error(ExitCode::kBadData, "export", saved.prefix + ": " + what);
}

/// The number of channels[3]. Throws std::exception for a text that is none.
size_t item_of(const std::string& path, size_t bracket) {
  const size_t item = std::stoul(path.substr(bracket + 1));
  if (item >= kMaxItems) throw std::out_of_range(path);
  return item;
}

/// model.channels[3]=64 -> item 3 of the list channels in section model is 64. Settings are sorted
/// as texts, so [10] stands before [2].
void place(const std::string& path, const std::string& value, YAML::Node* root) {
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

constexpr std::string_view kArgs = "model.args";  ///< of a class in Python
constexpr const char* kArgsHere = "arguments_of_python";

using Json = nlohmann::ordered_json;

/// The place of .channels[3].width in the arguments. Throws std::exception for a path that is none.
Json* find_argument(const std::string& path, Json* args) {
  for (size_t begin = 0, end; begin < path.size(); begin = end) {
    end = std::min(path.find_first_of(".[", begin + 1), path.size());
    if (path[begin] == '[')
      args = &(*args)[item_of(path, begin)];
    else
      args = &(*args)[path.substr(begin + 1, end - begin - 1)];
  }
  return args;
}

/// Reads a value that flat_settings() wrote.
Json argument_of(const std::string& text) {
  if (text == "{}" || text == "[]") return Json::parse(text);
  if (text.starts_with('\'')) return YAML::Load(text).Scalar();
  return Json::parse(python::json_of_plain(text));
}

bool concerns_network(const std::string& line) {
  return line.starts_with("model.") || line.starts_with("estimator.") ||
         line.starts_with("plugins[") || line.starts_with("plugins=");
}

/// Where this process has opened the plug-in that the settings name, by the digest that they tell;
/// as named, if it has not: a run file's plug-ins may lie beside it.
std::string opened_path(const SavedModel& saved, const std::string& named) {
  for (const estimator::Plugin* plugin : estimator::opened_plugins()) {
    const std::string told = fmt::format("plugin {} sha256={}\n", named, plugin->sha256);
    if ((saved.settings + "\n").find(told) != std::string::npos) return plugin->path;
  }
  return named;
}

/// What the run file that made the save says of the network.
std::string network_sections(const SavedModel& saved) {
  YAML::Node root(YAML::NodeType::Map);
  Json args = Json::object();
  std::istringstream lines(saved.settings);
  for (std::string line; std::getline(lines, line);) {
    const size_t mark = line.find('=');
    if (mark == std::string::npos || !concerns_network(line)) continue;
    const std::string path = line.substr(0, mark), value = line.substr(mark + 1);
    try {
      if (path.starts_with(kArgs))
        *find_argument(path.substr(kArgs.size()), &args) = argument_of(value);
      else
        place(path, opened_path(saved, value), &root);
    } catch (const std::exception&) {
      refuse(saved, "its settings make no network: " + line);
    }
  }
  if (args.empty()) return YAML::Dump(root);
  root["model"]["args"] = kArgsHere;  // YAML::Dump() drops the quotes that tell texts from numbers
  std::string text = YAML::Dump(root);
  return text.replace(text.find(kArgsHere), std::string_view(kArgsHere).size(), args.dump());
}

/// The settings as a file beside which other files are looked for.
YamlDocument settings_document(const SavedModel& saved, const std::string& beside,
                               Diagnostics* faults) {
  return YamlDocument::parse(beside.empty() ? "settings" : beside, network_sections(saved), faults);
}

model::ModelOptions options_of(const SavedModel& saved, const std::string& beside) {
  python::add_types();
  estimator::add_types();
  Diagnostics faults;
  const YamlDocument document = settings_document(saved, beside, &faults);
  (void)estimator::open_plugins_of(document);
  ConfigReader in(document.root(), "", document, &faults);
  const model::ModelOptions options = estimator::Estimator::read(&in).read_model(&in);
  if (!faults.empty()) {
    try {
      faults.throw_if_any("export");
    } catch (const Error& fault) {
      refuse(saved, fmt::format("its settings make no network: {}", fault.what()));
    }
  }
  return options;
}

/// Puts a value at a.b.c, unless a value stands on the way.
void place_deep(const std::string& path, const std::string& value, YAML::Node node) {
  size_t begin = 0;
  for (size_t dot; (dot = path.find('.', begin)) != std::string::npos; begin = dot + 1) {
    node.reset(node[path.substr(begin, dot - begin)]);
    if (node.IsScalar()) return;
  }
  node[path.substr(begin)] = value;
}

/// The flags of the run that made the save. What it chose (a type of optimizer, of network) says
/// which keys there were, and so their defaults; lists choose nothing.
flags::Values flags_of(const SavedModel& saved) {
  std::vector<std::string> settings;
  YAML::Node root(YAML::NodeType::Map);
  std::istringstream lines(saved.settings);
  for (std::string line; std::getline(lines, line);) {
    const size_t mark = line.find('=');
    if (mark == std::string::npos) continue;
    settings.push_back(line);
    if (line.find('[') > mark) place_deep(line.substr(0, mark), line.substr(mark + 1), root);
  }
  Diagnostics ignored;
  const auto document = YamlDocument::parse("settings", YAML::Dump(root), &ignored);
  return flag_values(settings, fields_read_with(document));
}

std::vector<int64_t> shape_of(const SavedModel& saved) {
  const auto list = nlohmann::json::parse(saved.input_shape, nullptr, false);
  std::vector<int64_t> shape;
  if (!list.is_array()) refuse(saved, "the shape of its inputs is no list: " + saved.input_shape);
  for (const auto& extent : list) {
    if (!extent.is_number_unsigned() || extent.get<uint64_t>() > 1'000'000'000)
      refuse(saved, "the shape of its inputs is no list of counts: " + saved.input_shape);
    shape.push_back(extent.get<int64_t>());
  }
  return shape;
}

bool is_python_class(const SavedModel& saved) {
  return ("\n" + saved.settings + "\n").find("\nmodel.type=python\n") != std::string::npos;
}

bool says_what_is_needed(const SavedModel& saved) {
  return !saved.settings.empty() && !saved.input_shape.empty() && saved.num_classes > 0;
}

void require_python_file(const SavedModel& saved, const std::string& beside) {
  Diagnostics ignored;
  const YamlDocument document = settings_document(saved, beside, &ignored);
  const std::string named = document.root()["model"]["path"].as<std::string>("");
  std::error_code fault;
  if (std::filesystem::is_regular_file(path_beside(document, named), fault)) return;
  throw Error(ExitCode::kInputMissing, "infer",
              fmt::format("{}: the code of its network, {}, is not here: start where the run was "
                          "started, or name its run file with --config",
                          saved.prefix, named));
}

void require_facts(const SavedModel& saved, NetworkUse use) {
  if (is_python_class(saved) && use == NetworkUse::kExport)
    throw Error(
        ExitCode::kUsage, "export",
        fmt::format("{}: its network is a class in Python: write --format safetensors, load "
                    "it there, and go on with torch.jit or torch.onnx",
                    saved.prefix));
  const char* means = saved.settings.empty() ? "it holds no run's settings"
                      : says_what_is_needed(saved)
                          ? nullptr
                          : "it was made before saves held the shape of their inputs; go on with "
                            "its run, whose next save does";
  if (means != nullptr)
    throw Error(ExitCode::kUsage, "export",
                fmt::format("{}: does not say which network it belongs to: {}. --format "
                            "safetensors and tensorflow need no network",
                            saved.prefix, means));
}

/// Copies into the network and says what it does not fit.
class Filling {
 public:
  explicit Filling(const SavedModel& saved) : saved_(saved), num_left_(saved.params.size()) {}

  void fill(const std::string& name, const at::Tensor& live) {
    const auto found = saved_.params.find(name);
    if (found == saved_.params.end())
      refuse(saved_, fmt::format("its network needs {}, which it does not hold", name));
    const at::Tensor& values = found->second.values;
    if (values.sizes() != live.sizes() || values.scalar_type() != live.scalar_type())
      refuse(saved_, fmt::format("its {} is {} [{}], its network's {} [{}]", name,
                                 toString(values.scalar_type()), fmt::join(values.sizes(), ", "),
                                 toString(live.scalar_type()), fmt::join(live.sizes(), ", ")));
    const at::NoGradGuard no_grad;
    live.copy_(values);
    --num_left_;
  }
  void done() const {
    if (num_left_ != 0)
      refuse(saved_, fmt::format("it holds {} tensors that its network does not have", num_left_));
  }

 private:
  const SavedModel& saved_;
  size_t num_left_;
};

/// Which type of inputs a class in Python takes, it alone knows.
void require_forward(model::Model& model, const std::vector<int64_t>& input_shape,
                     at::ScalarType dtype) {
  const at::NoGradGuard no_grad;
  std::vector<int64_t> shape{1};
  shape.insert(shape.end(), input_shape.begin(), input_shape.end());
  model.set_training(false);
  (void)model.forward(at::zeros(shape, dtype));
}

/// A save does not say of what type its inputs are. No network takes both numbers and tokens: what
/// refuses numbers may take tokens.
void make_into(SavedNetwork* network, const SavedModel& saved, const std::string& beside) {
  const model::ModelOptions options = options_of(saved, beside);
  std::optional<flags::Frozen> frozen;  // the network may read flags, of a run that is on or ended
  if (!flags::are_frozen()) frozen.emplace(flags_of(saved));
  std::optional<Error> refusal;
  for (const at::ScalarType dtype : {at::kFloat, at::kLong}) try {
      network->model =
          model::make_model(options, {network->input_shape, saved.num_classes, /*seed=*/0, dtype});
      if (is_python_class(saved)) require_forward(*network->model, network->input_shape, dtype);
      network->input_dtype = dtype;
      return;
    } catch (const Error& fault) {
      if (fault.code() != ExitCode::kConfig) throw;
      if (!refusal) refusal = fault;
    }
  if (is_python_class(saved)) throw Error(*refusal);  // it names the user's file and line
  refuse(saved, fmt::format("its settings make no network: {}", refusal->what()));
}

}  // namespace

bool names_its_network(const SavedModel& saved) {
  return says_what_is_needed(saved) && !is_python_class(saved);
}

SavedNetwork rebuild_network(const SavedModel& saved, NetworkUse use, const std::string& beside) {
  require_facts(saved, use);
  if (is_python_class(saved)) require_python_file(saved, beside);
  SavedNetwork network{.input_shape = shape_of(saved), .num_classes = saved.num_classes};
  make_into(&network, saved, beside);
  Filling filling(saved);
  for (const Param& param : network.model->params()) filling.fill(param.name, param.tensor);
  for (const model::Buffer& buffer : network.model->buffers())
    filling.fill(buffer.name, buffer.tensor);
  filling.done();
  network.model->set_training(false);
  return network;
}

}  // namespace lockstep::daemon
