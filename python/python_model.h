#pragma once

#include <string>
#include <vector>

#include "model/model.h"
#include "model/networks/model_table.h"
#include "python/python_args.h"
#include "python/value.h"

namespace lockstep::python {

/// Network of a user, `model: {type: python}`: a torch.nn.Module in the interpreter of this
/// process. Its parameters share memory with this model's, also after they are moved into flat
/// buffers. Names are those of state_dict().
///
/// The default generators of torch, `random` and `numpy.random` are seeded before each forward pass
/// of training. The seed follows from (seed, step, position of the batch in the global batch). The
/// set of trained parameters and of buffers is fixed when the module is built. Other tensors that
/// forward changes are made equal on all ranks by the training step (train/step/moved_buffers.h).
class PythonModel final : public model::Model {
 public:
  /// Creates the module. Throws Error(kConfig), with file and line, if Python raises. Also throws
  /// if a parameter is not float32, or if no parameter is trained.
  PythonModel(const PythonArgs& args, const model::ModelInputs& data);

  at::Tensor forward(const at::Tensor& inputs_BX) override;
  at::Tensor own_loss(const at::Tensor& inputs_BX, const at::Tensor& targets_BY) override;
  void begin_forward(const model::ForwardPass& pass) override;
  void set_training(bool training) override;
  /// Looks the buffers up by name at each call: forward may have replaced a buffer's tensor.
  const std::vector<model::Buffer>& buffers() const override;
  std::vector<model::Buffer> unsaved_buffers() const override;
  std::vector<std::string> frozen_params() const override;
  void move_buffers_to(at::Device device) override;
  bool runs_user_code() const override { return true; }
  /// Also throws if the parameters are no longer those of the module.
  void after_backward() override;

 private:
  /// Returns the buffers that checkpoints contain, or the others.
  std::vector<model::Buffer> look_up(bool are_saved) const;

  std::string path_;
  Object module_;
  int64_t seed_;
  at::Device device_ = at::kCPU;
  int64_t num_backwards_ = 0;
  mutable std::vector<model::Buffer> buffers_;  ///< as of the last call of buffers()
};

/// Row of `python` in the table of networks.
model::ModelType python_model_type();

}  // namespace lockstep::python
