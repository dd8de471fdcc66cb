#pragma once

#include <cstdint>
#include <string>

#include "model/model.h"

/// What networks that are not written with Lockstep's own layers have in common.
namespace lockstep::model {

/// Seeds LibTorch's default generators of the CPU and of `device` for this pass, so that dropout
/// follows from (seed, step, place of the batch in the global batch) and nothing of it has to be
/// saved. Returns the number that they were seeded with.
uint64_t seed_default_generators(int64_t seed, const ForwardPass& pass, at::Device device);

/// Whether a parameter takes part in pruning, and in weight decay, by its name, its number of
/// dimensions and the name of the class of its layer ("Conv2d", "LayerNorm").
struct ParamUse {
  bool prunable = false;  ///< weights of linear layers and convolutions; of weight_norm the
                          ///< directions, not the gains
  bool decayed = false;  ///< weights of at least 2 dimensions, but of embeddings and normalisations
};
ParamUse use_of(const std::string& name, int64_t num_dims, const std::string& module_class);

/// Enters a trained parameter in the table. Throws Error(kConfig) unless it is float32 on the CPU;
/// `file` is named. Layers are not entered: none of them calls a LayerHook.
void add_param(const std::string& file, const std::string& name, const at::Tensor& tensor,
               const std::string& module_class, LayerTable* table);

}  // namespace lockstep::model
