#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/yaml/config_reader.h"

namespace lockstep::infer {

/// Section `tensorrt_config`: how a network is compiled for the GPU. Where Torch-TensorRT is not
/// there, `max_batch_size` alone has an effect.
struct TensorrtConfig {
  bool use_tensorrt = false;
  std::optional<int64_t> max_batch_size;  ///< larger batches are split; absent: none is
  std::string precision_mode = "FP32";    ///< FP32 | FP16
  int64_t max_workspace_size_bytes = 1 << 30;
  int64_t minimum_segment_size = 3;    ///< operators that are worth an engine
  bool is_dynamic_op = false;          ///< engines for batches as they come
  int64_t maximum_cached_engines = 1;  ///< with is_dynamic_op
};

TensorrtConfig read_tensorrt_config(ConfigReader in);

}  // namespace lockstep::infer
