#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>

#include "base/tensors/params.h"
#include "base/tensors/state_list.h"

namespace lockstep::optim {

/// The exponential moving average (EMA) of a model's weights, a copy of them that follows slowly:
///
///   ema += (1 - d) (w - ema),   d = min(decay, (1 + n) / (10 + n))
///
/// after the n-th update, so that the first updates count more. Source: TensorFlow's
/// tf.train.ExponentialMovingAverage(decay, num_updates), with num_updates = n.
///
/// All parameters are averaged, frozen ones too, each as one dense tensor: how they lie in flat
/// buffers, or who of the ranks updates them, does not matter. Takes as much memory as the
/// weights, on each rank, and one pass over both at each update. On CPUs no bit of a float32
/// average depends on the number of threads. One caller at a time.
class Ema {
 public:
  /// The table must outlive it. No decay: off, and then no call does anything or takes memory.
  Ema(std::optional<double> decay, ParamTable& params);

  bool is_on() const { return decay_.has_value(); }

  /// Before the first update: the average begins as the weights, unless updates are in it already
  /// (a restore has brought it). True if it begins.
  bool begin();
  /// After each update of the weights.
  void update();

  /// Of one parameter, in its shape: live memory. Undefined where off.
  at::Tensor of(int64_t param) const;
  /// The model's parameters with the averages as their tensors: live memory. Empty where off.
  ParamTable params() const;
  /// `ema/<name>` of each parameter, and the number of updates, `_lockstep/ema/num_updates`. A save
  /// without them leaves 0 updates, after which begin() begins. Empty where off.
  StateList state();

  /// d, of the n-th update.
  static double decay_at(double decay, int64_t n);

 private:
  friend class EmaInModel;

  const std::optional<double> decay_;
  ParamTable& params_;
  std::vector<at::Tensor> averages_;  // by parameter; empty where off
  int64_t num_updates_ = 0;
};

/// While it lives, the model computes with the averages in the place of its weights: for evaluation
/// and export. No memory is copied or changed, so a save under way reads on. Meanwhile nobody may
/// update the weights, nor list what a save holds.
class EmaInModel {
 public:
  /// Null, or an average that is off: the weights stay.
  explicit EmaInModel(Ema* ema);
  ~EmaInModel();
  EmaInModel(const EmaInModel&) = delete;
  EmaInModel& operator=(const EmaInModel&) = delete;

 private:
  Ema* ema_;
  std::vector<at::Tensor> weights_;  // by parameter, the memory of before
};

}  // namespace lockstep::optim
