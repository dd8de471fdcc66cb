#pragma once

#include <algorithm>

#include "optim/options/optimizer_options.h"
#include "optim/rules/numbers.h"

namespace lockstep::optim::rules {

/// Weight decay, applied before the rule. L2 adds weight_decay * w to the gradient. Decoupled decay
/// subtracts rate * weight_decay * w from w, at most all of it (Loshchilov & Hutter 2019, in
/// PyTorch's form).
template <typename N>
struct WeightDecay {
  N l2 = 0;
  N minus_share = 0;

  WeightDecay() = default;
  WeightDecay(const OptimizerOptions& options, const GroupRates& rates)
      : l2(static_cast<N>(options.decoupled ? 0 : rates.weight_decay)),
        minus_share(static_cast<N>(
            options.decoupled ? -std::min(1.0, rates.learning_rate * rates.weight_decay) : 0)) {}
};

}  // namespace lockstep::optim::rules
