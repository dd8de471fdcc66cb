#pragma once

#include <string>
#include <vector>

#include "model/model.h"
#include "model/networks/model_table.h"
#include "python/python_args.h"
#include "python/value.h"

namespace lockstep::python {

/// `model: {type: python}`: a torch.nn.Module of the user's, in the interpreter inside this
/// process. Its parameters are this model's: they share memory, also after they are moved into flat
/// buffers. Names are those of state_dict().
///
/// Draws of forward from the default generators of torch, `random` and `numpy.random` are a
/// function of (seed, step, place of the batch in the global batch). Which parameters are trained
/// and which buffers there are is settled when the module is built. The
/// training step makes other tensors that forward moves equal on all ranks
/// (train/step/moved_buffers.h).
class PythonModel final : public model::Model {
 public:
  /// Throws Error(kConfig) with file and line if Python raises, a parameter is not float32, or none
  /// is trained.
  PythonModel(const PythonArgs& args, const model::ModelInputs& data);

  at::Tensor forward(const at::Tensor& inputs_BX) override;
  at::Tensor own_loss(const at::Tensor& inputs_BX, const at::Tensor& targets_BY) override;
  void begin_forward(const model::ForwardPass& pass) override;
  void set_training(bool training) override;
  /// Looked up by name at each call: forward may have put another tensor in a buffer's place.
  const std::vector<model::Buffer>& buffers() const override;
  std::vector<model::Buffer> unsaved_buffers() const override;
  std::vector<std::string> frozen_params() const override;
  void move_buffers_to(at::Device device) override;
  bool runs_user_code() const override { return true; }
  /// Throws too if parameters are no longer those of the module.
  void after_backward() override;

 private:
  /// Those that saves hold, or the others.
  std::vector<model::Buffer> look_up(bool are_saved) const;

  std::string path_;
  Object module_;
  int64_t seed_;
  at::Device device_ = at::kCPU;
  int64_t num_backwards_ = 0;
  mutable std::vector<model::Buffer> buffers_;  ///< as of the last look
};

/// The row of `python` in the table of networks.
model::ModelType python_model_type();

}  // namespace lockstep::python
