#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <ATen/core/Tensor.h>

#include "model/model.h"
#include "recal/quantization/fake_quantizer.h"

/// Model and network of a checkpoint, without the run file.
namespace lockstep::exports {

/// Model as stored in a checkpoint, without its code: the source of an export.
struct CheckpointModel {
  struct Param {
    at::Tensor values;
    at::Tensor pruned;  ///< bool, shape of `values`: true where the mask prunes; all false: no mask
  };
  /// State of a quantized layer (recal/quantization/fake_quantizer.h).
  struct Quantization {
    recal::QuantizationScheme scheme = recal::QuantizationScheme::kNone;
    recal::InputRanges::Range input_range;
  };

  std::string prefix;  ///< of the checkpoint, with its number
  int64_t step = 0;
  std::optional<int64_t> steps_per_epoch;
  /// Settings of the run that made the checkpoint (daemon/config/checkpoint_metadata.h). Empty if
  /// unknown, that is, not written by lockstepd.
  std::string settings;
  std::string input_shape;  ///< [1, 8, 8]
  int64_t num_classes = 0;
  std::string class_names;                     ///< text_of_classes(); empty: unknown
  std::map<std::string, Param> params;         ///< by dotted name
  std::map<std::string, Quantization> layers;  ///< quantized layers, by dotted name
};

/// Reads a model on the CPU, without ranks. `where`: folder of checkpoints (the newest complete
/// one) or prefix of one. `ema`: use the moving average of each weight that has one. Throws
/// Error(kInputMissing, kBadData). kBadData also if a mask does not fit its weight or a quantized
/// layer has no weight. Throws Error(kUsage) for `ema` if the checkpoint contains no average.
CheckpointModel read_checkpoint_model(const std::string& where, bool ema = false);

/// True if a run with these settings (CheckpointModel::settings) evaluated the moving averages of
/// its weights. That is so if it had some and eval.use_ema was not false.
bool evaluated_averages(const std::string& settings);

/// Returns the name of the moving average of a variable `model/...` in a checkpoint's index.
std::string ema_name(std::string_view model_key);

/// Network of a checkpoint with the checkpoint's weights, in evaluation mode, without fake
/// quantization.
struct CheckpointNetwork {
  std::unique_ptr<model::Model> model;
  std::vector<int64_t> input_shape;  ///< of one sample
  int64_t num_classes = 0;
  at::ScalarType input_dtype = at::kFloat;  ///< in Python perhaps infer::IoNode::kFloatOrInt
};

/// Purpose for which a network is rebuilt.
enum class NetworkUse {
  kExport,     ///< written in another form without Python
  kModule,     ///< the same; of a class in Python, whose file must exist, without a call of forward
  kInference,  ///< called or traced; may be a class in Python, whose file must exist
};

/// True if the checkpoint says which network it belongs to, in a form that can be exported. With
/// kExport false for a class in Python: its code may have changed or moved.
bool names_its_network(const CheckpointModel& saved, NetworkUse use = NetworkUse::kExport);

/// Builds the network from the settings in the checkpoint. Reads no run file. `beside`: a run file
/// whose folder may contain the code of a class in Python.
///
/// Throws Error(kUsage), with a way out, if the checkpoint has no settings or is older than
/// required. Throws Error(kInputMissing) for missing Python code, kConfig for an exception of that
/// code. Throws Error(kBadData) if the settings make no network, or one with other tensors.
CheckpointNetwork rebuild_network(const CheckpointModel& saved,
                                  NetworkUse use = NetworkUse::kExport,
                                  const std::string& beside = "");

}  // namespace lockstep::exports
