#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "base/tensors/params.h"

namespace lockstep::dist {

/// Notifies a listener when backward has added a parameter's gradient to its `grad`. Also finds
/// parameters whose gradient has one source only.
///
/// The listener runs on the autograd thread that added the gradient, once per parameter and
/// backward pass. Calls for different parameters may be concurrent. Exceptions of the listener
/// leave backward(). Parameters that require no gradient at construction are ignored. Construct and
/// destroy while no backward runs.
class GradientHooks {
 public:
  /// Function that receives the parameter's index in the table.
  using Listener = std::function<void(int64_t param)>;

  GradientHooks(const ParamTable& params, Listener on_gradient);
  ~GradientHooks();

  /// Returns the parameters (indices, ascending) whose gradient has exactly one incoming edge in
  /// the graph of `root`. For these, what the one layer has written during backward is final.
  /// Excluded are weights that are used twice or that also enter a loss, and layers whose graph is
  /// built only during backward.
  std::vector<int64_t> with_one_source(const at::Tensor& root) const;

  GradientHooks(const GradientHooks&) = delete;
  GradientHooks& operator=(const GradientHooks&) = delete;

 private:
  struct Hook;

  Listener on_gradient_;
  std::vector<Hook> hooks_;
};

}  // namespace lockstep::dist
