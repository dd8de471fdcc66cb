#include "infer/engine/tensorrt_config.h"

namespace lockstep::infer {

TensorrtConfig read_tensorrt_config(ConfigReader in) {
  TensorrtConfig config;
  in.read("use_tensorrt", &config.use_tensorrt,
          "compile the network with Torch-TensorRT, where that is found beside a GPU; else "
          "LibTorch's own passes, and the log says so");
  in.read("max_batch_size", &config.max_batch_size, count_from(1),
          "samples that the network computes at once: larger batches are split, with or without "
          "TensorRT; default: they are not");
  in.read_choice("precision_mode", &config.precision_mode, {"FP32", "FP16"},
                 "TensorRT: of its kernels");
  in.read("max_workspace_size_bytes", &config.max_workspace_size_bytes, at_least(0),
          "TensorRT: memory that it may use while it computes");
  in.read("minimum_segment_size", &config.minimum_segment_size, count_from(1),
          "TensorRT: operators in a row from which on it takes them over");
  in.read("is_dynamic_op", &config.is_dynamic_op,
          "TensorRT: one engine for batches of any size up to max_batch_size, which must be given");
  in.read("maximum_cached_engines", &config.maximum_cached_engines, count_from(1),
          "TensorRT: engines that are kept, one for each size of batches");
  // One engine for all sizes is tuned for the largest one.
  if (config.is_dynamic_op && !config.max_batch_size)
    in.fault(
        "is_dynamic_op",
        "'is_dynamic_op: true' needs 'max_batch_size': the largest batch that its engine takes");
  in.done();
  return config;
}

}  // namespace lockstep::infer
