#include "infer/inferer_options.h"

namespace lockstep::infer {

InfererOptions read_inferer_options(ConfigReader* in) {
  InfererOptions options;
  in->read_choice("engine", &options.engine.engine, {"optimized", "plain"},
                  "optimized: LibTorch's freeze and inference passes, or what tensorrt_config asks "
                  "for; plain: the network as it was written, with the bits of the evaluation");
  options.engine.tensorrt = read_tensorrt_config(in->section("tensorrt_config"));
  ConfigReader run = in->section("run_config");
  run.read("use_multiprocessing", &options.use_multiprocessing,
           "reading, network and callbacks at the same time, in a thread each; false: in turn");
  run.read("queue_size", &options.queue_size, count_from(1),
           "iterations that wait between two of these threads, at most");
  run.done();
  if (options.engine.engine == "plain" && options.engine.tensorrt.use_tensorrt)
    in->fault(
        "engine",
        "'engine: plain' changes nothing in the network, 'tensorrt_config.use_tensorrt: true' "
        "compiles it: remove one");
  return options;
}

}  // namespace lockstep::infer
