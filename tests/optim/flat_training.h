#pragma once

#include <limits>
#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/ones.h>
#include <gtest/gtest.h>

#include "optim/flat_params.h"
#include "optim/mask_samples.h"
#include "optim/optimizer.h"

namespace lockstep::optim {

inline const OptimizerOptions kAdam{.type = "adam", .weight_decay = 0.01};

/// Each type with what differs from its defaults, as the run file reads it.
inline OptimizerOptions options_of(const std::string& type, double weight_decay = 0) {
  OptimizerOptions options = default_options(type);
  options.weight_decay = weight_decay;
  return options;
}

/// Every rule, with both forms of weight decay, and some in another form besides.
inline std::vector<OptimizerOptions> all_options() {
  std::vector<OptimizerOptions> all;
  for (const std::string& type : optimizer_types()) all.push_back(options_of(type, 0.01));
  all.push_back(options_of("momentum"));
  OptimizerOptions nesterov = options_of("momentum", 0.01);
  nesterov.nesterov = nesterov.decoupled = true;
  all.push_back(nesterov);
  OptimizerOptions ftrl = options_of("ftrl");
  ftrl.ftrl_learning_rate_power = -0.4;
  ftrl.ftrl_l1 = ftrl.ftrl_l2 = 0.001;
  all.push_back(ftrl);
  return all;
}

inline std::vector<OptimizerOptions> options_with_slots() {
  std::vector<OptimizerOptions> found = all_options();
  std::erase_if(found, [](const OptimizerOptions& one) { return one.type == "sgd"; });
  return found;
}

inline void PrintTo(const OptimizerOptions& options, std::ostream* out) { *out << options.type; }

/// Two weights in one buffer and a bias in another, with gradients that are a function of the step.
struct Training {
  explicit Training(const OptimizerOptions& options, at::ScalarType dtype = at::kFloat,
                    const BufferPlan& plan = {{2, 0}, {1}})
      : params{{"a.weight", leaf(numbers(50 * 33, 1).view({50, 33}), dtype), true, true},
               {"a.bias", leaf(at::ones({19}), dtype), false, false},
               {"b.weight", leaf(numbers(64 * 40, 2).view({64, 40}), dtype), true, true}},
        flat_params(params, plan, at::kCPU),
        optimizer(make_optimizer(options, flat_params.buffers(), params)),
        rates(initial_rates(options)) {}

  static at::Tensor leaf(const at::Tensor& values, at::ScalarType dtype) {
    return values.to(dtype).set_requires_grad(true);
  }
  int64_t num_elements() { return flat_params.buffers()[0].values_E.numel(); }

  /// Prunes as the recipe does at a mask change. `packs`: the optimizer is informed, else its slots
  /// are zeroed here.
  void prune(double kept_share, bool packs) {
    const at::NoGradGuard no_grad;
    bits = random_bits(flat_params.buffers()[0].values_E.numel(), kept_share, 17);
    zero_pruned_of(flat_params.buffers()[0].values_E);
    if (packs) {
      optimizer->set_kept(0, bits);
      return;
    }
    const at::Tensor mask = kept_floats();
    for (const FlatSlice& slice : flat_params.buffers()[0].slices)
      for (const at::Tensor& slot : optimizer->slots_of(slice.param))
        slot.mul_(view_of_slice(mask, slice, params));
  }
  /// Ends the mask.
  void release(bool packs) {
    bits.clear();
    if (packs) optimizer->set_kept(0, {});
  }

  void step() {
    make_gradients();
    optimizer->step(rates);
  }
  /// The same step, with NaN where gradients are late until they are waited for.
  void step_late(const std::vector<ParamShard>& regions) {
    make_gradients();
    std::vector<at::Tensor> come;
    const auto part = [&](const ParamShard& region) {
      return flat_params.buffers()[region.buffer].grads_E.slice(0, region.begin_E, region.end_E);
    };
    for (const ParamShard& region : regions) {
      come.push_back(part(region).clone());
      part(region).fill_(std::numeric_limits<float>::quiet_NaN());
    }
    size_t next = 0;
    optimizer->step(rates, {.regions = regions, .wait_for_next = [&] {
                              part(regions.at(next)).copy_(come.at(next));
                              ++next;
                            }});
    EXPECT_EQ(next, regions.size());
  }
  void make_gradients() {
    for (size_t b = 0; b < flat_params.buffers().size(); ++b) {
      FlatBuffer& buffer = flat_params.buffers()[b];
      if (buffer.frozen) continue;
      buffer.grads_E.copy_(
          numbers(buffer.grads_E.numel(), 100 * num_steps + static_cast<int64_t>(b)));
      if (b == 0 && !bits.empty()) zero_pruned_of(buffer.grads_E);
    }
    ++num_steps;
  }
  void steps(int num) {
    for (int i = 0; i < num; ++i) step();
  }

  void zero_pruned_of(const at::Tensor& flat_E) const {
    zero_pruned(flat_E.mutable_data_ptr(), bits.data(), flat_E.numel(), 4);
  }
  at::Tensor kept_floats() const {
    at::Tensor mask = at::ones({static_cast<int64_t>(64 * 40 + 50 * 33)});
    zero_pruned_of(mask);
    return mask;
  }

  ParamTable params;
  FlatParams flat_params;
  std::unique_ptr<Optimizer> optimizer;
  StepRates rates;
  std::vector<uint8_t> bits;
  int64_t num_steps = 0;
};

inline void expect_same_values(Training& one, Training& other) {
  for (size_t i = 0; i < one.params.size(); ++i)
    expect_same(one.params[i].tensor.detach(), other.params[i].tensor.detach());
}

inline void expect_same_state(const StateList& one, const StateList& other) {
  ASSERT_EQ(one.size(), other.size());
  for (size_t i = 0; i < one.size(); ++i) {
    SCOPED_TRACE(one[i].key);
    EXPECT_EQ(one[i].key, other[i].key);
    ASSERT_EQ(one[i].tensor.sizes(), other[i].tensor.sizes());
    if (one[i].tensor.is_floating_point())
      expect_same(one[i].tensor, other[i].tensor);
    else
      EXPECT_TRUE(at::equal(one[i].tensor, other[i].tensor));
  }
}

inline void copy_state(const StateList& from, const StateList& to) {
  ASSERT_EQ(from.size(), to.size());
  for (size_t i = 0; i < from.size(); ++i) to[i].tensor.copy_(from[i].tensor);
}

inline void copy_values(Training& from, Training* to) {
  for (size_t b = 0; b < from.flat_params.buffers().size(); ++b)
    to->flat_params.buffers()[b].values_E.copy_(from.flat_params.buffers()[b].values_E);
}

}  // namespace lockstep::optim
