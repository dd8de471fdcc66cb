// torch::optim::Optimizer in a Checkpoint: slots under the names of their parameters.

#include <algorithm>

#include <fmt/format.h>

#include "checkpoint/torch_objects.h"
#include "checkpoint/torch_slots.h"

namespace lockstep::checkpoint {
namespace {

class TorchOptimizer final : public Trackable {
 public:
  explicit TorchOptimizer(torch::optim::Optimizer& optimizer)
      : optimizer_(optimizer), slots_(slots_of(optimizer)) {}

  StateList state(const TensorNames& names) override {
    StateList list;
    for_each_param(names, [&](const std::string& name, const at::Tensor& param, const auto&) {
      const auto place = optimizer_.state().find(param.unsafeGetTensorImpl());
      if (place == optimizer_.state().end()) return;
      for (StateEntry& slot : slots_->list(*place->second)) {
        slot.key = name + "/" + slot.key;
        list.push_back(std::move(slot));
      }
    });
    return list;
  }

  void make_saved(const std::function<bool(const std::string&)>& is_saved,
                  const TensorNames& names) override {
    for_each_param(names, [&](const std::string& name, const at::Tensor& param,
                              const torch::optim::OptimizerOptions& options) {
      auto& states = optimizer_.state();
      void* const impl = param.unsafeGetTensorImpl();
      if (states.find(impl) != states.end()) return;
      auto fresh = slots_->fresh(
          param, options, [&](const std::string& slot) { return is_saved(name + "/" + slot); });
      if (!fresh) return;
      const StateList slots = slots_->list(*fresh);
      if (std::any_of(slots.begin(), slots.end(),
                      [&](const StateEntry& slot) { return is_saved(name + "/" + slot.key); }))
        states[impl] = std::move(fresh);
    });
  }

 private:
  template <typename Use>
  void for_each_param(const TensorNames& names, const Use& use) {
    int place = 0;
    for (torch::optim::OptimizerParamGroup& group : optimizer_.param_groups())
      for (const at::Tensor& param : group.params()) {
        const auto name = names.find(param.unsafeGetTensorImpl());
        use(name == names.end() ? fmt::format("param{}", place) : name->second, param,
            group.options());
        ++place;
      }
  }

  torch::optim::Optimizer& optimizer_;
  const std::unique_ptr<TorchSlots> slots_;
};

}  // namespace

std::shared_ptr<Trackable> track_optimizer(torch::optim::Optimizer& optimizer) {
  return std::make_shared<TorchOptimizer>(optimizer);
}

}  // namespace lockstep::checkpoint
