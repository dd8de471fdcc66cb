#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "base/tensors/layer_hook.h"
#include "base/tensors/params.h"
#include "model/layers.h"
#include "model/network.h"

namespace lockstep::model {

/// A network. Symbols: B = samples, X = the shape of one input, O = the shape of one output: [C]
/// for C classes, [T, V] for T tokens of a vocabulary of V.
///
/// Initial values are a pure function of (seed, parameter name), so every rank builds the same
/// model without a message.
class Model {
 public:
  Model() = default;
  virtual ~Model() = default;
  Model(const Model&) = delete;  // layers and callers keep addresses into it
  Model& operator=(const Model&) = delete;

  /// inputs_BX float32, int64 where they are tokens -> outputs_BO. B = 0 is allowed.
  virtual at::Tensor forward(const at::Tensor& inputs_BX) = 0;

  /// Before each forward pass of training.
  virtual void begin_forward(const ForwardPass& pass) { table_.current_pass = pass; }
  /// The network as a TorchScript archive, in evaluation; empty where network() says what it is.
  virtual std::string torchscript_archive() const { return ""; }

  /// Whether a training pass so far went by ForwardPass, or will (dropout), so that a device that
  /// repeats it as it was (base/device/device_graph.h) would repeat what was random in it.
  bool reads_forward_pass() const { return table_.pass_was_read; }

  /// Whether its passes run code that is not Lockstep's, which may do what these do not: write
  /// parameters and buffers in forward, or leave parameters without a gradient.
  virtual bool runs_user_code() const { return false; }
  /// After each backward pass; throws what user code of the network raised in it.
  virtual void after_backward() {}

  /// Of a network that brings its own loss (train.loss: own): the mean over the samples, a scalar.
  /// Throws Error(kConfig) if it brings none.
  virtual at::Tensor own_loss(const at::Tensor& inputs_BX, const at::Tensor& targets_BY);

  /// What forward computes in evaluation, without a hook. Empty: nobody described this network, so
  /// it cannot be written down in another language.
  virtual Network network() const { return {}; }

  /// Parameters in the order in which forward uses them. The tensors share memory with the model.
  ParamTable& params() { return table_.params; }
  const ParamTable& params() const { return table_.params; }

  /// What training changes beside the parameters, such as moving statistics; the tensors share
  /// memory with the model.
  virtual const std::vector<Buffer>& buffers() const { return table_.buffers; }
  /// Further ones, which no save holds (PyTorch: persistent=False), as they are now.
  virtual std::vector<Buffer> unsaved_buffers() const { return {}; }
  /// Names of the parameters among buffers(): the network's own code froze them.
  virtual std::vector<std::string> frozen_params() const { return {}; }
  /// Parameters are moved by their arena; call before the first forward.
  virtual void move_buffers_to(at::Device device) { table_.norms.move_to(device); }

  /// Training (as a new model is) or evaluation: they differ where batches are normalised.
  virtual void set_training(bool training) { table_.norms.set_training(training); }
  bool is_training() const { return table_.norms.is_training(); }
  BatchNormTable& batch_norms() { return table_.norms; }

  /// The layers that call a hook, in the order in which forward uses them.
  const std::vector<LayerInfo>& layers() const { return table_.layers; }
  /// From the next forward on, each layer passes its input and its weight through the hook, which
  /// must outlive its use here. Null: none, the default; it costs nothing.
  void set_layer_hook(LayerHook* hook) { table_.hook = hook; }
  bool has_layer_hook() const { return table_.hook != nullptr; }

 protected:
  LayerTable table_;
};

}  // namespace lockstep::model
