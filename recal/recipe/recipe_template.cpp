#include "recal/recipe/recipe_template.h"

namespace lockstep::recal {

// A test reads this text, and also the text with every comment enabled.
std::string recipe_template() {
  return R"(# Changes during training. Every key is described in docs/recipe.md.
# Print its actions:  lockstep plan THIS_FILE --steps-per-epoch N --svg plan.svg
#
# Epochs count from 0 and may be fractions; each *_epoch key may be a *_step key instead.
# start_epoch: -1 is the run's start, end_epoch: -1 its end.
version: 1.0.0
modifiers:
  # How long to train: passes over the data.
  - !EpochRangeModifier
    start_epoch: 0.0
    end_epoch: 30.0

  # Reduce the learning rate, here to a tenth at epoch 20 and to a hundredth at 26.
  - !LearningRateModifier
    start_epoch: 0.0
    end_epoch: -1
    lr_class: MultiStepLR
    lr_kwargs: {gamma: 0.1, milestones: [20.0, 26.0]}
    # init_lr: 0.1                  # default: the optimizer's own

  # Prune step by step: train a little, prune for half of the run, then train on with the zeros.
  - !GradualKSModifier
    params: __ALL__                 # or a list of layers: ['blocks.1.conv', 're:head.*']
    init_sparsity: 0.05             # pruned fraction to begin with; usual: 0.05
    final_sparsity: 0.85            # and in the end; usual: 0.6 to 0.95
    start_epoch: 2.0
    end_epoch: 18.0
    update_frequency: 1.0           # epochs from one mask to the next; usual: 1.0
    # inter_func: cubic             # or linear, inverse_cubic
    # leave_enabled: true           # false: the zeros may grow back after end_epoch
    # mask_type: unstructured       # or block4, 2:4 (at most 0.5 sparsity), filter, channel
    # global_sparsity: false        # true: one threshold over all layers
    # log_types: none               # no summaries of each layer; __ALL__: in Prometheus too

  # Only for a model that is already pruned, instead of the above: keep its zeros.
  # - !ConstantKSModifier
  #   params: ['already.pruned.layer']
  #   params_strict: false          # a layer that the model lacks is a warning

  # Quantize to int8 in training, so that weights adapt to it. It has no end.
  # - !QuantizationModifier
  #   start_epoch: 22.0
  #   disable_quantization_observer_epoch: 26.0

  # Train some layers only, for a while.
  # - !TrainableParamsModifier
  #   params: ['re:blocks.*']
  #   trainable: false
  #   end_epoch: 1.0

  # Turn the weight decay off near the end.
  # - !SetWeightDecayModifier
  #   start_epoch: 26.0
  #   weight_decay: 0.0
)";
}

}  // namespace lockstep::recal
