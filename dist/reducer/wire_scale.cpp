#include "dist/reducer/wire_scale.h"

#include <algorithm>
#include <cmath>

namespace lockstep::dist {
namespace {

constexpr int64_t kBoundExponent = 8;  // scaled, the bound is below 2 to this power
constexpr int64_t kLargest = 120;      // 2^-120 and 2^120 are normal float32 numbers

}  // namespace

double WireScale::value() const {
  return !is_used_ || exponent_ == kUnknown ? 1 : std::ldexp(1.0, static_cast<int>(exponent_));
}

void WireScale::follow(double bound) {
  exponent_ = kUnknown;
  if (!(bound > 0) || !std::isfinite(bound)) return;
  int exponent = 0;
  (void)std::frexp(bound, &exponent);  // bound < 2^exponent
  exponent_ = std::clamp(kBoundExponent - exponent, -kLargest, kLargest);
}

StateList WireScale::state() {
  if (!is_used_) return {};
  return {{"_lockstep/sync/wire_exponent", view_of(&exponent_), nullptr,
           static_cast<double>(kUnknown)}};
}

}  // namespace lockstep::dist
