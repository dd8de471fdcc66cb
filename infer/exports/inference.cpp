#include "infer/exports/inference.h"

#include <algorithm>
#include <array>
#include <filesystem>

#include <ATen/core/grad_mode.h>
#include <fmt/format.h>
#include <torch/csrc/jit/api/module.h>
#include <yaml-cpp/yaml.h>

#include "base/error.h"
#include "base/log.h"
#include "coord/callback_types.h"
#include "daemon/config/checkpoint_metadata.h"
#include "daemon/config/overrides.h"
#include "daemon/config/program.h"
#include "daemon/config/run_config.h"
#include "estimator/estimator.h"
#include "estimator/open_plugin.h"
#include "infer/exports/checkpoint_model.h"
#include "infer/exports/export.h"
#include "infer/exports/formats.h"
#include "infer/sparse/onnx_graph.h"
#include "recal/quantization/int8_rounding.h"

// Reads two kinds of files: run files, of which most sections are ignored, and inferer.json. Feeds
// are resolved in steps: arguments, names, files of feeds, data sets.
namespace lockstep::exports {
namespace {

using infer::FeedSection;

/// Opens the existing plug-ins, which may contain callbacks and data sets. The network's code is
/// not needed.
void open_those_there(const std::vector<std::string>& plugins, const YamlDocument& document) {
  for (const std::string& path : plugins) try {
      (void)estimator::open_plugin(path_beside(document, path).string());
    } catch (const Error& fault) {
      if (fault.code() != ExitCode::kInputMissing) throw;
      log::warning("infer", std::string(fault.what()) + ": skipped");
    }
}

void read_plugins(ConfigReader* in) {
  std::vector<std::string> plugins;
  in->read("plugins", &plugins, "shared objects with callbacks or data sets");
  open_those_there(plugins, in->document());
}

std::vector<std::string> texts_of(const YAML::Node& node) {
  if (node.IsScalar()) return {node.Scalar()};
  std::vector<std::string> texts;
  for (const YAML::Node& each : node)
    if (each.IsScalar()) texts.push_back(each.Scalar());
  return texts;
}

/// True if the callback's modes (default: its type's) include "infer".
bool runs_in_inference(const std::string& name, const YAML::Node& callback) {
  std::vector<std::string> modes;
  if (callback.IsMap() && callback["modes"].IsDefined()) {
    modes = texts_of(callback["modes"]);
  } else {
    const bool says_type = callback.IsMap() && callback["type"].IsDefined();
    const auto* type =
        coord::callback_types().find(says_type ? callback["type"].as<std::string>("") : name);
    if (type != nullptr) modes = type->modes;
  }
  return std::ranges::count(modes, "infer") > 0;
}

/// Reads the callbacks that run in inference. The code of the others need not exist.
std::vector<coord::WantedCallback> read_callbacks(const ConfigReader& in, const YAML::Node& root) {
  YAML::Node wanted(YAML::NodeType::Map);
  if (root["callbacks"].IsDefined() && root["callbacks"].IsMap())
    for (const auto& pair : root["callbacks"])
      if (runs_in_inference(pair.first.as<std::string>(""), pair.second))
        wanted[pair.first] = pair.second;
  return coord::read_callbacks({wanted, "callbacks", in.document(), in.faults()});
}

void read_run_file(const YAML::Node& root, ConfigReader* in, InferConfig* config) {
  read_plugins(in);
  if (in->has("run")) config->run = daemon::read_run_options(in->section("run"));
  config->gpu = daemon::read_gpu_options(in->section("gpu"));
  if (in->has("checkpoint") && !in->is_off("checkpoint"))
    config->checkpoint = checkpoint::read_checkpoint_options(in->section("checkpoint"));
  // Otherwise no page is served.
  if (daemon::find_at_path(root, "metrics.listen").key.IsScalar())
    config->metrics = metrics::read_metrics_options(in->section("metrics"));
  ConfigReader section = in->section("inferer");
  config->inferer = infer::read_inferer_section(&section);
  section.done();
  for (coord::WantedCallback& callback : read_callbacks(*in, root))
    config->inferer.callbacks.push_back(std::move(callback));
}

void read_inferer_file(ConfigReader* in, InferConfig* config) {
  in->read("project_dir", &config->run.project_dir,
           "folder of the run whose models are used; default that of this file");
  read_plugins(in);
  config->gpu = daemon::read_gpu_options(in->section("gpu"));
  config->inferer = infer::read_inferer_section(in);
  in->done();
}

bool names_a_data_set(const FeedSection& feed) {
  return feed.named == "train" || feed.named == "eval";
}

bool brings_its_data(const YAML::Node& root) {
  return std::ranges::any_of(std::array{"data.train.type", "data.eval.type"},
                             [&](const char* path) {
                               const YamlPair type = daemon::find_at_path(root, path);
                               return type.value.IsScalar() && type.value.Scalar() == "estimator";
                             });
}

/// Reads section `data` of the run file. Loads the estimator if that provides the data.
data::DataOptions read_data(ConfigReader* in, const YAML::Node& root, bool needs_train) {
  std::optional<estimator::Estimator> estimator;
  if (brings_its_data(root)) estimator = estimator::Estimator::read(in);
  data::DataOptions options = data::read_data_options(in->section("data"), needs_train);
  if (estimator) estimator->put_into(&options);
  return options;
}

/// True if the text is the path of a file with a section.
bool is_section_file(const std::string& named) {
  const std::string ending = std::filesystem::path(named).extension().string();
  return ending == ".yaml" || ending == ".yml" || ending == ".json";
}

/// Reads feeds from a text other than the run file.
std::vector<FeedSection> feeds_in(const YamlDocument& document, Diagnostics* faults) {
  if (!document.root()) return {};
  return infer::read_feeds(document.root(), "feed", document, faults);
}

/// Reads the feeds of a file. Paths in it are relative to the file.
std::vector<FeedSection> feeds_in_file(const std::string& named, Diagnostics* faults) {
  const YamlDocument document = YamlDocument::load(named, faults);
  std::vector<FeedSection> feeds = feeds_in(document, faults);
  for (FeedSection& feed : feeds) {
    if (feed.named.empty() || names_a_data_set(feed)) continue;
    feed.named = path_beside(document, feed.named).string();
    if (is_section_file(feed.named))
      throw Error(
          ExitCode::kConfig, "infer",
          fmt::format("{}: names {}: a file of feeds must name data, not another file of feeds",
                      named, feed.named));
  }
  return feeds;
}

std::vector<FeedSection> feeds_of_path(const std::string& named, Diagnostics* faults) {
  const std::string section = fmt::format("{{type: files, path: {}}}", daemon::quoted_text(named));
  return feeds_in(YamlDocument::parse("feed", section, faults), faults);
}

/// Resolves names of feeds. `train` and `eval` stay, because they are opened in another way.
std::vector<FeedSection> resolved(const std::vector<FeedSection>& feeds, Diagnostics* faults) {
  std::vector<FeedSection> all;
  for (const FeedSection& feed : feeds) {
    if (feed.named.empty() || names_a_data_set(feed)) {
      all.push_back(feed);
      continue;
    }
    const std::vector<FeedSection> found = is_section_file(feed.named)
                                               ? feeds_in_file(feed.named, faults)
                                               : feeds_of_path(feed.named, faults);
    // A file of feeds may name data, but no further file of feeds (feeds_in_file() refuses it).
    for (const FeedSection& each : found) {
      if (each.named.empty() || names_a_data_set(each))
        all.push_back(each);
      else
        for (FeedSection& data : feeds_of_path(each.named, faults)) all.push_back(std::move(data));
    }
  }
  return all;
}

std::vector<FeedSection> feeds_of_arguments(const std::vector<std::string>& texts,
                                            Diagnostics* faults) {
  std::vector<FeedSection> feeds;
  for (const std::string& text : texts)
    for (FeedSection& feed : feeds_in(YamlDocument::parse("--feed", text, faults), faults))
      feeds.push_back(std::move(feed));
  return feeds;
}

/// Reads section `data` if some feed is `train` or `eval`.
void take_data(const YamlDocument& document, Diagnostics* faults, InferConfig* config) {
  bool needs_data = false, needs_train = false;
  for (const FeedSection& feed : *config->inferer.feeds) {
    needs_data |= names_a_data_set(feed);
    needs_train |= feed.named == "train";
  }
  if (!needs_data) return;
  const YAML::Node& root = document.root();
  if (config->file.empty() || !root["data"].IsDefined())
    throw Error(ExitCode::kUsage, "infer",
                "no inputs are given: give --feed, or --config with a run file that has data.eval "
                "or inferer.feed");
  ConfigReader in(root, "", document, faults);
  config->data = read_data(&in, root, needs_train);
}

void apply_feeds(const std::vector<std::string>& arguments, Diagnostics* faults,
                 InferConfig* config) {
  auto& feeds = config->inferer.feeds;
  if (!arguments.empty()) feeds = feeds_of_arguments(arguments, faults);
  // Default feed: the evaluation data.
  if (!feeds) feeds = {{.named = "eval", .dataset = std::nullopt}};
  feeds = resolved(*feeds, faults);
}

InferConfig read_config(const YamlDocument& document, Diagnostics* faults) {
  InferConfig config{.file = document.file()};
  config.metrics.listen = "off";
  config.run.project_dir = std::filesystem::path(document.file()).parent_path().string();
  // A file with section `run` or `inferer` is a run file; otherwise it is an inferer.json.
  const YAML::Node& root = document.root();
  ConfigReader in(root, "", document, faults);
  if (root["run"].IsDefined() || root["inferer"].IsDefined())
    read_run_file(root, &in, &config);
  else
    read_inferer_file(&in, &config);
  return config;
}

std::unique_ptr<data::Dataset> open_data_set(const FeedSection& feed, const InferConfig& config,
                                             const std::vector<std::string>& class_names) {
  const auto inputs = [&](const data::DatasetPlan& plan) -> data::DatasetInputs {
    return {.seed = config.run.seed,
            .found = plan.find ? plan.find() : "",
            .trained = {.class_names = class_names},
            .use = data::DatasetUse::kInference};
  };
  if (feed.dataset) return feed.dataset->make(inputs(*feed.dataset));
  const data::DataOptions& data = *config.data;
  if (feed.named == "train") return data.open_train(inputs(data.train));
  if (!data.eval)
    throw Error(ExitCode::kConfig, "infer",
                config.file + ": 'data.eval' is missing: give --feed, or inferer.feed");
  return data.open_eval(inputs(*data.eval));
}

}  // namespace

InferConfig load_infer_config(const std::string& file, const std::vector<std::string>& feeds) {
  daemon::add_all_types();
  Diagnostics faults;
  const YamlDocument document =
      file.empty() ? YamlDocument::parse("", "{}", &faults) : YamlDocument::load(file, &faults);
  if (faults.empty() && !document.root().IsMap())
    faults.add(document.fault_at(document.root(), "the file must be a map of keys"));
  faults.throw_if_any("infer");
  InferConfig config = read_config(document, &faults);
  config.file = file;
  apply_feeds(feeds, &faults, &config);
  faults.throw_if_any("infer");
  take_data(document, &faults, &config);
  faults.throw_if_any("infer");
  return config;
}

std::unique_ptr<infer::DataFeeder> open_feeds(const InferConfig& config,
                                              const std::vector<std::string>& class_names) {
  std::vector<std::unique_ptr<infer::DataFeeder>> feeders;
  for (const FeedSection& feed : *config.inferer.feeds)
    feeders.push_back(std::make_unique<infer::DatasetFeeder>(
        open_data_set(feed, config, class_names), config.inferer.batch_size));
  if (feeders.size() == 1) return std::move(feeders.front());
  return std::make_unique<infer::ListFeeder>(std::move(feeders));
}

namespace fs = std::filesystem;
using infer::IoNode;
using infer::LoadedNetwork;

/// Reads the weights that the run's evaluations used: the averages, if they used these.
static CheckpointModel as_evaluated(const std::string& where) {
  CheckpointModel saved = read_checkpoint_model(where);
  return evaluated_averages(saved.settings) ? read_checkpoint_model(saved.prefix, /*ema=*/true)
                                            : saved;
}

/// Describes input and output; the first dimension is the batch.
static infer::IoNodes nodes_of(const CheckpointNetwork& network, const std::string& input) {
  IoNode in{.name = input, .shape = {IoNode::kAny}, .dtype = network.input_dtype};
  in.shape.insert(in.shape.end(), network.input_shape.begin(), network.input_shape.end());
  // For tokens and other outputs, the network alone decides the extents.
  return {{in}, {{.name = "logits", .shape = {IoNode::kAny, network.num_classes}}}};
}

static void move_to(at::Device device, model::Model& model) {
  const at::NoGradGuard no_grad;
  for (const Param& param : model.params()) param.tensor.set_data(param.tensor.to(device));
  model.move_buffers_to(device);
}

/// Rounding of layer inputs by the ranges of a checkpoint. The weights are rounded once.
class SavedRounding final : public LayerHook {
 public:
  /// Rounds the weights of the model, which has the checkpoint's. Throws Error(kBadData) if the
  /// model lacks a quantized layer.
  SavedRounding(const CheckpointModel& saved, const model::Model& model) {
    const at::NoGradGuard no_grad;
    size_t num_found = 0;
    for (const LayerInfo& layer : model.layers()) {
      const auto found = saved.layers.find(layer.name);
      ranges_L_.push_back(found == saved.layers.end() ? recal::InputRanges::Range()
                                                      : found->second.input_range);
      if (found == saved.layers.end()) continue;
      ++num_found;
      const at::Tensor& weight = model.params()[static_cast<size_t>(layer.weight_param)].tensor;
      const bool per_output = found->second.scheme == recal::QuantizationScheme::kPerOutput;
      weight.copy_(recal::round_weight(weight, recal::weight_scales(weight, per_output)));
    }
    if (num_found < saved.layers.size())
      throw Error(ExitCode::kBadData, "infer",
                  fmt::format("{}: its network lacks {} of the {} layers that it quantizes",
                              saved.prefix, saved.layers.size() - num_found, saved.layers.size()));
  }
  at::Tensor input(int64_t layer, const at::Tensor& input) override {
    const recal::InputRanges::Range& range = ranges_L_[static_cast<size_t>(layer)];
    if (range.num_observations == 0) return input;
    return recal::round_input(input, recal::input_scale(range.min, range.max));
  }
  at::Tensor weight(int64_t, const at::Tensor& weight) override { return weight; }

