#pragma once

#include <cstdint>
#include <string>

#include <ATen/core/Tensor.h>

#include "base/random.h"
#include "model/layers.h"

namespace lockstep::model {

/// In training each number is dropped (made 0) with probability `share`, and what stays is scaled
/// so that the mean stays; in evaluation numbers pass as they are.
///
/// Which numbers are dropped is a pure function of (seed, step, place of the sample in the global
/// batch, layer, place in the sample): a batch may be cut between ranks in any way, on any device.
///
/// Source: Srivastava et al., JMLR 15 (2014).
class Dropout {
 public:
  /// `share` in [0, 1), kept as a multiple of 1/65536.
  Dropout(const std::string& name, double share, int64_t seed, const LayerTable* table);

  /// False: numbers pass as they are.
  bool is_on() const { return num_kept_ < kOf && table_->norms.is_training(); }
  /// [B, ...] of samples -> the same shape.
  at::Tensor operator()(const at::Tensor& inputs_BX) const;
  /// What to multiply numbers like these by: 0, or 1 / (1 - share). No gradient.
  at::Tensor mask(const at::Tensor& inputs_BX) const;

 private:
  static constexpr int64_t kOf = 65536;

  const LayerTable* table_;
  int64_t seed_, name_hash_;
  int64_t num_kept_;  // of kOf
};

/// How a mask is drawn: number n of sample s is kept if 16 bits of `random`, those of place n % 4
/// in word s × words + n / 4, are less than num_kept. Symbols: N = numbers of a sample.
struct MaskDraw {
  CounterRandom random;
  int64_t first_sample = 0, num_kept = 0;
  float kept_value = 1;
};
/// Float32 [B, N]. The same twice: a loop for the CPU, and tensor operations for any device.
at::Tensor drawn_by_loop(const MaskDraw& draw, int64_t num_samples, int64_t num_numbers);
at::Tensor drawn_by_tensors(const MaskDraw& draw, int64_t num_samples, int64_t num_numbers,
                            at::Device device);

}  // namespace lockstep::model
