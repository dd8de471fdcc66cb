// torch::optim::Optimizer in a Checkpoint: slots under the names of their parameters. LibTorch has
// no way to create one slot, so a restore replaces a parameter's whole state object.

#include <algorithm>

#include <fmt/format.h>

#include "checkpoint/objects/torch_objects.h"
#include "checkpoint/objects/torch_slots.h"

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

  /// Creates missing slots. On the first call of a restore, every parameter then has exactly the
  /// slots that the checkpoint has for it. This applies only if the checkpoint has any slot of this
  /// optimizer. Otherwise slots of later steps would remain next to the saved ones.
  void make_saved(const std::function<bool(const std::string&)>& is_saved, const TensorNames& names,
                  bool is_first) override {
    discard_made();
    std::vector<std::pair<void*, State>> fresh;
    bool holds_any = false;
    for_each_param(names, [&](const std::string& name, const at::Tensor& param,
                              const torch::optim::OptimizerOptions& options) {
      State state = slots_->fresh(
          param, options, [&](const std::string& slot) { return is_saved(name + "/" + slot); });
      if (!state) return;  // its slots exist from the start, or it has none
      const std::vector<std::string> slots = names_in(*state);
      const bool is_held = std::any_of(slots.begin(), slots.end(), [&](const std::string& slot) {
        return is_saved(name + "/" + slot);
      });
      holds_any = holds_any || is_held;
      void* const impl = param.unsafeGetTensorImpl();
      const auto live = optimizer_.state().find(impl);
      const bool is_there = live != optimizer_.state().end();
      if (is_held && (!is_there || (is_first && names_in(*live->second) != slots)))
        fresh.emplace_back(impl, std::move(state));
      else if (!is_held && is_there && is_first)
        fresh.emplace_back(impl, nullptr);
    });
    if (!holds_any) return;  // saved without this optimizer, or before its first step
    for (auto& [impl, state] : fresh) replaced_.emplace_back(impl, put(impl, std::move(state)));
  }

  void discard_made() override {
    for (auto& [impl, state] : replaced_) put(impl, std::move(state));
    replaced_.clear();
  }
  void restored() override { replaced_.clear(); }

 private:
  using State = std::unique_ptr<torch::optim::OptimizerParamState>;

  std::vector<std::string> names_in(torch::optim::OptimizerParamState& state) const {
    std::vector<std::string> names;
    for (const StateEntry& slot : slots_->list(state)) names.push_back(slot.key);
    return names;
  }

  /// Sets the state of a parameter, null for none; returns the previous one.
  State put(void* impl, State state) {
    auto& states = optimizer_.state();
    State before;
    if (const auto place = states.find(impl); place != states.end()) {
      before = std::move(place->second);
      states.erase(place);
    }
    if (state) states[impl] = std::move(state);
    return before;
  }

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
  std::vector<std::pair<void*, State>> replaced_;  // previous states; null: none
};

}  // namespace

std::shared_ptr<Trackable> track_optimizer(torch::optim::Optimizer& optimizer) {
  return std::make_shared<TorchOptimizer>(optimizer);
}

}  // namespace lockstep::checkpoint
