#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "base/tensors/state_list.h"
#include "dist/communicator.h"

namespace lockstep::recal {

/// Smallest and largest value of each layer's input, as moving averages over steps, equal on all
/// ranks:
///
///   observe()  any number of times per step, in each micro-batch; stores local extremes
///   agree()    once after a counted step: one collective joins the ranks' extremes, and the
///              averages move by 1/100 of the difference (the first observation sets them)
///   drop()     instead of agree(), after a step that does not count or must not be learnt from
///
/// Symbol: L = layers. Not thread-safe: one thread at a time.
class InputRanges {
 public:
  /// Takes the dotted names of the layers.
  explicit InputRanges(std::vector<std::string> names);

  struct Range {
    float min = 0, max = 0;
    int64_t num_observations = 0;  ///< counted steps; 0: min and max are undefined
  };
  Range at(int64_t layer) const;

  /// Updates the local extremes with `input`, which has at least one element. Does not synchronize
  /// with the device.
  void observe(int64_t layer, const at::Tensor& input);

  /// Updates the averages. Collective. A layer stays unchanged if no rank observed it, or if an
  /// observed value was not finite.
  void agree(dist::Communicator& control);
  void drop();

  /// Checkpoint state `_lockstep/quantization/<layer>/{input_min, input_max, observations}`, live
  /// memory. Observations since the last agree() are not included: checkpoints are made between
  /// steps.
  StateList state() const;

 private:
  struct Extremes {
    at::Tensor min, max;  // 0-dimensional, on the input's device
  };

  std::vector<std::string> names_;
  at::Tensor min_L_, max_L_;         // float32, on the CPU
  at::Tensor num_observations_L_;    // int64, on the CPU
  std::vector<Extremes> pending_L_;  // of this step; undefined if not observed
};

}  // namespace lockstep::recal
