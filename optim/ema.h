#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>

#include "base/tensors/params.h"
#include "base/tensors/state_list.h"

namespace lockstep::optim {

/// Exponential moving average (EMA) of a model's weights:
///
///   ema += (1 - d) (w - ema),   d = min(decay, (1 + n) / (10 + n))
///
/// after the n-th update, so that the first updates have more weight. Source: TensorFlow's
/// tf.train.ExponentialMovingAverage(decay, num_updates), with num_updates = n.
///
/// Averages all parameters, including frozen ones, each as one dense tensor. So flat layout and
/// sharding do not matter. Needs as much memory as the weights, on each rank, and one pass over
/// both at each update. On CPUs no bit of a float32 average depends on the number of threads. One
/// caller at a time.
class Ema {
 public:
  /// The table must outlive this. Without decay the EMA is off: no call has an effect or uses
  /// memory.
  Ema(std::optional<double> decay, ParamTable& params);

  bool is_on() const { return decay_.has_value(); }

  /// Copies the weights to the average, unless it already contains updates (from a restore). Call
  /// it before the first update. True if it copied.
  bool begin();
  /// Adds an update. Call it after each update of the weights.
  void update();

  /// Average of one parameter, in its shape: live memory. Undefined if off.
  at::Tensor of(int64_t param) const;
  /// Returns the model's parameter table with the averages as tensors: live memory. Empty if off.
  ParamTable params() const;
  /// Checkpoint state: `ema/<name>` of each parameter, and the number of updates,
  /// `_lockstep/ema/num_updates`. A checkpoint without them leaves 0 updates, so begin() copies the
  /// weights. Empty if off.
  StateList state();

  /// Returns d of the n-th update.
  static double decay_at(double decay, int64_t n);

 private:
  friend class EmaInModel;

  const std::optional<double> decay_;
  ParamTable& params_;
  std::vector<at::Tensor> averages_;  // by parameter; empty if off
  int64_t num_updates_ = 0;
};

/// Replaces the model's weights by the averages for its lifetime, for evaluation and export. No
/// memory is copied or changed, so a save in progress is not disturbed. Meanwhile do not update the
/// weights or list the state for a save.
class EmaInModel {
 public:
  /// Null, or an average that is off: the weights stay.
  explicit EmaInModel(Ema* ema);
  ~EmaInModel();
  EmaInModel(const EmaInModel&) = delete;
  EmaInModel& operator=(const EmaInModel&) = delete;

 private:
  Ema* ema_;
  std::vector<at::Tensor> weights_;  // by parameter: the original memory
};

}  // namespace lockstep::optim
