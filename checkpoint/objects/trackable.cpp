// Adapters for tensors, random number generators and objects that list their state.
#include "checkpoint/objects/trackable.h"

#include "base/error.h"
#include "checkpoint/files/state_names.h"

namespace lockstep::checkpoint {
namespace {

class OneTensor final : public Trackable {
 public:
  explicit OneTensor(at::Tensor tensor) : tensor_(std::move(tensor)) {
    if (!tensor_.defined())
      throw Error(ExitCode::kConfig, "checkpoint",
                  "an undefined tensor cannot be in a Checkpoint: add it once it exists");
  }

  StateList state(const TensorNames&) override { return variables(); }
  StateList variables() override { return {{.key = "", .tensor = tensor_}}; }

 private:
  at::Tensor tensor_;
};

/// State of a generator. It lists a copy, which becomes the generator's state after a restore has
/// written into it.
class RandomState final : public Trackable {
 public:
  explicit RandomState(at::Generator generator) : generator_(std::move(generator)) {
    if (!generator_.defined())
      throw Error(ExitCode::kConfig, "checkpoint",
                  "an undefined generator cannot be in a Checkpoint");
    copy_ = generator_.get_state().clone();
  }

  // The copy is refreshed on each call, because the generator moves on.
  StateList state(const TensorNames&) override {
    copy_.copy_(generator_.get_state());
    return {{.key = "", .tensor = copy_}};
  }
  void restored() override { generator_.set_state(copy_); }

 private:
  at::Generator generator_;
  at::Tensor copy_;
};

class ListedState final : public Trackable {
 public:
  ListedState(std::function<StateList()> state, std::function<StateList()> variables,
              DeferredVariables* late)
      : state_(std::move(state)), variables_(std::move(variables)), late_(late) {}

  StateList state(const TensorNames&) override { return state_(); }
  StateList variables() override { return variables_ ? variables_() : StateList(); }
  std::vector<LatePart> late_parts() override {
    return late_ == nullptr ? std::vector<LatePart>() : std::vector<LatePart>{{"", late_}};
  }
  /// Returns the key unchanged if it is whole already, as Lockstep's own parts list them:
  /// optimizer/fc1/weight/momentum.
  std::string whole_key(const std::string& root, const std::string& key) const override {
    return key.starts_with(root + "/") ? key : Trackable::whole_key(root, key);
  }

 private:
  std::function<StateList()> state_, variables_;
  DeferredVariables* late_;
};

}  // namespace

std::string Trackable::whole_key(const std::string& root, const std::string& key) const {
  if (key.empty()) return root;
  return is_beside_graph(key) ? key : root + "/" + key;
}

std::shared_ptr<Trackable> make_trackable(ForTracking, const at::Tensor& tensor) {
  return std::make_shared<OneTensor>(tensor);
}

std::shared_ptr<Trackable> make_trackable(ForTracking, StepClock& clock) {
  return make_trackable([&clock] { return StateList{{.key = "", .tensor = view_of(&clock.step)}}; },
                        nullptr, nullptr);
}

std::shared_ptr<Trackable> make_trackable(ForTracking, const at::Generator& generator) {
  return std::make_shared<RandomState>(generator);
}

std::shared_ptr<Trackable> make_trackable(std::function<StateList()> state,
                                          std::function<StateList()> variables,
                                          DeferredVariables* late) {
  return std::make_shared<ListedState>(std::move(state), std::move(variables), late);
}

}  // namespace lockstep::checkpoint
