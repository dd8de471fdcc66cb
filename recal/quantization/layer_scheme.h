#pragma once

#include <string>
#include <vector>

#include <yaml-cpp/node/node.h>

#include "base/yaml/config_reader.h"

namespace lockstep::recal {

/// Quantization scheme of a layer in SparseML's form: the rounding of weights, inputs and outputs.
///
/// Every scheme is read. Options that are not supported here (4 bits, outputs, weights alone, ...)
/// become faults with their places. They only count if some layer has the scheme: an embedding's
/// scheme does no harm in a model without embeddings.
struct LayerScheme {
  bool quantized = true;     ///< false: neither weights nor inputs nor outputs
  bool per_channel = false;  ///< weights: one scale per output instead of per tensor
  std::vector<Fault> unsupported;
};

/// Defaults of a scheme.
enum class SchemeForm {
  kScheme,       ///< `scheme`, `scheme_overrides`: weights and inputs are quantized; asymmetric
  kConfigGroup,  ///< an entry of `config_groups`: neither is; symmetric
};

/// Reads a map with `weights`, `input_activations` and `output_activations`. Each is `null` or a
/// map of `num_bits`, `symmetric`, `strategy`, ... Wrong types and unknown keys become faults at
/// once. Does not call in->done(): the caller may have further keys.
LayerScheme read_layer_scheme(ConfigReader* in, SchemeForm form);

/// Reads `scheme` or one entry of `scheme_overrides`: such a map, or one of the names `default` (or
/// null: `otherwise`), `deepsparse`, `tensorrt`.
LayerScheme read_scheme_or_name(const YAML::Node& node, const std::string& path,
                                const LayerScheme& otherwise, ConfigReader* in);

}  // namespace lockstep::recal
