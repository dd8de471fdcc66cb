#include "daemon/config/gpu_options.h"

namespace lockstep::daemon {

dist::GpuMemoryOptions GpuOptions::memory() const {
  // allow_growth, if given, decides; otherwise memory_policy. read_gpu_options() refuses a
  // conflict.
  return {.fraction = per_process_gpu_memory_fraction.value_or(1),
          .at_start = !allow_growth.value_or(memory_policy != "all")};
}

GpuOptions read_gpu_options(ConfigReader in) {
  GpuOptions options;
  bool allow_growth = true;
  if (in.read("allow_growth", &allow_growth,
              "true: memory of the GPU is taken as it is needed, and kept; false: as "
              "memory_policy: all"))
    options.allow_growth = allow_growth;
  in.read("per_process_gpu_memory_fraction", &options.per_process_gpu_memory_fraction,
          {.at_least = {}, .more_than = 0, .at_most = 1, .less_than = {}},
          "share of the GPU's memory that a process takes at most, for tensors; NCCL and CUDA "
          "themselves come on top; default all");
  // The two keys may be given together if they agree.
  const bool has_policy = in.read_choice(
      "memory_policy", &options.memory_policy, {"default", "all"},
      "default: memory is taken as it is needed; all: the whole share, at the start, or the run "
      "ends if it is not free");
  if (has_policy && options.allow_growth &&
      *options.allow_growth == (options.memory_policy == "all"))
    in.fault("allow_growth", allow_growth
                                 ? "'gpu.allow_growth: true' takes memory as it is needed, "
                                   "'gpu.memory_policy: all' at the start: remove one"
                                 : "'gpu.allow_growth: false' takes memory at the start, "
                                   "'gpu.memory_policy: default' as it is needed: remove one");
  in.done();
  return options;
}

}  // namespace lockstep::daemon
