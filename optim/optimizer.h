#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/params.h"
#include "base/state_list.h"
#include "base/yaml_fields.h"
#include "optim/learning_rate_decay.h"

namespace lockstep::optim {

/// Section `optimizer` of the run file.
struct OptimizerOptions {
  std::string type = "momentum";  ///< sgd | momentum | adam
  double learning_rate = 0.01;
  LearningRateDecay decay;  ///< of the rate, where no recipe writes it
  double momentum = 0.9;    ///< momentum
  bool nesterov = false;    ///< momentum
  double adam_beta1 = 0.9;
  double adam_beta2 = 0.999;
  double opt_epsilon = 1e-7;  ///< adam, placed as TensorFlow does
  double weight_decay = 0.0;  ///< L2, on weights only
};

OptimizerOptions read_optimizer_options(YamlFields in);

/// What one update takes beside the gradients, by parameter group.
struct GroupRates {
  double learning_rate = 0;
  double weight_decay = 0;  ///< L2
};
using StepRates = std::array<GroupRates, kNumParamGroups>;

/// The options' own rates at step 0: weight decay on the weights' group only.
StepRates initial_rates(const OptimizerOptions& options);

/// Updates the trainable parameters in their flat buffers with ATen's fused kernels. TensorFlow's
/// formulas. One caller at a time.
class Optimizer {
 public:
  /// The buffers and the table must outlive the optimizer.
  Optimizer(std::vector<FlatBuffer>& buffers, const ParamTable& params)
      : buffers_(buffers), params_(params) {}
  virtual ~Optimizer() = default;

  /// One update with the gradients that stand in the buffers. Frozen buffers and their slots stay
  /// as they are. No allocation in a steady step.
  virtual void step(const StepRates& rates) = 0;

  /// Slots by parameter, `optimizer/<name>/<slot>`, and the number of updates: live memory for
  /// saves and restores, until the buffers are laid out anew.
  StateList state();
  /// Slots of one parameter in its shape; live memory.
  std::vector<at::Tensor> slots_of(int64_t param);

  /// Call after the buffers were laid out anew: slots are laid out like them, with their values.
  void follow(const std::vector<FlatBuffer>& buffers_before);

 protected:
  /// A zero tensor beside each buffer's values.
  void add_slot(std::string name);
  /// [E] of a buffer.
  at::Tensor& slot(size_t index, size_t buffer) { return slots_[index].flat[buffer]; }

  std::vector<FlatBuffer>& buffers_;
  const ParamTable& params_;
  int64_t num_updates_ = 0;

 private:
  struct Slot {
    std::string name;
    std::vector<at::Tensor> flat;  // [E] a buffer
  };
  std::vector<Slot> slots_;
};

/// The buffers and the table must outlive the optimizer.
std::unique_ptr<Optimizer> make_optimizer(const OptimizerOptions& options,
                                          std::vector<FlatBuffer>& buffers,
                                          const ParamTable& params);

}  // namespace lockstep::optim
