#include "train/callback.h"

namespace lockstep::train {

NamedTable<CallbackType>& callback_types() {
  static NamedTable<CallbackType> types("callback");
  return types;
}

std::vector<MakeCallback> read_callbacks(ConfigReader in) {
  std::vector<MakeCallback> wanted;
  for (const CallbackType* type : callback_types().rows()) {
    if (!in.has(type->name) && !in.lists_fields()) continue;
    ConfigReader section = in.section(type->name);
    wanted.push_back(type->read(&section));
    section.done();
  }
  in.done();
  return wanted;
}

Callbacks::Callbacks(const std::vector<MakeCallback>& wanted) {
  for (const MakeCallback& make : wanted) all_.push_back(make());
}

void Callbacks::begin(const CallbackContext& context) {
  for (const auto& callback : all_) callback->begin(context);
}

void Callbacks::on_step_end(const StepReport& report) {
  for (const auto& callback : all_) callback->on_step_end(report);
}

void Callbacks::on_evaluation_end(int64_t step, const EvalResult& result) {
  for (const auto& callback : all_) callback->on_evaluation_end(step, result);
}

void Callbacks::end() {
  for (const auto& callback : all_) callback->end();
}

}  // namespace lockstep::train
