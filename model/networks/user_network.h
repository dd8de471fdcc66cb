#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "model/model.h"
#include "model/networks/model_table.h"

/// Networks that are not built from Lockstep's layers: their common parts, and TorchScript modules.
namespace lockstep::model {

/// Seeds LibTorch's default generators of the CPU and of `device` for this pass. Dropout then
/// follows from (seed, step, position of the batch in the global batch). So a checkpoint needs no
/// generator state. Returns the seed.
uint64_t seed_default_generators(int64_t seed, const ForwardPass& pass, at::Device device);

/// Use of a parameter in pruning and weight decay. It follows from the parameter's name, its number
/// of dimensions and its layer's class ("Conv2d", "LayerNorm").
struct ParamUse {
  bool prunable = false;  ///< weights of linear layers and convolutions; for weight_norm the
                          ///< directions, not the gains
  bool decayed = false;   ///< weights of 2 or more dimensions, except embeddings and normalisations
};
ParamUse use_of(const std::string& name, int64_t num_dims, const std::string& module_class);

/// Adds a trained parameter to the table. Throws Error(kConfig), naming `file`, unless it is
/// float32 on the CPU. Does not add a layer: these modules call no LayerHook.
void add_param(const std::string& file, const std::string& name, const at::Tensor& tensor,
               const std::string& module_class, LayerTable* table);

/// Network of `model: {type: torchscript}`: a module that Python saved with torch.jit.save,
/// scripted or traced in training mode. It is trained, pruned and saved like Lockstep's own
/// networks. Names are those of state_dict(); a tied weight has its first one. Buffers that forward
/// changes, as in batch normalisation, are made equal on all ranks after each step.
class TorchScriptModel final : public Model {
 public:
  /// Loads the file. Throws Error(kInputMissing) if it does not exist. Throws Error(kConfig), with
  /// LibTorch's message, if it is not such an archive or uses an unknown operator. Throws
  /// Error(kConfig) too if no parameter is trained.
  TorchScriptModel(const std::string& path, const ModelInputs& data);
  ~TorchScriptModel() override;

  at::Tensor forward(const at::Tensor& inputs_BX) override;
  void begin_forward(const ForwardPass& pass) override;
  void set_training(bool training) override;
  /// Looks the buffers up by name at each call: forward may have replaced a buffer's tensor.
  const std::vector<Buffer>& buffers() const override;
  std::vector<std::string> frozen_params() const override { return frozen_; }
  void move_buffers_to(at::Device device) override;
  bool runs_user_code() const override { return true; }
  std::string torchscript_archive() const override;

 private:
  struct Loaded;  ///< torch::jit::Module; its header takes seconds to compile
  std::unique_ptr<Loaded> loaded_;
  std::string path_;
  int64_t seed_;
  at::Device device_ = at::kCPU;
  std::vector<std::string> frozen_;
  mutable std::vector<Buffer> buffers_;  ///< as of the last call of buffers()
};

ModelType torchscript_type();

}  // namespace lockstep::model
