#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "base/tensors/params.h"
#include "base/tensors/state_list.h"
#include "dist/communicator.h"
#include "recal/masks/block_fisher.h"
#include "recal/masks/mask_table.h"
#include "recal/schedule/timeline.h"

/// Statistics of gradients for modifiers that do not prune by magnitude.
namespace lockstep::recal {

/// Statistics of the parameters that a timeline prunes by movement or by Fisher blocks. They come
/// from the reduced gradients of the run's own steps, which are equal on all ranks. Each
/// parameter's Fisher blocks belong to one rank, which sends scores and changes to the others.
///
/// Movement: -sum of weight * gradient over all steps before an update. Fisher: the last num_grads
/// gradients before an update, since the update before. Not thread-safe.
class GradientScores {
 public:
  GradientScores() = default;
  /// Allocates the statistics; memory of other ranks' parameters is not touched. `params` must stay
  /// valid.
  GradientScores(const ParamTable& params, const Timeline& timeline, int rank, int world_size);

  bool empty() const { return entries_.empty(); }

  /// Begins a step, before its forward pass.
  void begin_step(int64_t step);
  /// Ends a step whose update counts. The parameters still have its gradients.
  void end_step(int64_t step, const MaskTable& masks);

  /// Scores that replace the weights of a set in the selection of the smallest, one tensor for each
  /// parameter, on the CPU. A parameter without gradients, such as a frozen one, has its
  /// magnitudes. Empty if the whole set is pruned by magnitude: no parameter has gradients, or one
  /// lacks them and is_global (one threshold over all). Collective for Fisher blocks.
  std::vector<at::Tensor> scores(int param_set, bool is_global, dist::Communicator& control) const;
  /// Changes to subtract from the weights after a set was pruned by scores(), from `kept_before`
  /// (bits of each parameter) to the masks of now. Empty for movement. Collective for Fisher
  /// blocks.
  std::vector<at::Tensor> changes(int param_set, const std::vector<at::Tensor>& kept_before,
                                  const MaskTable& masks, dist::Communicator& control) const;
  /// Forgets the gradients of Fisher blocks, which were those of weights before the change.
  void reset(int param_set);

  /// Checkpoint state `_lockstep/pruning/...`, live memory. all = false: only what holds gradients,
  /// for a save in the middle of a run.
  StateList state(bool all) const;

 private:
  struct Entry {
    int64_t param = 0;
    int param_set = 0;  ///< index in the timeline
    std::string name;   ///< in checkpoints
    int64_t group = 1;  ///< weights that are pruned together
    at::Tensor weight;  ///< the model's own tensor
    int owner = 0;      ///< rank of the Fisher blocks
    std::vector<StepRange> windows;
    std::optional<BlockFisher> fisher;
    at::Tensor movement, weight_before;
    int64_t num_moves = 0;

    int64_t num_gradients() const { return fisher ? fisher->num_grads() : num_moves; }
    bool collects_at(int64_t step) const;
  };

  /// Entries of a set, in the order of its parameters.
  std::vector<const Entry*> entries_of(int param_set) const;
  /// Computes a tensor on the owner's rank and returns it on every rank.
  template <typename Compute>
  at::Tensor from_owner(const Entry& entry, dist::Communicator& control,
                        const Compute& compute) const;

  std::vector<Entry> entries_;
  int rank_ = 0;
};

}  // namespace lockstep::recal
