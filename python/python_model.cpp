#include "python/python_model.h"

#include <fmt/format.h>

#include "model/user_network.h"
#include "python/host.h"

namespace lockstep::python {
// The module lives in Python; its parameters are entered in the table as they are. Forward and
// backward run through autograd, so Python code may run inside a backward pass of this process.
namespace {

// Comparing the parameters takes about 50 us: done in the first steps, then every 100 steps.
constexpr int64_t kFirstLooks = 3, kLookEvery = 100;

Value list_of(const std::vector<int64_t>& numbers) { return List(numbers.begin(), numbers.end()); }

Value call_model(const char* function, const List& arguments) {
  return call(function, arguments, ExitCode::kConfig);
}

}  // namespace

PythonModel::PythonModel(const PythonArgs& args, const model::ModelInputs& data)
    : path_(args.path), seed_(data.seed) {
  start(args.python);
  module_ = call_model("make_model", {args.path, args.name, args.args, data.seed,
                                      list_of(data.input_shape), data.input_dtype == at::kLong})
                .as_object();
  const Value rows = call_model("parameters_of", {module_});
  for (const Value& row : rows.as_list()) {
    const List& fields = row.as_list();  // name, tensor, class of its module
    model::add_param(args.path, fields[0].as_text(), fields[1].as_tensor(), fields[2].as_text(),
                     &table_);
  }
  if (table_.params.empty())
    throw Error(ExitCode::kConfig, "python",
                fmt::format("{}: {} has no parameter that is trained", args.path, args.name));
}

at::Tensor PythonModel::forward(const at::Tensor& inputs_BX) {
  return call_model("forward", {module_, inputs_BX}).as_tensor();
}

at::Tensor PythonModel::own_loss(const at::Tensor& inputs_BX, const at::Tensor& targets_BY) {
  return call_model("own_loss", {module_, inputs_BX, targets_BY}).as_tensor();
}

void PythonModel::begin_forward(const model::ForwardPass& pass) {
  const uint64_t seed = model::seed_default_generators(seed_, pass, device_);
  // Without the top bit: a Value is signed, and the generators take no negative seed.
  (void)call_model("begin_forward", {static_cast<int64_t>(seed >> 1)});
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

void PythonModel::after_backward() {
  // First: until the exception is cleared, every further call fails.
  throw_pending_fault();
  if (++num_backwards_ > kFirstLooks && num_backwards_ % kLookEvery != 0) return;
  // Compares by identity: a parameter that was replaced would silently no longer be trained.
  List tensors;
  for (const Param& param : params()) tensors.emplace_back(param.tensor);
  const Value unlike = call_model("unlike_parameters", {module_, tensors});
  if (unlike.is_none()) return;
  throw Error(
      ExitCode::kConfig, "python",
      fmt::format("{}: in its forward pass the network {}: training would not reach it; change "
                  "weights in place (copy_), and the rest in the constructor",
                  path_, unlike.as_text()));
}

model::ModelType python_model_type() {
  return {"python", [](ConfigReader* in) -> model::MakeModel {
            return [args = read_python_args(in)](const model::ModelInputs& data) {
              return std::make_unique<PythonModel>(args, data);
            };
          }};
}

}  // namespace lockstep::python
