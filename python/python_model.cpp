#include "python/python_model.h"

#include <ATen/CPUGeneratorImpl.h>
#include <fmt/format.h>

#include "base/random.h"
#include "python/host.h"

namespace lockstep::python {
namespace {

constexpr int64_t kForwardStream = 11;
constexpr int64_t kCheckedBackwards = 3;  // of the first steps; later, saves look

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
    const List& fields = row.as_list();  // name, tensor, prunable, decayed
    if (fields[2].as_bool())
      table_.layers.push_back(
          {.name = fields[0].as_text().substr(0, fields[0].as_text().rfind('.')),
           .weight_param = static_cast<int64_t>(table_.params.size())});
    table_.params.push_back({.name = fields[0].as_text(),
                             .tensor = fields[1].as_tensor(),
                             .prunable = fields[2].as_bool(),
                             .decayed = fields[3].as_bool()});
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
  const CounterRandom random{seed_, kForwardStream, pass.step};
  at::Generator generator = at::detail::getDefaultCPUGenerator();
  const std::scoped_lock lock(generator.mutex());
  generator.set_current_seed(random.bits(static_cast<uint64_t>(pass.first_sample)));
}

void PythonModel::set_training(bool training) {
  Model::set_training(training);
  (void)call_model("set_training", {module_, training});
}

const std::vector<model::Buffer>& PythonModel::buffers() const {
  buffers_.clear();
  const Value rows = call_model("buffers_of", {module_});
  for (const Value& row : rows.as_list())
    buffers_.push_back({.name = row.as_list()[0].as_text(),
                        .tensor = row.as_list()[1].as_tensor(),
                        .moved_by_forward = row.as_list()[2].as_bool()});
  return buffers_;
}

void PythonModel::move_buffers_to(at::Device device) {
  if (!device.is_cpu()) (void)call_model("move_buffers", {module_, device.str()});
}

void PythonModel::after_backward() {
  throw_pending_fault();
  if (++num_backwards_ > kCheckedBackwards) return;
  List tensors;
  for (const Param& param : params())
    if (param.tensor.requires_grad()) tensors.emplace_back(param.tensor);
  const Value unlike = call_model("unlike_parameters", {module_, tensors});
  if (unlike.is_none()) return;
  throw Error(ExitCode::kConfig, "python",
              fmt::format("{}: in its forward pass the network put another tensor in the place of "
                          "{}: training would not reach it; change weights in place (copy_), or "
                          "before training begins",
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