 private:
  std::vector<recal::InputRanges::Range> ranges_L_;
};

/// Uses the rebuilt network. TorchScript is preferred, since engines can optimize it.
static LoadedNetwork of_its_own_code(const CheckpointModel& saved, CheckpointNetwork network) {
  LoadedNetwork loaded{.source = saved.prefix, .step = saved.step};
  const std::optional<std::string> archive = torchscript_archive(saved, network);
  if (archive) {
    loaded.module = infer::load_torchscript(*archive, saved.prefix);
    loaded.nodes = nodes_of(network, infer::input_name(*loaded.module));
    return loaded;
  }
  loaded.nodes = nodes_of(network, "inputs");
  const std::shared_ptr<model::Model> model = std::move(network.model);
  std::shared_ptr<SavedRounding> rounding;
  if (!saved.layers.empty()) {
    rounding = std::make_shared<SavedRounding>(saved, *model);
    model->set_layer_hook(rounding.get());
  }
  // Moves the weights to the inputs' device once; params() refer to the same memory afterwards.
  loaded.forward = [model, rounding](const at::Tensor& inputs_BX) {
    const at::Device device = inputs_BX.device();
    if (model->params().at(0).tensor.device() != device) move_to(device, *model);
    return model->forward(inputs_BX);
  };
  return loaded;
}

[[noreturn]] static void refuse_filling(const CheckpointModel& saved,
                                        const std::string& export_folder, const std::string& what) {
  throw Error(
      ExitCode::kBadData, "infer",
      fmt::format("{}: does not fit the network of {}, which is used instead of its own code: {}",
                  saved.prefix, export_folder, what));
}

/// Copies the checkpoint's tensors over those of the export.
static void fill(const CheckpointModel& saved, LoadedNetwork* loaded) {
  const at::NoGradGuard no_grad;
  size_t num_filled = 0;
  const auto put = [&](const std::string& name, const at::Tensor& live) {
    const auto found = saved.params.find(name);
    if (found == saved.params.end() || found->second.values.sizes() != live.sizes())
      refuse_filling(saved, loaded->source, "it contains no " + name + " of that shape");
    live.copy_(found->second.values);
    ++num_filled;
  };
  for (const auto& param : loaded->module->named_parameters()) put(param.name, param.value);
  for (const auto& buffer : loaded->module->named_buffers()) put(buffer.name, buffer.value);
  if (num_filled != saved.params.size())
    refuse_filling(
        saved, loaded->source,
        fmt::format("it contains {} tensors, the network {}", saved.params.size(), num_filled));
}

/// Opens the run's newest export; without one, the graph in its checkpoint folder.
static LoadedNetwork open_published(const fs::path& checkpoints) {
  try {
    const fs::path models = checkpoints.parent_path() / "saved_models";
    return infer::open_saved_model(infer::newest_saved_model(models),
                                   daemon::version_facts().version);
  } catch (const Error& fault) {
    if (fault.code() != ExitCode::kInputMissing) throw;
    return infer::open_inference_graph(checkpoints);
  }
}

/// Uses a graph that the run published. `fault`: why the network's own code is not usable.
static LoadedNetwork of_published_graph(const CheckpointModel& saved, const Error& fault) {
  std::optional<LoadedNetwork> loaded;
  try {
    loaded = open_published(fs::path(saved.prefix).parent_path());
  } catch (const Error& other) {
    if (other.code() != ExitCode::kInputMissing) throw;
    // Report the original fault; that no graph exists either is only added.
    Error told = fault;
    told.append(
        "; a run with an export needs no code, but this one has neither saved_models nor "
        "checkpoints/inference_graph");
    throw told;
  }
  if (!saved.layers.empty())
    throw Error(ExitCode::kUsage, "infer",
                fmt::format("{}: is quantized, so its network needs its own code, which was not "
                            "found ({}); use --saved_model",
                            saved.prefix, fault.what()));
  fill(saved, &*loaded);
  log::info("infer", fmt::format("{}: the network's code was not found; using the graph of {} with "
                                 "the weights of the checkpoint",
                                 saved.prefix, loaded->source));
  loaded->source = saved.prefix;
  loaded->step = saved.step;
  return *std::move(loaded);
}

/// Converts the network to ONNX in memory.
static infer::OnnxGraph graph_of(const CheckpointModel& saved, const CheckpointNetwork& network) {
  PortableNetwork layers = portable(*network.model, network.input_shape, network.num_classes,
                                    is_in_python(*network.model));
  layers.quantized = quantized_layers(saved);
  return infer::read_onnx(onnx_bytes(layers), saved.prefix, "");
}

static LoadedNetwork network_of(const CheckpointModel& saved, const std::string& run_file,
                                bool with_graph) {
  try {
    CheckpointNetwork own = rebuild_network(saved, NetworkUse::kInference, run_file);
    std::shared_ptr<const infer::OnnxGraph> graph;
    if (with_graph) graph = std::make_shared<infer::OnnxGraph>(graph_of(saved, own));
    LoadedNetwork network = of_its_own_code(saved, std::move(own));
    network.graph = std::move(graph);
    return network;
  } catch (const Error& fault) {
    // Only missing code leads to the published graph, which is no ONNX. Damage is always an error.
    const bool lacks_code =
        fault.code() == ExitCode::kInputMissing || fault.code() == ExitCode::kUsage;
    if (!lacks_code || with_graph) throw;
    return of_published_graph(saved, fault);
  }
}

LoadedNetwork open_checkpoint(const std::string& where, const std::string& run_file,
                              bool with_graph) {
  const CheckpointModel saved = as_evaluated(where);
  LoadedNetwork network = network_of(saved, run_file, with_graph);
  network.class_names = daemon::classes_of_text(saved.class_names);
  return network;
}

}  // namespace lockstep::exports
