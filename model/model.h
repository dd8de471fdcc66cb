#pragma once

#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "base/tensors/forward_arguments.h"
#include "base/tensors/params.h"
#include "model/layers.h"
#include "model/network.h"

namespace lockstep::model {

/// Loss that a network computes itself, and its outputs if they came with it.
struct OwnLoss {
  at::Tensor loss;             ///< mean over the targets that count, a scalar
  at::Tensor outputs_BO = {};  ///< undefined: the pass gave none
};

/// Network. Symbols: B = samples, X = shape of one input, O = shape of one output: [C] for C
/// classes, [T, V] for T tokens of a vocabulary of V.
///
/// Initial values are a pure function of (seed, parameter name), so every rank builds the same
/// model without communication.
class Model {
 public:
  Model() = default;
  virtual ~Model() = default;
  Model(const Model&) = delete;  // layers and callers keep pointers into it
  Model& operator=(const Model&) = delete;

  /// Maps inputs_BX (float32, or int64 for tokens) to outputs_BO. B = 0 is allowed.
  virtual at::Tensor forward(const at::Tensor& inputs_BX) = 0;
  /// Maps a batch of several or named tensors to outputs_BO. Throws Error(kConfig) if the network
  /// takes one tensor only.
  virtual at::Tensor forward_of(const ForwardArguments& inputs);

  /// Sets the identity of the next forward pass. Called before each one of training.
  virtual void begin_forward(const ForwardPass& pass) { table_.current_pass = pass; }
  /// Network as a TorchScript archive for evaluation; empty if network() describes it.
  virtual std::string torchscript_archive() const { return ""; }

  /// True if a training pass uses ForwardPass (dropout). A device that replays a recorded pass
  /// (base/tensors/device_backend.h) would then repeat its random numbers.
  bool reads_forward_pass() const { return table_.pass_was_read; }

  /// True if its passes run a user's code. Unlike Lockstep's layers, that may write parameters and
  /// buffers in forward, or leave parameters without a gradient.
  virtual bool runs_user_code() const { return false; }
  /// Called after each backward pass. Throws errors that the user's code raised in it.
  virtual void after_backward() {}

  /// Loss of the network itself (train.loss: own). The arguments include the targets. Throws
  /// Error(kConfig) if the network has none.
  virtual OwnLoss own_loss(const ForwardArguments& batch);
  /// Number of first targets of each row that own_loss() leaves out: 1 for a language model that
  /// shifts its targets itself.
  virtual int64_t num_unused_targets() const { return 0; }

  /// Description of forward in evaluation, without a hook. Empty if there is none; the network then
  /// cannot be exported layer by layer.
  virtual Network network() const { return {}; }

  /// Parameters in the order of forward. The tensors share memory with the model.
  ParamTable& params() { return table_.params; }
  const ParamTable& params() const { return table_.params; }

  /// State besides the parameters that training changes, such as moving statistics. The tensors
  /// share memory with the model.
  virtual const std::vector<Buffer>& buffers() const { return table_.buffers; }
  /// Current buffers that no checkpoint contains (PyTorch: persistent=False).
  virtual std::vector<Buffer> unsaved_buffers() const { return {}; }
  /// Names of the parameters among buffers(), which the network's own code froze.
  virtual std::vector<std::string> frozen_params() const { return {}; }
  /// Moves the buffers. Call it before the first forward. FlatParams moves the parameters.
  virtual void move_buffers_to(at::Device device) { table_.norms.move_to(device); }

  /// Selects training (the default) or evaluation, which differ in batch normalisation and dropout.
  virtual void set_training(bool training) { table_.norms.set_training(training); }
  bool is_training() const { return table_.norms.is_training(); }
  BatchNormTable& batch_norms() { return table_.norms; }

  /// Layers that call a hook, in the order of forward.
  const std::vector<LayerInfo>& layers() const { return table_.layers; }
  /// Sets the hook through which each layer passes its input and its weight, from the next forward
  /// on. The hook must outlive its use. Null (the default): no hook, no cost.
  virtual void set_layer_hook(LayerHook* hook) { table_.hook = hook; }
  bool has_layer_hook() const { return table_.hook != nullptr; }

  /// Number of times that a layer changed between dense products and sparse tensor cores.
  int64_t num_semi_sparse_changes() const { return table_.num_semi_sparse_changes; }

 protected:
  LayerTable table_;
};

/// Network of layers. forward() and network() come from one list of layers. Each layer takes the
/// output of the previous one, unless continue_from() names another.
///
///   const int64_t before = net.end();
///   net.add<Conv2d>("conv", ...);
///   const int64_t changed = net.end();
///   net.add_sum(changed, before);
class Sequence : public Model {
 public:
  at::Tensor forward(const at::Tensor& inputs_BX) override;
  Network network() const override;

  using Compute = std::function<at::Tensor(const at::Tensor& values)>;
  /// Adds a layer with tensors. `args`: those of its constructor between name and table.
  template <typename Layer, typename... Args>
  void add(const std::string& name, const Args&... args) {
    const Layer layer(name, args..., &table_);
    add(layer.description(), layer);
  }
  /// Adds a layer without tensors.
  void add(const NetworkLayer& layer);
  /// Adds a layer of any kind with its computation.
  void add(const NetworkLayer& layer, Compute compute);
  /// Adds a step that network() leaves out, since evaluation does, such as dropout.
  void add_undescribed(Compute compute);
  void add_dropout(const std::string& name, double share, int64_t seed) {
    add_undescribed(Dropout(name, share, seed, &table_));
  }
  /// Adds attention(), with dropout of its weights. `layer` has num_heads and is_causal.
  void add_attention(NetworkLayer layer, const Dropout& dropout);
  /// Adds the sum of two layers' outputs.
  void add_sum(int64_t first, int64_t second);

  /// Place of the output that the next layer takes.
  int64_t end() const { return end_; }
  void continue_from(int64_t place) { end_ = place; }

 private:
  struct Step {
    std::optional<NetworkLayer> description;  ///< without inputs
    Compute compute;                          ///< empty: forward() knows the kind
    std::vector<int64_t> inputs;              ///< places
  };
  /// Value of forward: place 0 is the network's input, place i the output of step i - 1.
  struct Place {
    size_t last_use = 0;  ///< the last step that takes it
    int64_t num_uses = 0;
  };
  void add_step(Step step);
  at::Tensor output_of(const Step& step, const std::vector<at::Tensor>& values) const;
  bool may_overwrite(int64_t place) const;

  std::vector<Step> steps_;
  std::vector<Place> places_ = {{}};
  int64_t end_ = 0;
};

}  // namespace lockstep::model
