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
  std::vector<std::string> turned;    ///< kernels among them in TensorFlow's order
  std::vector<std::string> left_out;  ///< variables that the scopes exclude
  std::vector<std::string> kept;      ///< counters that the file lacks and that need no value
  std::vector<std::string> unused;    ///< names of the file that no variable requests
};

/// Copies values of a file into the live variables (dotted names). Variables are those in
/// checkpoint_restore_scopes, or all, minus those in checkpoint_exclude_scopes. `path` is for
/// messages.
///
/// A variable's value is the one that warm_start_rename gives this name, else the one with its own
/// name. Other frameworks' last parts of names count too: weight, kernel, _kernel, weights,
/// depthwise_weights, embeddings, gamma; bias, biases, beta; moving_mean, running_mean;
/// moving_variance, running_var; num_batches, num_batches_tracked. Shapes must be equal. Types must
/// be equal too, except that float16 and bfloat16 become float32. Counters of batches may be
/// missing.
///
/// Only `kernels`, the weights of linear layers and convolutions, may have TensorFlow's dimension
/// order. warm_start_kernels states the order. With `auto` the file states it
/// (WeightsFile::kernel_layout), else the only order that fits is taken. A shape that fits in both
/// orders is then refused. In TensorFlow's order two more shapes fit. They are [rows, columns,
/// inputs, multiplier] of a depthwise convolution, and [1, 1, inputs, outputs] for a linear layer.
///
/// Throws Error(kConfig) before any value is written. Reasons are a scope or rule that matches
/// nothing, and variables whose value is missing or has another form. The message gives both sides
/// and the five nearest names of the file. Throws kBadData for damage; values copied before it
/// stay.
LoadReport load_weights(WeightsFile& file, const std::string& path, const StateList& variables,
                        const std::set<std::string>& kernels, const WarmStartOptions& options);

}  // namespace lockstep::checkpoint
