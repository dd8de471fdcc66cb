// Callbacks of the user in Python: plain ones, savers, buffers and KPIs. The user's object lives in
// lockstep_glue/callbacks.py, which calls it and collects its scalars.
#include <utility>

#include <ATen/ops/scalar_tensor.h>

#include "coord/buffer_callback.h"
#include "coord/data_map.h"
#include "coord/eval_metric.h"
#include "coord/saver_callback.h"
#include "metrics/tensorboard/event_file.h"
#include "python/interpreter.h"
#include "python/python_types.h"

namespace lockstep::python {
namespace {

using coord::CallbackContext;
using coord::DataMap;

Value call_callback(const char* function, const List& arguments) {
  return call(function, arguments, ExitCode::kConfig);
}

std::vector<std::string> texts_of(const Value& value) {
  std::vector<std::string> texts;
  for (const Value& text : value.as_list()) texts.push_back(text.as_text());
  return texts;
}

// Converts maps of the coordinator to Python values and back. Tensors are not copied.

Value value_of(const DataMap& data);

struct ToValue {
  Value operator()(const at::Tensor& tensor) const { return tensor; }
  Value operator()(const std::vector<std::string>& texts) const {
    return List(texts.begin(), texts.end());
  }
  Value operator()(const std::shared_ptr<const DataMap>& map) const { return value_of(*map); }
};

Value value_of(const DataMap& data) {
  Map map;
  for (const auto& [key, value] : data.values())
    map.emplace_back(key, std::visit(ToValue(), value));
  return map;
}

DataMap data_of(const Map& map);

/// Converts a value of one of the three kinds, which lockstep_glue has checked.
coord::DataValue data_value_of(const Value& value) {
  if (value.is_tensor()) return value.as_tensor();
  if (std::holds_alternative<List>(value)) return texts_of(value);
  return std::make_shared<const DataMap>(data_of(value.as_map()));
}

DataMap data_of(const Map& map) {
  DataMap data;
  for (const auto& [key, value] : map) data.put(key, data_value_of(value));
  return data;
}

/// Arguments of UserCallback.show, in its order.
Value context_values(const CallbackContext& now) {
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

void write(const CallbackContext& context, const List& scalars) {
  // Null where no summaries are written.
  if (context.summary_writer == nullptr) return;
  for (const Value& row : scalars) {
    const List& fields = row.as_list();  // tag, value, step
    const metrics::Scalar scalar{.tag = fields[0].as_text(), .value = std::get<double>(fields[1])};
    context.summary_writer->add(fields[2].as_int(), {&scalar, 1});
  }
}

/// Object of the user with the facts that it declares.
class UserCallback {
 public:
  UserCallback(Object object, const Map& facts) : object_(std::move(object)), facts_(facts) {}

  const Value& fact(const std::string& name) const {
    for (const auto& [key, value] : facts_)
      if (key == name) return value;
    check(false, "UserCallback.facts() of lockstep_glue lacks " + name);
    return facts_.front().second;
  }
  const std::string& text(const std::string& name) const { return fact(name).as_text(); }
  std::vector<std::string> texts(const std::string& name) const { return texts_of(fact(name)); }
  coord::RunOn run_on() const {
    return fact("on_all").as_bool() ? coord::RunOn::kAll : coord::RunOn::kRank0;
  }
  const Object& object() const { return object_; }

  /// Calls a method without arguments, if the object has it.
  void call_method(const char* method, const CallbackContext& context) const {
    const std::string name = method;
    write(context,
          call_callback("call_callback", {object_, name, context_values(context)}).as_list());
  }

  /// Calls on_iteration_end or process_buffer. None in Python becomes nullopt.
  std::optional<DataMap> process(const CallbackContext& context, const DataMap& data) const {
    const Value done = call_callback("process", {object_, context_values(context), value_of(data)});
    const List& facts = done.as_list();  // generated values, scalars
    // Scalars are written also if the callback returns nothing.
    write(context, facts[1].as_list());
    if (facts[0].is_none()) return std::nullopt;
    return data_of(facts[0].as_map());
  }

 private:
  Object object_;
  Map facts_;
};

/// Base with the user's declarations, whose calls without data also reach the user's object.
template <typename Base>
class OfPython : public Base {
 public:
  template <typename... Args>
  explicit OfPython(UserCallback user, Args&&... args)
      : Base(std::forward<Args>(args)...), user_(std::move(user)) {}

  std::vector<std::string> generated_keys() const override { return user_.texts("generated"); }
  coord::RunOn run_on() const override { return user_.run_on(); }
  std::string stores_as() const override { return user_.text("stores_as"); }
  void begin() override {
    Base::begin();
    user_.call_method("begin", this->context());
  }
  void on_iteration_start() override {
    Base::on_iteration_start();
    user_.call_method("on_iteration_start", this->context());
  }
  void on_epoch_end() override {
    Base::on_epoch_end();
    user_.call_method("on_epoch_end", this->context());
  }
  void end() override {
    Base::end();
    user_.call_method("end", this->context());
  }

 protected:
  const UserCallback& user() const { return user_; }

 private:
  UserCallback user_;
};

class PythonCallback final : public OfPython<coord::Callback> {
 public:
  using OfPython::OfPython;
  std::vector<std::string> incoming_keys() const override { return user().texts("incoming"); }
  std::optional<DataMap> on_iteration_end(const DataMap& data) override {
    return user().process(context(), data);
  }
};

class PythonSaver final : public OfPython<coord::SaverCallback> {
 public:
  using OfPython::OfPython;

 protected:
  void save_sample(const DataMap& sample) override {
    const Value scalars = call_callback("save_sample", {user().object(), context_values(context()),
                                                        save_name().string(), value_of(sample)});
    write(context(), scalars.as_list());
  }
};

class PythonBuffer final : public OfPython<coord::BufferCallback> {
 public:
  using OfPython::OfPython;

 protected:
  std::optional<DataMap> process_buffer(const DataMap& data) override {
    return user().process(context(), data);
  }
};

/// KPIs of a user. The context was set at the start of the iteration.
using PythonKpi = OfPython<coord::KpiEvaluator>;

coord::SampleSaverOptions saver_options(const UserCallback& user) {
  return {.keys = user.texts("incoming"),
          .not_batch_keys = user.texts("not_batch_keys"),
          .save_prefix = user.text("save_prefix"),
          .save_suffix = user.text("save_suffix"),
          .run_on = user.run_on()};
}

coord::BufferOptions buffer_options(const UserCallback& user) {
  return {.keys = user.texts("incoming"),
          .not_batch_keys = user.texts("not_batch_keys"),
          .gather = user.fact("gather").as_bool(),
          .run_on = user.run_on()};
}

std::unique_ptr<coord::Buffer> buffer_of(const UserCallback& user) {
  const std::string& kind = user.text("buffer");
  if (kind == "stats") return std::make_unique<coord::StatsBuffer>();
  if (kind == "ring") return std::make_unique<coord::RingBuffer>(user.fact("capacity").as_int());
  return std::make_unique<coord::ListBuffer>();
}

coord::EvalMetric metric_of(const UserCallback& user) {
  const Object& object = user.object();
  return {.incoming_keys = user.texts("incoming"),
          .num_sums = user.fact("num_sums").as_int(),
          .sums =
              [object](const DataMap& data) {
                return call_callback("kpi_sums", {object, value_of(data)}).as_tensor();
              },
          .values =
              [object](const at::Tensor& sums_S) {
                const Value made = call_callback("kpi_values", {object, sums_S});
                std::vector<coord::EvalValue> values;
                for (const auto& [name, number] : made.as_map())
                  values.push_back({name, at::scalar_tensor(std::get<double>(number),
                                                            at::TensorOptions(at::kDouble))});
                return values;
              }};
}

}  // namespace

std::unique_ptr<coord::Callback> make_python_callback(const PythonArgs& args,
                                                      const std::string& what,
                                                      const coord::Services& services) {
  // The interpreter must run before the first call.
  start(args.python);
  const Value made = call_callback("make_callback", {args.path, args.name, args.args, what});
  const UserCallback user(made.as_list()[0].as_object(), made.as_list()[1].as_map());
  const std::string& kind = user.text("kind");
  if (kind == "saver") return std::make_unique<PythonSaver>(user, saver_options(user));
  if (kind == "buffer")
    return std::make_unique<PythonBuffer>(user, buffer_options(user), buffer_of(user), services);
  if (kind == "kpi") return std::make_unique<PythonKpi>(user, metric_of(user), services);
  return std::make_unique<PythonCallback>(user);
}

coord::CallbackType python_callback_type() {
  return {.name = "python", .read = [](ConfigReader* in) -> coord::MakeCallback {
            return
                [args = read_python_args(in), what = in->path()](const coord::Services& services) {
                  return make_python_callback(args, what, services);
                };
          }};
}

}  // namespace lockstep::python
