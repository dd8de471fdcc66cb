// Adapter between torch::jit::Module and Trackable.
#include "checkpoint/objects/torch_script.h"

#include "base/tensors/params.h"

namespace lockstep::checkpoint {
namespace {

class ScriptModule final : public Trackable {
 public:
  explicit ScriptModule(torch::jit::Module module) : module_(std::move(module)) {}

  StateList state(const TensorNames&) override {
    StateList list = variables();
    for (const auto& named : module_.named_buffers(/*recurse=*/true))
      add(named.name, named.value, &list);
    return list;
  }

  StateList variables() override {
    StateList list;
    for (const auto& named : module_.named_parameters(/*recurse=*/true))
      add(named.name, named.value, &list);
    return list;
  }

 private:
  static void add(const std::string& name, const at::Tensor& tensor, StateList* list) {
    if (tensor.defined()) list->push_back({.key = slashed(name), .tensor = tensor});
  }

  torch::jit::Module module_;
};

}  // namespace

std::shared_ptr<Trackable> track_script_module(torch::jit::Module module) {
  return std::make_shared<ScriptModule>(std::move(module));
}

}  // namespace lockstep::checkpoint
