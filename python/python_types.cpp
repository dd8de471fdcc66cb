#include "python/python_types.h"

#include <algorithm>
#include <memory>
#include <utility>

#include <ATen/ops/tensor.h>
#include <fmt/format.h>
#include <yaml-cpp/yaml.h>
#include <nlohmann/json.hpp>

#include "base/yaml/yaml_document.h"
#include "model/networks/user_network.h"
#include "python/interpreter.h"

// Networks and data sets of the user in Python.
namespace lockstep::python {
// `args` of the run file reach Python as JSON. YAML types are kept: quoted scalars stay texts.
namespace {

using Json = nlohmann::ordered_json;

/// Value of a plain scalar by the run file's YAML rules.
Json value_of_plain(const std::string& text) {
  if (text.empty() || text == "~" || text == "null") return nullptr;
  if (const auto flag = parse_bool(text)) return *flag;
  if (const auto number = parse_integer(text)) return *number;
  if (const auto number = parse_number(text)) return *number;
  return text;
}

Json json_of(const YAML::Node& node) {
  if (node.IsMap()) {
    Json map = Json::object();
    for (const auto& entry : node) map[entry.first.Scalar()] = json_of(entry.second);
    return map;
  }
  if (node.IsSequence()) {
    Json list = Json::array();
    for (const auto& item : node) list.push_back(json_of(item));
    return list;
  }
  if (!node.IsScalar()) return nullptr;
  // yaml-cpp tags quoted scalars with "!": they stay texts.
  return node.Tag() == "!" ? Json(node.Scalar()) : value_of_plain(node.Scalar());
}

// All work is done by lockstep_glue/datasets.py: reading, checking and batching samples, and the
// worker processes. PythonDataset converts arguments and results. A Python error is bad data (exit
// code kBadData).

data::TargetKind kind_of(const std::string& name) {
  if (name == "class") return data::TargetKind::kClass;
  if (name == "soft") return data::TargetKind::kSoft;
  return name == "values" ? data::TargetKind::kValues : data::TargetKind::kTokens;
}

Value call_data(const char* function, const List& arguments) {
  return call(function, arguments, ExitCode::kBadData);
}

/// Reads [inputs, targets, further tensors, names].
data::Samples samples_of(const Value& value) {
  const List& parts = value.as_list();
  data::Samples samples{parts[0].as_tensor(), parts[1].as_tensor()};
  for (const Value& tensor : parts[2].as_list()) samples.more.push_back(tensor.as_tensor());
  for (const Value& name : parts[3].as_list()) samples.names.push_back(name.as_text());
  return samples;
}

// The module lives in Python; its parameters are entered in the table as they are. Forward and
// backward run through autograd, so Python code may run inside a backward pass of this process.

// Comparing the parameters takes about 50 us: done in the first steps, then every 100 steps.
constexpr int64_t kFirstLooks = 3, kLookEvery = 100;

template <typename Item>
Value list_of(const std::vector<Item>& items) {
  return List(items.begin(), items.end());
}

/// Tensors and names of a batch, as lockstep_glue takes them.
Value value_of(const ForwardArguments& arguments) {
  return List{list_of(arguments.tensors), list_of(arguments.names)};
}

Value call_model(const char* function, const List& arguments) {
  return call(function, arguments, ExitCode::kConfig);
}

data::DatasetType python_dataset_type() {
  return {"python", [](ConfigReader* in, data::DatasetUse use) -> data::MakeDataset {
            PythonDatasetOptions options{.args = read_python_args(in)};
            in->read_choice("targets", &options.targets,
                            {"auto", "class", "soft", "values", "tokens"},
                            "python: kind of targets; auto: integers are classes, lists of "
                            "integers tokens, floats values");
            in->read("num_classes", &options.num_classes, between(0, 1e9),
                     "python: number of classes or tokens; 0: the object's num_classes, "
                     "vocab_size or classes");
            in->read("num_workers", &options.num_workers, between(0, 256),
                     "python: reader processes of a rank; 0: the rank itself");
            in->read("iterable", &options.is_iterable,
                     "python: read by iteration, in the object's order; each rank takes its share");
            in->read("samples", &options.num_samples, between(0, 1e12),
                     "python: samples of an epoch of an iterable; 0: its length");
            if (options.num_samples > 0 && !options.is_iterable)
              in->fault("samples", "'" + in->path() +
                                       ".samples' is for iterable data sets: add "
                                       "`iterable: true`, or remove it");
            const char* what = use == data::DatasetUse::kTraining ? "data.train" : "data.eval";
            return [options, what](const data::DatasetInputs& inputs) {
              return std::make_unique<PythonDataset>(options, inputs, what);
            };
          }};
}

model::ModelType python_model_type() {
  return {"python", [](ConfigReader* in) -> model::MakeModel {
            return [args = read_python_args(in)](const model::ModelInputs& data) {
              return std::make_unique<PythonModel>(args, data);
            };
          }};
}

}  // namespace

std::string json_of_plain(const std::string& text) { return value_of_plain(text).dump(); }

PythonArgs read_python_args(ConfigReader* in) {
  PythonArgs all;
  in->require("path");
  in->require("name");
  in->read("path", &all.path, "python: .py file");
  all.path = path_beside(in->document(), all.path).string();
  in->read("name", &all.name, "python: class or factory function");
  const YAML::Node args = in->take("args", "map", "python: keyword arguments");
  if (args.IsDefined() && !args.IsNull()) {
    if (args.IsMap())
      all.args = json_of(args).dump();
    else
      in->fault("args", "'" + in->path() + ".args' must be a map of keyword arguments");
  }
  in->read("python", &all.python,
           "python: interpreter; default the active virtual environment's, then python3, then "
           "the one next to LibTorch");
  return all;
}

PythonDataset::PythonDataset(const PythonDatasetOptions& options, const data::DatasetInputs& inputs,
                             const std::string& what)
    : is_iterable_(options.is_iterable),
      num_workers_(is_iterable_ ? std::min<int64_t>(1, options.num_workers) : options.num_workers) {
  const PythonArgs& args = options.args;
  start(args.python);
  const Value made =
      call_data("make_dataset",
                {args.path, args.name, args.args, options.targets, options.num_classes, inputs.seed,
                 what, inputs.skips_damaged, inputs.own_loss,
                 inputs.use == data::DatasetUse::kInference, is_iterable_, options.num_samples});
  // Object, length, shape, is_tokens, kind, classes, lacks_targets, has a collate_fn, example.
  const List& facts = made.as_list();
  data_ = facts[0];
  num_samples_ = facts[1].as_int();
  spec_.varies = facts[7].as_bool();
  if (inputs.skips_damaged && (is_iterable_ || spec_.varies))
    throw Error(ExitCode::kConfig, "python",
                fmt::format("data.on_error: skip cannot be combined with {} of {}: leave damaged "
                            "samples out in its code",
                            is_iterable_ ? "the iteration" : "the collate_fn", args.name));
  const data::Samples example = samples_of(facts[8]);
  spec_.has_targets = example.names.empty() || !example.names.at(1).empty();
  if (spec_.varies || !example.names.empty() || !example.more.empty())
    spec_.example = data::arguments_of(example, /*with_targets=*/true);
  for (const Value& extent : facts[2].as_list()) spec_.input_shape.push_back(extent.as_int());
  spec_.input_dtype = facts[3].as_bool() ? at::kLong : at::kFloat;
  spec_.target_kind = kind_of(facts[4].as_text());
  spec_.num_classes = facts[5].as_int();
  lacks_targets_ = facts[6].as_bool();
  // Classes and tokens may contain the index that the loss ignores.
  spec_.may_ignore = spec_.has_targets && (spec_.target_kind == data::TargetKind::kClass ||
                                           spec_.target_kind == data::TargetKind::kTokens);
  if (num_workers_ > 0) pool_ = call_data("start_workers", {data_, num_workers_});
}

PythonDataset::~PythonDataset() {
  if (pool_.is_none()) return;
  try {
    (void)call_data("end_workers", {pool_});
  } catch (const Error&) {  // the workers end with this process
  }
}

data::Samples PythonDataset::get(std::span<const int64_t> indices_B, int64_t epoch) const {
  // A tensor, not a list: it is passed without a copy.
  const at::Tensor rows_B =
      at::tensor(at::ArrayRef<int64_t>(indices_B.data(), indices_B.size()), at::kLong);
  const Value read = pool_.is_none() ? call_data("read_samples", {data_, rows_B, epoch})
                                     : call_data("read_samples_by_worker", {pool_, rows_B, epoch});
  if (read.is_none())  // like a killed rank: the run continues when it is started again
    throw Error(ExitCode::kUnavailable, "python",
                "a worker of the data set was killed (out of memory?); start the run again: it "
                "continues from its last checkpoint. data.train.num_workers sets their number");
  data::Samples samples = samples_of(read);
  if (lacks_targets_) samples.targets_BY = at::Tensor();
  return samples;
}

std::string PythonDataset::digest() const { return call_data("digest", {data_}).as_text(); }

PythonModel::PythonModel(const PythonArgs& args, const model::ModelInputs& data)
    : path_(args.path), seed_(data.seed) {
  start(args.python);
  module_ = call_model("make_model",
                       {args.path, args.name, args.args, data.seed, list_of(data.input_shape),
                        data.input_dtype == at::kLong, value_of(data.example)})
                .as_object();
  const Value rows = call_model("parameters_of", {module_});
  for (const Value& row : rows.as_list()) {
    const List& fields = row.as_list();  // name, tensor, class of its module
    model::add_param(args.path, fields[0].as_text(), fields[1].as_tensor(), fields[2].as_text(),
                     &table_);
  }
  const Value found = call_model("quantizable_layers", {module_});
  for (const Value& row : found.as_list()) {
    const List& fields = row.as_list();  // name, index of its weight, has_batch_norm
    table_.layers.push_back({fields[0].as_text(), fields[1].as_int(), fields[2].as_bool()});
  }
  if (table_.params.empty() && !data.may_be_frozen)
    throw Error(ExitCode::kConfig, "python",
                fmt::format("{}: {} has no parameter that is trained", args.path, args.name));
}

at::Tensor PythonModel::forward_of(const ForwardArguments& inputs) {
  return call_model("forward", {module_, value_of(inputs)}).as_tensor();
}

model::OwnLoss PythonModel::own_loss(const ForwardArguments& batch) {
  const Value both = call_model("own_loss", {module_, value_of(batch)});
  const Value& outputs = both.as_list()[1];  // None: the pass gave none
  return {both.as_list()[0].as_tensor(), outputs.is_none() ? at::Tensor() : outputs.as_tensor()};
}

int64_t PythonModel::num_unused_targets() const {
  return call_model("num_unused_targets", {module_}).as_int();
}

void PythonModel::begin_forward(const model::ForwardPass& pass) {
  const uint64_t seed = model::seed_default_generators(seed_, pass, device_);
  // Without the top bit: a Value is signed, and the generators take no negative seed.
  (void)call_model("begin_forward", {static_cast<int64_t>(seed >> 1)});
  // Each time, because train() of an evaluation's end thaws them.
  if (table_.norms.is_frozen()) (void)call_model("freeze_norms", {module_});
}

void PythonModel::set_layer_hook(LayerHook* hook) {
  Model::set_layer_hook(hook);
  *hook_ = hook;
  if (hook == nullptr || std::exchange(layers_call_hook_, true)) return;
  const auto rounded = [now = hook_](const List& arguments) -> Value {
    const at::Tensor& values = arguments[2].as_tensor();  // layer, is_weight, values
    if (*now == nullptr) return values;
    const int64_t layer = arguments[0].as_int();
    return arguments[1].as_bool() ? (*now)->weight(layer, values) : (*now)->input(layer, values);
  };
  (void)call_model("quantize_layers",
                   {module_, std::make_shared<const Function>(Function{rounded})});
}

void PythonModel::set_training(bool training) {
  Model::set_training(training);
  (void)call_model("set_training", {module_, training});
}

std::vector<model::Buffer> PythonModel::look_up(bool are_saved) const {
  std::vector<model::Buffer> found;
  const Value rows = call_model("buffers_of", {module_, are_saved});
  for (const Value& row : rows.as_list())
    found.push_back({.name = row.as_list()[0].as_text(),
                     .tensor = row.as_list()[1].as_tensor(),
                     .moved_by_forward = true});
  return found;
}

const std::vector<model::Buffer>& PythonModel::buffers() const {
  return buffers_ = look_up(/*are_saved=*/true);
}

std::vector<model::Buffer> PythonModel::unsaved_buffers() const {
  return look_up(/*are_saved=*/false);
}

std::vector<std::string> PythonModel::frozen_params() const {
  std::vector<std::string> names;
  const Value all = call_model("frozen_parameters_of", {module_});
  for (const Value& name : all.as_list()) names.push_back(name.as_text());
  return names;
}

void PythonModel::move_buffers_to(at::Device device) {
  device_ = device;
  if (!device.is_cpu()) (void)call_model("move_buffers", {module_, device.str()});
}

Value PythonModel::call_glue(const char* function, List arguments) const {
  arguments.insert(arguments.begin(), module_);
  return call_model(function, arguments);
}

void PythonModel::after_backward() {
  // First: until the exception is cleared, every further call fails.
  throw_pending_fault();
  if (++num_backwards_ > kFirstLooks && num_backwards_ % kLookEvery != 0) return;
  // Compares by identity: a parameter that was replaced would silently no longer be trained.
  List tensors;
  for (const Param& param : params()) tensors.emplace_back(param.tensor);
  const Value unlike = call_model("unlike_parameters", {module_, tensors});
  if (unlike.is_none()) return;
  throw Error(ExitCode::kConfig, "python",
              fmt::format("{}: in its forward pass the network {}: training would not reach it; "
                          "change weights in place (copy_), and everything else in the constructor",
                          path_, unlike.as_text()));
}

/// Kind of a layer by the word of model::kind_name().
static model::LayerKind layer_kind(const std::string& word) {
  int kind = 0;
  while (model::kind_name(static_cast<model::LayerKind>(kind)) != word) ++kind;
  return static_cast<model::LayerKind>(kind);
}

/// Layer that lockstep_glue/chains.py described; it leaves out what has its default.
static model::NetworkLayer layer_of(const Map& facts) {
  model::NetworkLayer layer{.norm_names = model::NormNames::kTorch};
  for (const auto& [name, value] : facts) {
    if (name == "kind") layer.kind = layer_kind(value.as_text());
    if (name == "name") layer.name = value.as_text();
    if (name == "has_bias") layer.has_bias = value.as_bool();
    if (name == "kernel_extent") layer.kernel_extent = value.as_int();
    if (name == "stride") layer.stride = value.as_int();
    if (name == "padding") layer.padding = value.as_int();
    if (name == "groups") layer.groups = value.as_int();
    if (name == "epsilon") layer.epsilon = std::get<double>(value);
  }
  return layer;
}

model::Network PythonModel::chain(size_t num_dims) const {
  const Value found = call_model("chain_of", {module_, static_cast<int64_t>(num_dims)});
  if (std::holds_alternative<std::string>(found))
    throw Error(ExitCode::kUsage, "export",
                fmt::format("{}: its layers do not follow each other in a form that an export "
                            "layer by layer knows: {}; use --format safetensors and load it in "
                            "Python",
                            path_, found.as_text()));
  model::Network layers;
  for (const Value& facts : found.as_list()) layers.push_back(layer_of(facts.as_map()));
  return layers;
}

void add_types() {
  [[maybe_unused]] static const bool added = [] {
    model::model_types().add(python_model_type());
    data::dataset_types().add(python_dataset_type());
    coord::callback_types().add(python_callback_type());
    return true;
  }();
}

}  // namespace lockstep::python
