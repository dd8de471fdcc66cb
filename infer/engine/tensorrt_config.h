#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/yaml/config_reader.h"

namespace lockstep::infer {

/// Section `tensorrt_config`: options of compilation for the GPU. Without Torch-TensorRT only
/// `max_batch_size` has an effect.
struct TensorrtConfig {
  bool use_tensorrt = false;
  std::optional<int64_t> max_batch_size;  ///< larger batches are split; absent: no limit
  std::string precision_mode = "FP32";    ///< FP32 | FP16
  int64_t max_workspace_size_bytes = 1 << 30;
  int64_t minimum_segment_size = 3;    ///< smallest number of operators for an engine
  bool is_dynamic_op = false;          ///< one engine for batches of any size
  int64_t maximum_cached_engines = 1;  ///< limit with is_dynamic_op
};

TensorrtConfig read_tensorrt_config(ConfigReader in);

}  // namespace lockstep::infer
