#pragma once

#include "optim/rules/adam.h"
#include "optim/rules/adaptive.h"
#include "optim/rules/momentum.h"
#include "optim/rules/weight_decay.h"

namespace lockstep::optim::rules {

/// Of<rule, ...> of every rule on floats: each has a kernel on each path.
template <template <typename...> typename Of>
using OfAll = Of<Sgd<float>, Momentum<float>, Adam<float>, Adagrad<float>, Adadelta<float>,
                 RmsProp<float>, Ftrl<float>, FtrlOfRoot<float>, Lion<float>>;

/// The rule on element i, with its slots in the order of kSlots; those that it does not have may be
/// null.
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
