#pragma once

#include <cstdint>
#include <string>

#include <ATen/core/Tensor.h>

#include "base/random.h"
#include "model/layers.h"

namespace lockstep::model {

/// Dropout. Training sets each element to 0 with probability `share` and scales the others, so that
/// the mean stays the same. Evaluation changes nothing.
///
/// The choice is a pure function of (seed, step, index of the sample in the global batch, layer,
/// index in the sample). So the batch may be split between ranks in any way, on any device.
///
/// Source: Srivastava et al., JMLR 15 (2014).
class Dropout {
 public:
  /// share: in [0, 1), rounded to a multiple of 1/65536.
  Dropout(const std::string& name, double share, int64_t seed, const LayerTable* table);

  /// False if elements pass unchanged.
  bool is_on() const { return num_kept_ < kOf && table_->norms.is_training(); }
  /// Applies dropout to samples: [B, ...] -> the same shape.
  at::Tensor operator()(const at::Tensor& inputs_BX) const;
  /// Factors for elements of this shape: 0, or 1 / (1 - share). No gradient.
  at::Tensor mask(const at::Tensor& inputs_BX) const;

 private:
  static constexpr int64_t kOf = 65536;

  const LayerTable* table_;
  int64_t seed_, name_hash_;
  int64_t num_kept_;  // of kOf
};

/// Parameters of a random mask. Element n of sample s is kept if 16 bits of `random` are less than
/// num_kept: those at position n % 4 of word s × words + n / 4. N = elements of a sample.
struct MaskDraw {
  CounterRandom random;
  int64_t first_sample = 0, num_kept = 0;
  float kept_value = 1;
};
/// Returns the mask, float32 [B, N]: with a loop on the CPU, or with tensor operations on any
/// device. Both give the same values.
at::Tensor drawn_by_loop(const MaskDraw& draw, int64_t num_samples, int64_t num_numbers);
at::Tensor drawn_by_tensors(const MaskDraw& draw, int64_t num_samples, int64_t num_numbers,
                            at::Device device);

}  // namespace lockstep::model
