#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/tensors/param_shard.h"
#include "base/tensors/params.h"
#include "base/tensors/state_list.h"
#include "base/yaml/config_reader.h"
#include "optim/clip_gradients.h"
#include "optim/learning_rate_decay.h"
#include "optim/optimizer_state.h"

namespace lockstep::optim {

/// Section `optimizer` of the run file.
struct OptimizerOptions {
  std::string type = "momentum";  ///< sgd | momentum | adam
  double learning_rate = 0.01;
  LearningRateDecay decay;  ///< of the rate, where no recipe writes it
  double momentum = 0.9;    ///< momentum
  bool nesterov = false;    ///< momentum
  double adam_beta1 = 0.9;
  double adam_beta2 = 0.999;
  double opt_epsilon = 1e-7;  ///< adam, placed as TensorFlow does
  double weight_decay = 0.0;  ///< L2, on weights only
  ClipOptions clip;           ///< of the gradients, before the update
};

OptimizerOptions read_optimizer_options(ConfigReader in);

/// What one update takes beside the gradients, by parameter group.
struct GroupRates {
  double learning_rate = 0;
  double weight_decay = 0;  ///< L2
};
using StepRates = std::array<GroupRates, kNumParamGroups>;

/// The options' own rates at step 0: weight decay on the weights' group only.
StepRates initial_rates(const OptimizerOptions& options);

/// Updates the trainable parameters in their flat buffers. TensorFlow's formulas; ATen's fused
/// kernels, and packed ones of its own where masks leave few weights. One caller at a time.
///
/// Of its slots (moments) it keeps only what its own updates need: those of the regions that this
/// rank owns, and in a buffer of which a mask keeps at most OptimizerState::kPackBelow those of
/// kept weights alone. A pruned weight is 0 and its gradient is +0, so its slots would stay 0
/// anyway.
///
/// Float32 on x86-64 CPUs with AVX2: no bit of a weight or slot depends on how regions are cut, on
/// what is packed, or on the number of threads (tests/optim). Elsewhere ATen rounds as it likes,
/// and an element may come out differently near the end of a dense region or when it is packed.
class Optimizer {
 public:
  /// The buffers and the table must outlive the optimizer. Owns all; nothing is pruned.
  Optimizer(std::vector<FlatBuffer>& buffers, const ParamTable& params)
      : buffers_(buffers), params_(params), slots_(buffers, params) {}
  virtual ~Optimizer() = default;

  /// Which parts of the buffers this rank updates, disjoint, in any order; of a buffer without a
  /// region none. Regions of frozen buffers are passed over: their slots stay whole on every rank.
  /// Masks are forgotten: set_kept() comes after. What was not owned before starts at 0, unless
  /// sharded_state() was completed right before.
  void set_shards(const std::vector<ParamShard>& regions);

  /// Which elements of a buffer are kept (base/bits/bit_mask.h; its elements as items), copied;
  /// empty: all. At each change of masks, with the same bits on all ranks. Slots of weights that
  /// stay kept keep their values, others are 0. Ignored for a frozen buffer.
  void set_kept(size_t buffer, std::span<const uint8_t> bits);

  /// One update with the gradients that stand in the buffers. What this rank does not own, frozen
  /// buffers and their slots stay as they are, and so do pruned weights of packed buffers, whose
  /// gradients must be +0. No tensor is allocated, except in the first step and in one after
  /// state() or slots_of().
  void step(const StepRates& rates);

  /// Slots by parameter in its shape, `optimizer/<name>/<slot>`, and the number of updates: for
  /// saves and restores. Values that this rank owns, zeros where it does not and where packing left
  /// none. Live memory until step(), set_shards(), set_kept() or rebuild(), which take back what
  /// then stands there; calling again gives the same memory, with those zeros restored.
  ///
  /// Until then the slots take as much memory as dense slots of all parameters, on each rank, and
  /// one packed tensor more at the peak. Time: about three packed updates to expand, one to pack
  /// again in the next step. Nothing is copied where no slot is packed or sharded.
  StateList state();
  /// The entries of state() whose values are divided over the ranks by set_shards(): summed over
  /// the ranks they are whole. Equal names on all ranks. The same memory as state()'s.
  StateList sharded_state();
  /// Slots of one parameter in its shape, on the terms of state() but for the zeros.
  std::vector<at::Tensor> slots_of(int64_t param);

  /// Call after the buffers were flattened anew: slots then have the buffers' new order and keep
  /// their values. They are dense until the next step() or set_kept(), whole until set_shards().
  /// Where slots are sharded, consolidate sharded_state() before the buffers are flattened.
  void rebuild(const std::vector<FlatBuffer>& buffers_before);

  /// Memory that the slots take now.
  int64_t slot_bytes() const { return slots_.num_bytes(); }

 protected:
  /// Before the updates of one step's regions.
  virtual void begin_step() {}
  /// One owned region of a buffer that is not frozen. Slots in the order of add_slot().
  virtual void update(const FlatBuffer& buffer, SlotPart* part, const GroupRates& rates) = 0;

  /// A zero tensor beside each buffer's values.
  void add_slot(std::string name) { slots_.add(std::move(name)); }
  int64_t num_updates() const { return num_updates_; }

 private:
  void list_slots(size_t buffer, StateList* list);

  std::vector<FlatBuffer>& buffers_;
  const ParamTable& params_;
  OptimizerState slots_;
  int64_t num_updates_ = 0;
};

/// The buffers and the table must outlive the optimizer.
std::unique_ptr<Optimizer> make_optimizer(const OptimizerOptions& options,
                                          std::vector<FlatBuffer>& buffers,
                                          const ParamTable& params);

}  // namespace lockstep::optim
