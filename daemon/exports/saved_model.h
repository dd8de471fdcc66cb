#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <ATen/core/Tensor.h>

#include "recal/quantization/fake_quantizer.h"

namespace lockstep::daemon {

/// A model as a save holds it, without its code: what can be exported.
struct SavedModel {
  struct Param {
    at::Tensor values;
    at::Tensor pruned;  ///< bool, shape of the values: what its mask prunes; all false: no mask
  };
  /// A quantized layer's state (recal/quantization/fake_quantizer.h).
  struct Quantization {
    recal::QuantizationScheme scheme = recal::QuantizationScheme::kNone;
    recal::InputRanges::Range input_range;
  };

  std::string prefix;  ///< of the save, with its number
  int64_t step = 0;
  std::optional<int64_t> steps_per_epoch;
  /// What a daemon's save says of the run that made it (daemon/state/checkpoint_metadata.h); empty:
  /// nothing.
  std::string settings;
  std::string input_shape;  ///< [1, 8, 8]
  int64_t num_classes = 0;
  std::string class_names;                     ///< text_of_classes(); empty: unknown
  std::map<std::string, Param> params;         ///< by dotted name
  std::map<std::string, Quantization> layers;  ///< the quantized ones, by dotted name
};

/// `where` is a folder of saves (the newest complete one) or the prefix of a save. `ema`: the
/// moving average stands for each weight that has one. On the CPU; no ranks. Throws
/// Error(kInputMissing, kBadData), also if a mask does not fit its weight or a quantized layer
/// lacks its weight; Error(kUsage) for `ema` where the save holds no average.
SavedModel read_saved_model(const std::string& where, bool ema = false);

/// Whether a run with these settings (SavedModel::settings) evaluated the moving averages of its
/// weights: it had some, and eval.use_ema did not say no.
bool evaluated_averages(const std::string& settings);

/// The name in a save's index of the moving average of a variable `model/...`.
std::string ema_name(std::string_view model_key);

}  // namespace lockstep::daemon
