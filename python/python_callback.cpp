#include "python/python_callback.h"

#include <memory>
#include <utility>

#include "metrics/tensorboard/event_file.h"
#include "python/host.h"

namespace lockstep::python {
// Converts maps of the coordinator to Python values and back. Tensors are not copied. The user's
// object lives in lockstep_glue, which calls it and collects its scalars.
namespace {

Value call_callback(const char* function, const List& arguments) {
  return call(function, arguments, ExitCode::kConfig);
}

std::vector<std::string> texts_of(const Value& value) {
  std::vector<std::string> texts;
  for (const Value& text : value.as_list()) texts.push_back(text.as_text());
  return texts;
}

Value value_of(const coord::DataMap& data);

struct ToValue {
  Value operator()(const at::Tensor& tensor) const { return tensor; }
  Value operator()(const std::vector<std::string>& texts) const {
    return List(texts.begin(), texts.end());
  }
  Value operator()(const std::shared_ptr<const coord::DataMap>& map) const {
    return value_of(*map);
  }
};

Value value_of(const coord::DataMap& data) {
  Map map;
  for (const auto& [key, value] : data.values())
    map.emplace_back(key, std::visit(ToValue(), value));
  return map;
}

coord::DataMap data_of(const Map& map);

/// Converts a value of one of the three kinds, which lockstep_glue has checked.
coord::DataValue data_value_of(const Value& value) {
  if (value.is_tensor()) return value.as_tensor();
  if (std::holds_alternative<List>(value)) return texts_of(value);
  return std::make_shared<const coord::DataMap>(data_of(value.as_map()));
}

coord::DataMap data_of(const Map& map) {
  coord::DataMap data;
  for (const auto& [key, value] : map) data.put(key, data_value_of(value));
  return data;
}

}  // namespace

PythonCallback::PythonCallback(const PythonArgs& args, const std::string& what) {
  // The interpreter must run before the first call.
  start(args.python);
  const Value made = call_callback("make_callback", {args.path, args.name, args.args, what});
  const List& facts = made.as_list();  // object, incoming, generated, true if on all ranks
  callback_ = facts[0].as_object();
  incoming_ = texts_of(facts[1]);
  generated_ = texts_of(facts[2]);
  run_on_ = facts[3].as_bool() ? coord::RunOn::kAll : coord::RunOn::kRank0;
}

std::optional<coord::DataMap> PythonCallback::on_iteration_end(const coord::DataMap& data) {
  const Value ended = call_callback("end_iteration", {callback_, context_values(), value_of(data)});
  const List& facts = ended.as_list();  // generated values, scalars
  // Scalars are written also if the callback returns nothing.
  write(facts[1].as_list());
  if (facts[0].is_none()) return std::nullopt;
  return data_of(facts[0].as_map());
}

void PythonCallback::call_method(const char* method) {
  const std::string name = method;
  write(call_callback("call_callback", {callback_, name, context_values()}).as_list());
}

/// Arguments of UserCallback.show, in its order.
Value PythonCallback::context_values() const {
  const coord::CallbackContext& now = context();
  const coord::IterationInfo& info = now.iteration_info;
  const auto length = now.number_iterations_per_epoch;
  return List{
      std::string(coord::mode_name(now.mode)),
      now.log_dir.string(),
      now.summary_writer != nullptr,
      now.summary_step,
      length ? Value(*length) : Value(),
      List{info.epoch_number, info.iteration_number, info.execution_time, info.is_last_iteration},
      int64_t{now.rank},
      int64_t{now.world_size}};
}

void PythonCallback::write(const List& scalars) const {
  // Null where no summaries are written.
  if (context().summary_writer == nullptr) return;
  for (const Value& row : scalars) {
    const List& fields = row.as_list();  // tag, value, step
    const metrics::Scalar scalar{.tag = fields[0].as_text(), .value = std::get<double>(fields[1])};
    context().summary_writer->add(fields[2].as_int(), {&scalar, 1});
  }
}

coord::CallbackType python_callback_type() {
  return {.name = "python", .read = [](ConfigReader* in) -> coord::MakeCallback {
            return [args = read_python_args(in), what = in->path()](const coord::Services&) {
              return std::make_unique<PythonCallback>(args, what);
            };
          }};
}

}  // namespace lockstep::python
