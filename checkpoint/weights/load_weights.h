#pragma once

#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/tensors/state_list.h"
#include "checkpoint/warm_start_options.h"
#include "checkpoint/weights/weights_file.h"

namespace lockstep::checkpoint {

struct LoadReport {
  std::vector<std::pair<std::string, std::string>> loaded;  ///< (variable, its name in the file)
  std::vector<std::string> turned;    ///< of these, kernels that lie there as TensorFlow's do
  std::vector<std::string> left_out;  ///< variables that the scopes leave as they are
  std::vector<std::string> kept;      ///< counters that the file lacks and that need no value
  std::vector<std::string> unused;    ///< names of the file that no variable here asks for
};

/// Copies values of a file into the live variables (dotted names): those in
/// checkpoint_restore_scopes, or all, but for those in checkpoint_exclude_scopes. `path` is for
/// messages.
///
/// A variable's value is the one that warm_start_rename calls so, else the one of its own name,
/// also where another framework ends it otherwise: weight, kernel, _kernel, weights,
/// depthwise_weights, embeddings, gamma; bias, biases, beta; moving_mean, running_mean;
/// moving_variance, running_var; num_batches, num_batches_tracked. Shapes must be equal and types
/// too, but that float16 and bfloat16 become float32. Counters of batches may be missing.
///
/// Only `kernels`, the weights of linear layers and convolutions, may lie in TensorFlow's order.
/// warm_start_kernels says so; where it is `auto`, the file does (WeightsFile::kernel_layout), and
/// else the only order that fits. A shape that fits in both orders is then refused. In TensorFlow's
/// order, [rows, columns, inputs, multiplier] of a depthwise convolution and [1, 1, inputs,
/// outputs] for a linear layer fit too.
///
/// Throws Error(kConfig), before a value is written, for a scope or rule that matches nothing, and
/// for variables whose value is missing or of another form, each with both sides and the five
/// nearest names of the file; kBadData for damage (what was copied before stays).
LoadReport load_weights(WeightsFile& file, const std::string& path, const StateList& variables,
                        const std::set<std::string>& kernels, const WarmStartOptions& options);

}  // namespace lockstep::checkpoint
