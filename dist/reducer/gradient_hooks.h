#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "base/tensors/params.h"

namespace lockstep::dist {

/// Tells when backward has added a parameter's gradient to its `grad`.
///
/// The listener runs on the thread of backward that added it, once a parameter and backward pass,
/// several parameters perhaps at the same time; what it throws comes out of backward(). Parameters
/// that require no gradient when this is made are left out. Set-up and end while no backward runs.
class GradientHooks {
 public:
  /// Gets the parameter's index in the table.
  using Listener = std::function<void(int64_t param)>;

  GradientHooks(const ParamTable& params, Listener on_gradient);
  ~GradientHooks();
  GradientHooks(const GradientHooks&) = delete;
  GradientHooks& operator=(const GradientHooks&) = delete;

 private:
  struct Hook;

  Listener on_gradient_;
  std::vector<Hook> hooks_;
};

}  // namespace lockstep::dist
