#pragma once

#include <cstdint>

#include "base/yaml/config_reader.h"
#include "infer/engine/engine.h"

namespace lockstep::infer {

/// How an Inferer goes about it: keys `run_config`, `engine` and `tensorrt_config` of section
/// `inferer`.
struct InfererOptions {
  bool use_multiprocessing = true;  ///< feed, network and callbacks each in a thread of its own
  int64_t queue_size = 2;           ///< iterations that wait between two of them, at most
  EngineOptions engine;

  InfererOptions with(const TensorrtConfig& tensorrt) const {
    InfererOptions options = *this;
    options.engine.tensorrt = tensorrt;
    return options;
  }
};

/// Reads those keys; the others of the section are left to who calls in->done().
InfererOptions read_inferer_options(ConfigReader* in);

}  // namespace lockstep::infer
