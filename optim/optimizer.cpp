#include "optim/optimizer.h"

#include "base/error.h"
#include "optim/adam.h"
#include "optim/sgd.h"

namespace lockstep::optim {

OptimizerOptions read_optimizer_options(YamlFields in) {
  OptimizerOptions options;
  in.read_choice("type", &options.type, {"sgd", "momentum", "adam"},
                 "update rule, in TensorFlow's form");
  in.read("learning_rate", &options.learning_rate, more_than(0),
          "before the first step; a recipe may change it");
  if (options.type == "momentum") {
    in.read("momentum", &options.momentum, half_open(0, 1),
            "momentum: share of the last update that is kept");
    in.read("nesterov", &options.nesterov, "momentum: look ahead by one update");
  }
  if (options.type == "adam") {
    in.read("adam_beta1", &options.adam_beta1, half_open(0, 1), "adam: decay of the first moment");
    in.read("adam_beta2", &options.adam_beta2, half_open(0, 1), "adam: decay of the second moment");
    in.read("opt_epsilon", &options.opt_epsilon, more_than(0),
            "adam: added to the root, before bias correction as in TensorFlow");
  }
  in.read("weight_decay", &options.weight_decay, at_least(0), "L2 on weights, not on biases");
  in.done();
  return options;
}

std::unique_ptr<Optimizer> make_optimizer(const OptimizerOptions& options,
                                          std::vector<FlatBuffer>& buffers,
                                          const ParamTable& params) {
  if (options.type == "adam") return std::make_unique<Adam>(options, buffers, params);
  check(options.type == "sgd" || options.type == "momentum",
        "the reader lets only known optimizers pass");
  return std::make_unique<Sgd>(options, buffers, params);
}

}  // namespace lockstep::optim
