#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "base/tensors/state_list.h"
#include "dist/communicator.h"

namespace lockstep::recal {

/// The smallest and largest value that each layer's input takes, as moving averages over steps,
/// equal on all ranks:
///
///   observe()  any number of times a step, in each micro-batch; kept aside
///   agree()    once after a counted step: one collective joins what the ranks saw, the averages
///              move by 1/100 of the way (the first observation sets them)
///   drop()     instead of agree(), after a step that does not count or is not to be learnt from
///
/// Symbol: L = layers. One thread at a time.
class InputRanges {
 public:
  /// Names of the layers, dotted.
  explicit InputRanges(std::vector<std::string> names);

  struct Range {
    float min = 0, max = 0;
    int64_t num_observations = 0;  ///< steps; 0: min and max mean nothing
  };
  Range at(int64_t layer) const;

  /// Keeps the smallest and the largest item of `input` aside; the host does not wait. `input`
  /// holds at least one item.
  void observe(int64_t layer, const at::Tensor& input);

  /// Collective. A layer that no rank observed, or whose values were not all finite, stays as it
  /// is.
  void agree(dist::Communicator& control);
  void drop();

  /// `_lockstep/quantization/<layer>/{input_min, input_max, observations}`, live memory. What was
  /// kept aside since the last agree() is not part of it: saves are made between steps.
  StateList state() const;

 private:
  struct Extremes {
    at::Tensor min, max;  // 0-dimensional, on the input's device
  };

  std::vector<std::string> names_;
  at::Tensor min_L_, max_L_;         // float32, on the CPU
  at::Tensor num_observations_L_;    // int64, on the CPU
  std::vector<Extremes> pending_L_;  // of this step; undefined: none
};

}  // namespace lockstep::recal
