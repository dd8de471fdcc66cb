// Adapter between torch::nn::Module and Trackable.
#include "checkpoint/objects/torch_objects.h"

#include "base/error.h"
#include "base/tensors/params.h"

namespace lockstep::checkpoint {
namespace {

class TorchModule final : public Trackable {
 public:
  explicit TorchModule(std::shared_ptr<torch::nn::Module> module) : module_(std::move(module)) {}

  StateList state(const TensorNames&) override {
    StateList list = variables();
    for (const auto& named : module_->named_buffers())
      if (named.value().defined())
        list.push_back({.key = slashed(named.key()), .tensor = named.value()});
    return list;
  }

  StateList variables() override {
    StateList list;
    for (const auto& named : module_->named_parameters())
      if (named.value().defined())
        list.push_back({.key = slashed(named.key()), .tensor = named.value()});
    return list;
  }

  std::vector<LatePart> late_parts() override {
    std::vector<LatePart> parts;
    for (const auto& named : module_->named_modules("", /*include_self=*/true))
      if (auto* part = dynamic_cast<DeferredVariables*>(named.value().get()))
        parts.push_back({named.key().empty() ? "" : slashed(named.key()) + "/", part});
    return parts;
  }

 private:
  std::shared_ptr<torch::nn::Module> module_;
};

}  // namespace

std::shared_ptr<Trackable> track_module(std::shared_ptr<torch::nn::Module> module) {
  if (!module) throw Error(ExitCode::kUsage, "checkpoint", "a null module cannot be tracked");
  return std::make_shared<TorchModule>(std::move(module));
}

}  // namespace lockstep::checkpoint
