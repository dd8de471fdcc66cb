#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "data/loader.h"
#include "train/step/step_part.h"

/// Audit of the ranks' arithmetic (run.audit_every).
namespace lockstep::train {

/// Finds a rank whose processor computes wrong gradients, before they reach the weights.
///
/// In an audited step each rank computes the gradients of another rank's samples too. The bits must
/// be those that the other rank has for its own. At the next audit each rank has another partner.
/// If two disagree, all ranks compute these samples, and most votes decide. Two ranks cannot
/// tell which of them is wrong. Attributes that a user's network changes in Python are not
/// restored.
///
/// A partner draws the same random numbers: they depend on the step and on the place of the samples
/// in the global batch.
class Audit {
 public:
  /// forward_parts: parts of the step that a forward pass changes. All outlive this.
  Audit(const TrainerParts& parts, TrainingPass& pass, std::vector<StepPart*> forward_parts);

  /// True if the step under way is audited. Equal on all ranks.
  bool is_due() const;
  /// Computes the gradients of another rank's samples and then undoes what the passes have changed,
  /// except for the gradients. `weight`: factor on the losses, equal on all ranks. Copies the own
  /// samples to memory of their own: kernels may compute differently with another alignment.
  /// Throws Error(kConfig).everywhere() if a user's network changes what cannot be restored.
  /// Collective.
  void compute_others(data::Batch* own, double weight);
  /// Compares the gradients in the flat buffers, of the own samples, with those that another rank
  /// has computed. Throws Error(kDisagree).everywhere(), naming the rank, its host, the first
  /// tensor and its values; Error(kConfig).everywhere() if the network does not repeat its results.
  /// Collective.
  void compare(const data::Batch& own, double weight);

 private:
  /// Digest of a parameter's gradient that a rank computed.
  struct Finding {
    int rank;
    int64_t digest;
    bool is_repeated;  ///< computed in the second round, by all ranks
  };

  int others_rank(int rank) const;
  data::Batch sent_by(int root, const data::Batch& own,
                      const std::vector<std::string>& headers) const;
  void compute(const data::Batch& batch, const data::Batch& own, double weight);
  at::Tensor gradient_of(int64_t param) const;
  at::Tensor digests() const;
  at::Tensor from_all_ranks(const at::Tensor& digests_P) const;
  [[noreturn]] void examine(int owner, int64_t param, const std::vector<Finding>& first,
                            const data::Batch& own, double weight);
  [[noreturn]] void judge(int owner, int64_t param, const std::vector<Finding>& findings,
                          const at::Tensor& own_gradient);
  std::string difference(int wrong, int right, const at::Tensor& wrong_gradient,
                         int64_t param) const;

  const TrainerParts& parts_;
  TrainingPass& pass_;
  const std::vector<StepPart*> forward_parts_;
  std::vector<int64_t> trained_;  ///< parameters in buffers that are not frozen, ascending
  at::Tensor others_P_;           ///< digests of another rank's gradients
  bool has_passed_ = false;       ///< an audit of this process found no difference
};

}  // namespace lockstep::train
