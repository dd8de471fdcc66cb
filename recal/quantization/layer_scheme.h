#pragma once

#include <string>
#include <vector>

#include <yaml-cpp/node/node.h>

#include "base/yaml/config_reader.h"

namespace lockstep::recal {

/// Quantization scheme: how the weights, inputs and outputs of a layer are rounded, as SparseML's
/// recipes write it.
///
/// Every scheme is read; what a layer cannot do here (4 bits, outputs, weights alone, ...) is kept
/// as faults with their places, which count only where a layer has the scheme: an embedding's, say,
/// does no harm in a model without embeddings.
struct LayerScheme {
  bool quantized = true;     ///< false: neither weights nor inputs nor outputs
  bool per_channel = false;  ///< weights: a scale per output, not one per tensor
  std::vector<Fault> unsupported;
};

/// What a scheme means where it leaves something out.
enum class SchemeForm {
  kScheme,       ///< `scheme`, `scheme_overrides`: weights and inputs are quantized; asymmetric
  kConfigGroup,  ///< an entry of `config_groups`: neither is; symmetric
};

/// Reads a map with `weights`, `input_activations` and `output_activations`, each `null` or a map
/// of `num_bits`, `symmetric`, `strategy`, ... Wrong types and unknown keys become faults at once.
/// Does not call in->done(): the caller may have further keys.
LayerScheme read_layer_scheme(ConfigReader* in, SchemeForm form);

/// Reads `scheme` or one entry of `scheme_overrides`: such a map, or a name: `default` (or null:
/// `otherwise`), `deepsparse`, `tensorrt`.
LayerScheme read_scheme_or_name(const YAML::Node& node, const std::string& path,
                                const LayerScheme& otherwise, ConfigReader* in);

}  // namespace lockstep::recal
