#pragma once

#include <memory>
#include <string>
#include <vector>

#include "model/model.h"
#include "model/networks/model_table.h"

namespace lockstep::model {

/// `model: {type: torchscript}`: a module that Python saved with torch.jit.save, scripted or traced
/// in training mode. It trains, is pruned and saved as networks of Lockstep's own; names are those
/// of state_dict(), of a tied weight the first one. Buffers that its forward moves, as batch
/// normalisation does, are made equal on all ranks after each step.
class TorchScriptModel final : public Model {
 public:
  /// Throws Error(kInputMissing) without a file; Error(kConfig) with LibTorch's words if it is no
  /// such archive, calls an operator that LibTorch does not know, or has no parameter that is
  /// trained.
  TorchScriptModel(const std::string& path, const ModelInputs& data);
  ~TorchScriptModel() override;

  at::Tensor forward(const at::Tensor& inputs_BX) override;
  void begin_forward(const ForwardPass& pass) override;
  void set_training(bool training) override;
  /// Looked up by name at each call: forward may have put another tensor in a buffer's place.
  const std::vector<Buffer>& buffers() const override;
  std::vector<std::string> frozen_params() const override { return frozen_; }
  void move_buffers_to(at::Device device) override;
  bool runs_user_code() const override { return true; }
  std::string torchscript_archive() const override;

 private:
  struct Loaded;  ///< torch::jit::Module, whose header takes seconds to read
  std::unique_ptr<Loaded> loaded_;
  std::string path_;
  int64_t seed_;
  at::Device device_ = at::kCPU;
  std::vector<std::string> frozen_;
  mutable std::vector<Buffer> buffers_;  ///< as of the last look
};

ModelType torchscript_type();

}  // namespace lockstep::model
