#pragma once

#include <cstdint>
#include <string>

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

ModelType torchscript_type();

}  // namespace lockstep::model
