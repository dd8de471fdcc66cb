#include "optim/optimizer.h"

#include <ATen/core/grad_mode.h>
#include <fmt/format.h>

#include "base/error.h"
#include "optim/adam.h"
#include "optim/flat_params.h"
#include "optim/sgd.h"

namespace lockstep::optim {
OptimizerOptions read_optimizer_options(ConfigReader in) {
  OptimizerOptions options;
  in.read_choice("type", &options.type, {"sgd", "momentum", "adam"},
                 "update rule, in TensorFlow's form");
  in.read("learning_rate", &options.learning_rate, more_than(0),
          "before the first step; a recipe may change it");
  read_learning_rate_decay(&in, &options.decay);
  if (options.type == "momentum") {
    in.read("momentum", &options.momentum, half_open(0, 1),
            "momentum: share of the last update that is kept");
    in.read("nesterov", &options.nesterov, "momentum: look ahead by one update");
  }
  if (options.type == "adam") {
    in.read("adam_beta1", &options.adam_beta1, half_open(0, 1), "adam: decay of the first moment");
    in.read("adam_beta2", &options.adam_beta2, half_open(0, 1), "adam: decay of the second moment");
    in.read("opt_epsilon", &options.opt_epsilon, more_than(0),
            "adam: added to the root, before bias correction as in TensorFlow");
  }
  in.read("weight_decay", &options.weight_decay, at_least(0),
          "L2 on weights, not on biases; a recipe may change it");
  in.read("clip_value", &options.clip.value, more_than(0),
          "each element of the mean gradient is kept within plus and minus this");
  in.read("clip_norm", &options.clip.norm, more_than(0),
          "the whole mean gradient is shortened to this length, before clip_value");
  in.done();
  return options;
}

StepRates initial_rates(const OptimizerOptions& options) {
  StepRates rates;
  for (GroupRates& group : rates) group.learning_rate = options.learning_rate;
  rates[kWeightGroup].weight_decay = options.weight_decay;
  return rates;
}

void Optimizer::set_shards(const std::vector<ParamShard>& regions) { slots_.set_shards(regions); }

void Optimizer::set_kept(size_t buffer, std::span<const uint8_t> bits) {
  slots_.set_kept(buffer, bits);
}

void Optimizer::rebuild(const std::vector<FlatBuffer>& buffers_before) {
  slots_.rebuild(buffers_before);
}

void Optimizer::step(const StepRates& rates) {
  const at::NoGradGuard no_grad;
  slots_.take_back();
  ++num_updates_;
  begin_step();
  for (size_t b = 0; b < buffers_.size(); ++b) {
    const FlatBuffer& buffer = buffers_[b];
    if (buffer.frozen) continue;
    for (SlotPart& part : slots_.parts(b))
      update(buffer, &part, rates[static_cast<size_t>(buffer.group)]);
  }
}

void Optimizer::list_slots(size_t buffer, StateList* list) {
  const std::vector<at::Tensor>& whole = slots_.expand_clean(buffer);
  for (size_t slot = 0; slot < whole.size(); ++slot)
    for (const FlatSlice& slice : buffers_[buffer].slices) {
      StateEntry entry{.key = fmt::format("optimizer/{}/{}",
                                          slashed(params_[static_cast<size_t>(slice.param)].name),
                                          slots_.names()[slot]),
                       .tensor = view_of_slice(whole[slot], slice, params_)};
      if (slots_.is_divided(buffer)) entry.held = slots_.owned_of(buffer, slice);
      entry.steady = true;
      list->push_back(std::move(entry));
    }
}

StateList Optimizer::state() {
  StateList list{{"optimizer/iterations", view_of(&num_updates_), nullptr}};
  for (size_t b = 0; b < buffers_.size(); ++b) list_slots(b, &list);
  return list;
}

StateList Optimizer::sharded_state() {
  StateList list;
  for (size_t b = 0; b < buffers_.size(); ++b)
    if (slots_.is_divided(b)) list_slots(b, &list);
  return list;
}

std::vector<at::Tensor> Optimizer::slots_of(int64_t param) {
  std::vector<at::Tensor> found;
  for (size_t b = 0; b < buffers_.size(); ++b)
    for (const FlatSlice& slice : buffers_[b].slices) {
      if (slice.param != param) continue;
      for (const at::Tensor& whole_E : slots_.expand(b))
        found.push_back(view_of_slice(whole_E, slice, params_));
    }
  return found;
}

std::unique_ptr<Optimizer> make_optimizer(const OptimizerOptions& options,
                                          std::vector<FlatBuffer>& buffers,
                                          const ParamTable& params) {
  if (options.type == "adam") return std::make_unique<Adam>(options, buffers, params);
  check(options.type == "sgd" || options.type == "momentum",
        "the reader lets only known optimizers pass");
  return std::make_unique<Sgd>(options, buffers, params);
}

}  // namespace lockstep::optim
