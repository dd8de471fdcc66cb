#pragma once

#include <cstdint>
#include <string>

#include "model/model.h"

/// What networks that are not written with Lockstep's own layers have in common.
namespace lockstep::model {

/// Seeds LibTorch's default generator for this pass from (seed, step, place of the batch in the
/// global batch), so that dropout follows from these and nothing of it has to be saved.
void seed_default_generator(int64_t seed, const ForwardPass& pass);

/// Whether a parameter takes part in pruning, and in weight decay, by its name, its number of
/// dimensions and the name of the class of its module ("Conv2d", "LayerNorm").
struct ParamUse {
  bool prunable = false;  ///< weights of linear layers and convolutions
  bool decayed = false;  ///< weights of at least 2 dimensions, but of embeddings and normalisations
};
ParamUse use_of(const std::string& name, int64_t num_dims, const std::string& module_class);

/// Enters a trained parameter in the table. Throws Error(kConfig) unless it is float32 on the CPU;
/// `file` is named. Layers are not entered: none of them calls a LayerHook.
void add_param(const std::string& file, const std::string& name, const at::Tensor& tensor,
               const std::string& module_class, LayerTable* table);

}  // namespace lockstep::model
