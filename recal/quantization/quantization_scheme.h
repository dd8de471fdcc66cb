#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <yaml-cpp/node/node.h>

#include "base/tensors/param_info.h"
#include "base/yaml/config_reader.h"
#include "base/yaml/yaml_document.h"
#include "recal/schedule/param_selector.h"

/// Quantization schemes of layers in SparseML's form, and the layers that a scheme applies to.
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

/// Entry of `ignore` or `targets`, or a key of `scheme_overrides`:
///
///   name      of a layer or of a module that contains it, dotted or slashed
///   re:REGEX  see NamePattern
///   class     of modules, by PyTorch's name: Linear, Conv1d, Conv2d or Conv3d. Another class
///             (Embedding, SiLU) means modules that are never quantized.
class LayerTarget {
 public:
  /// Reads the entry. Adds a fault at the node if it has none of these forms.
  LayerTarget(const YAML::Node& node, std::string_view key, ConfigReader* in);

  const std::string& text() const { return pattern_.text(); }
  const SourceLocation& location() const { return location_; }
  /// True for a text that can only be a class of modules that are never quantized. A layer with
  /// that very name is still matched.
  bool is_foreign_class() const;
  /// Specificity with which the entry matches a layer whose weight has these sizes. 0: no match, 1:
  /// by class, more: by name, growing with the name's length.
  size_t match(const LayerInfo& layer, const std::vector<int64_t>& weight_sizes) const;
  /// True if the model has such a module: a layer, or a module that contains a parameter.
  bool is_in(const std::vector<LayerInfo>& layers, const std::vector<ParamInfo>& params) const;

 private:
  NamePattern pattern_;
  SourceLocation location_;
};

/// Reads a list of targets or a single one. An undefined key gives an empty list.
std::vector<LayerTarget> read_layer_targets(ConfigReader* in, std::string_view key);

}  // namespace lockstep::recal
