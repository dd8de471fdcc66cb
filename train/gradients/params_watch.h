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

/// Observes how a user's network treats its trained parameters in a step: which of them backward
/// reaches, and whether forward writes one. Call it while no forward or backward pass runs.
class ParamsWatch {
 public:
  /// The table must outlive this.
  explicit ParamsWatch(const ParamTable& params);
  ParamsWatch(const ParamsWatch&) = delete;
  ParamsWatch& operator=(const ParamsWatch&) = delete;

  /// Adapts to a new set of parameters that require a gradient.
  void follow();
  /// Marks all parameters as not reached.
  void begin_step();
  /// Marks every parameter as reached, for a step without samples, whose gradients are zeros.
  void take_all_as_reached();
  void before_forward();
  void after_forward();

  /// Number of trained parameters that no backward pass since begin_step() has reached.
  int64_t num_missing() const;
  /// Flags by parameter, int64 [P]: 1 for reached parameters, and for those that are not trained.
  at::Tensor reached_P() const;
  /// True if forward has written a trained parameter in place, until note_write().
  bool has_written() const { return written_ && !is_noted_; }
  /// Acknowledges a write on all ranks. Returns the parameter's name; empty if another rank wrote.
  std::string note_write();
  /// Returns the names of those parameters that were not returned before.
  std::vector<std::string> new_names(const std::vector<int64_t>& params);

 private:
  const ParamTable& params_;
  std::unique_ptr<std::atomic<bool>[]> reached_;
  std::vector<int64_t> versions_;  ///< by parameter, before forward
  std::vector<bool> was_named_;
  std::optional<size_t> written_;
  bool is_noted_ = false;
  std::unique_ptr<dist::GradientHooks> hooks_;  ///< last: uses the members above
};

}  // namespace lockstep::train
