#pragma once

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "optim/elementwise.h"

/// Rules with a fused ATen kernel, which is used if no own kernel applies.
namespace lockstep::optim {

/// Batch of one fused call: tensors of one type and one group. `slots`: by slot, then like the
/// values.
struct FusedBatch {
  const GroupRates* rates = nullptr;
  int64_t num_updates = 0;  ///< of these tensors, including this one
  std::vector<at::Tensor> values, grads;
  std::vector<std::vector<at::Tensor>> slots;
  std::optional<at::Tensor> found_inf;  ///< see Optimizer::step()
};

/// Collects a step's tensors and updates them together. On a GPU, a kernel per flat buffer would
/// leave most of it idle.
template <template <typename> class Rule>
class Fused : public Elementwise<Rule> {
  using Elementwise<Rule>::Elementwise;

 public:
  bool takes_found_inf() const override {
    const std::vector<FlatBuffer>& buffers = this->buffers();
    return std::none_of(buffers.begin(), buffers.end(), [](const FlatBuffer& buffer) {
      return !buffer.frozen && takes_kernels(buffer);
    });
  }

 protected:
  void update_tensors(const at::Tensor& values, const at::Tensor& grads,
                      std::vector<at::Tensor>& slots, const GroupRates& rates) final {
    FusedBatch& batch = batch_of(rates, values.scalar_type());
    batch.values.push_back(values);
    batch.grads.push_back(grads);
    for (size_t slot = 0; slot < slots.size(); ++slot) batch.slots[slot].push_back(slots[slot]);
  }

  void end_step() override {
    for (const FusedBatch& batch : std::exchange(batches_, {})) update_batch(batch);
  }

  virtual void update_batch(const FusedBatch& batch) = 0;

 private:
  FusedBatch& batch_of(const GroupRates& rates, at::ScalarType type) {
    for (FusedBatch& batch : batches_)
      if (batch.rates == &rates && batch.num_updates == this->num_updates() &&
          batch.values.front().scalar_type() == type)
        return batch;
    batches_.push_back({.rates = &rates,
                        .num_updates = this->num_updates(),
                        .slots = {},
                        .found_inf = std::nullopt});
    if (this->found_inf().defined()) batches_.back().found_inf = this->found_inf();
    batches_.back().slots.resize(Rule<float>::kSlots.size());
    return batches_.back();
  }

  std::vector<FusedBatch> batches_;  ///< collected in this step
};

class FusedSgd final : public Fused<rules::Sgd> {
  using Fused::Fused;
  void update_batch(const FusedBatch& batch) override;
};

class FusedMomentum final : public Fused<rules::Momentum> {
  using Fused::Fused;
  void update_batch(const FusedBatch& batch) override;
};

/// Fused kernel for adam and adamw.
class FusedAdam final : public Fused<rules::Adam> {
  using Fused::Fused;
  void update_batch(const FusedBatch& batch) override;
};

}  // namespace lockstep::optim
