#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/params.h"
#include "base/state_list.h"
#include "base/yaml_fields.h"

namespace lockstep::optim {

/// Section `optimizer` of the run file.
struct OptimizerOptions {
  std::string type = "momentum";  ///< sgd | momentum | adam
  double learning_rate = 0.01;
  double momentum = 0.9;  ///< momentum
  bool nesterov = false;  ///< momentum
  double adam_beta1 = 0.9;
  double adam_beta2 = 0.999;
  double opt_epsilon = 1e-7;  ///< adam, placed as TensorFlow does
  double weight_decay = 0.0;  ///< L2, on weights only
};

OptimizerOptions read_optimizer_options(YamlFields in);

/// Updates parameters in their flat buffers with ATen's fused kernels. TensorFlow's formulas. One
/// caller at a time.
class Optimizer {
 public:
  virtual ~Optimizer() = default;

  /// One update with the gradients that stand in the buffers. No allocation in a steady step.
  virtual void step(double learning_rate) = 0;

  /// Slots by parameter, `optimizer/<name>/<slot>`, and the number of updates: live memory for
  /// saves and restores.
  virtual StateList state() = 0;
};

/// The buffers and the table must outlive the optimizer; buffers keep their memory.
std::unique_ptr<Optimizer> make_optimizer(const OptimizerOptions& options,
                                          std::vector<FlatBuffer>& buffers,
                                          const ParamTable& params);

}  // namespace lockstep::optim
