#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/tensors/params.h"
#include "dist/reducer/gradient_hooks.h"

namespace lockstep::train {

/// Watches what a user's network does with its trained parameters in a step: which of them backward
/// reaches, and whether forward writes one. Calls while no forward or backward pass runs.
class ParamsWatch {
 public:
  /// The table outlives this.
  explicit ParamsWatch(const ParamTable& params);
  ParamsWatch(const ParamsWatch&) = delete;
  ParamsWatch& operator=(const ParamsWatch&) = delete;

  /// Other parameters require a gradient now.
  void follow();
  /// No parameter is reached.
  void begin_step();
  /// Every parameter is reached: for a step without samples, whose gradients are zeros.
  void take_all_as_reached();
  void before_forward();
  void after_forward();

  /// Trained ones that no backward pass since begin_step() has reached.
  int64_t num_missing() const;
  /// By parameter int64 [P]: 1 for those that were reached, and for those that are not trained.
  at::Tensor reached_P() const;
  /// Whether forward has written a trained parameter in place, until note_write().
  bool has_written() const { return written_ && !is_noted_; }
  /// All ranks know of it. Returns the parameter's name; empty if another rank has written.
  std::string note_write();
  /// Names of those of these parameters that were not named before.
  std::vector<std::string> new_names(const std::vector<int64_t>& params);

 private:
  const ParamTable& params_;
  std::unique_ptr<std::atomic<bool>[]> reached_;
  std::vector<int64_t> versions_;  ///< by parameter, before forward
  std::vector<bool> was_named_;
  std::optional<size_t> written_;
  bool is_noted_ = false;
  std::unique_ptr<dist::GradientHooks> hooks_;  ///< last: they use the rest
};

}  // namespace lockstep::train
