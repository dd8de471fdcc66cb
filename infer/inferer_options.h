#pragma once

#include <cstdint>

#include "base/yaml/config_reader.h"
#include "infer/engine/engine.h"

namespace lockstep::infer {

/// Options of an Inferer: keys `run_config`, `engine` and `tensorrt_config` of section `inferer`.
struct InfererOptions {
  bool use_multiprocessing = true;  ///< feed, network and callbacks in threads of their own
  int64_t queue_size = 2;           ///< maximum of waiting iterations between two stages
  EngineOptions engine;

  InfererOptions with(const TensorrtConfig& tensorrt) const {
    InfererOptions options = *this;
    options.engine.tensorrt = tensorrt;
    return options;
  }
};

/// Reads these keys. Other keys of the section are left to the caller, who calls in->done().
InfererOptions read_inferer_options(ConfigReader* in);

}  // namespace lockstep::infer
