#pragma once

#include "optim/rules/adam.h"
#include "optim/rules/adaptive.h"
#include "optim/rules/momentum.h"
#include "optim/rules/weight_decay.h"

namespace lockstep::optim::rules {

/// List of all rules on floats, as Of<rule, ...>: each has a kernel on each SIMD path.
template <template <typename...> typename Of>
using OfAll = Of<Sgd<float>, Momentum<float>, Adam<float>, Adagrad<float>, Adadelta<float>,
                 RmsProp<float>, Ftrl<float>, FtrlOfRoot<float>, Lion<float>>;

/// Applies the rule to element i, with slots in the order of kSlots. Slots that the rule lacks may
/// be null.
template <typename Rule, typename V>
LOCKSTEP_INLINE V apply(const Rule& rule, const V& w, const V& g, V* first, V* second, int64_t i) {
  if constexpr (Rule::kSlots.size() == 2)
    return rule(w, g, first[i], second[i]);
  else if constexpr (Rule::kSlots.size() == 1)
    return rule(w, g, first[i]);
  else
    return rule(w, g);
}

}  // namespace lockstep::optim::rules
