#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "base/tensors/params.h"

namespace lockstep::dist {

/// Tells when backward has added a parameter's gradient to its `grad`, and where it comes from.
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

  /// Parameters (indices, ascending) to whose gradient one edge leads in the graph of `root`, so
  /// that what its one layer has written there in backward is what it will be. A weight that is
  /// used twice, or of which a loss is made too, is not among them; nor one whose layer's graph is
  /// only made during backward.
  std::vector<int64_t> with_one_source(const at::Tensor& root) const;

  GradientHooks(const GradientHooks&) = delete;
  GradientHooks& operator=(const GradientHooks&) = delete;

 private:
  struct Hook;

  Listener on_gradient_;
  std::vector<Hook> hooks_;
};

}  // namespace lockstep::dist
