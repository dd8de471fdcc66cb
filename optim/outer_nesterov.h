#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>

#include "base/tensors/params.h"
#include "base/tensors/state_list.h"

namespace lockstep::optim {

struct OuterOptions {
  double learning_rate = 0.7;
  double momentum = 0.9;  ///< in [0, 1)
};

/// The outer optimizer of local steps (`sync.outer_optimizer: nesterov`): SGD with Nesterov
/// momentum over what a round of local steps has moved the ranks' mean weights by,
///
///   g = start - mean,   m = momentum * m + g,   w = start - learning_rate * (g + momentum * m)
///
/// where `start` are the weights at the round's begin. Source: DiLoCo, arXiv 2311.08105, whose
/// outer optimizer is torch.optim.SGD(nesterov=True).
///
/// Takes twice the memory of the weights, on each rank. Elementwise: equal means make equal
/// weights, pruned weights stay 0 where their momentum is 0, and on CPUs no bit of float32 depends
/// on the number of threads. One caller at a time.
class OuterNesterov {
 public:
  /// The table must outlive it. No options: off, and then no call does anything or takes memory.
  OuterNesterov(std::optional<OuterOptions> options, ParamTable& params);

  bool is_on() const { return options_.has_value(); }

  /// The weights of now are those from which the next round begins. Not in a save: a save is made
  /// between rounds.
  void begin_round();
  /// The weights are the mean of the ranks': moves these parameters on from the round's begin.
  void step(const std::vector<int64_t>& params);

  /// Of one parameter, in its shape: live memory. Undefined where off.
  at::Tensor momentum_of(int64_t param) const;
  /// `optimizer/<name>/outer_momentum` of each parameter; 0 where a save has none. Empty where off.
  StateList state();

 private:
  void step_of(size_t param);

  const std::optional<OuterOptions> options_;
  ParamTable& params_;
  std::vector<at::Tensor> starts_, momentum_;  // by parameter; empty where off
};

}  // namespace lockstep::optim
