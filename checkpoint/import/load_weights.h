#pragma once

#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/tensors/state_list.h"
#include "checkpoint/checkpoint_options.h"
#include "checkpoint/format/saved_values.h"

/// Weights from checkpoints and files of other programs: readers, names, and load_weights().
namespace lockstep::checkpoint {

/// Dimension order of the weight of a linear layer or convolution.
enum class KernelLayout {
  kHere,        ///< as in PyTorch: [O, I] and [O, I, H, W]
  kTensorFlow,  ///< [I, O] and [H, W, I, O]
  kUnknown,
};

/// Named values of a file or checkpoint from any writer. One thread at a time.
class WeightsFile {
 public:
  virtual ~WeightsFile() = default;

  /// Returns the names of all values that may be variables of a model, as users see them. Examples
  /// are model/fc/weight of a checkpoint and fc.weight of a state dict. Sorted.
  virtual std::vector<std::string> names() const = 0;
  /// Returns another name that the file knows for the same value (TensorFlow's object graph);
  /// nullopt if there is none.
  virtual std::optional<std::string> find(const std::string& /*name*/) const {
    return std::nullopt;
  }
  /// Returns the dimension order of a weight, as far as the file and the name indicate it.
  virtual KernelLayout kernel_layout(const std::string& name) const;
  /// Returns type and shape of a value. A value of an unsupported type has that type's name.
  virtual ValueForm form(const std::string& name) const = 0;
  /// Returns a new contiguous CPU tensor. Throws Error(kBadData) if its bytes are damaged or its
  /// type is unsupported.
  virtual at::Tensor read(const std::string& name) = 0;
};

/// Opens a file or checkpoint; its content decides the kind:
/// * a checkpoint of Lockstep or TensorFlow (object-based, or name-based as tf.train.Saver's);
///   `path` without .index;
/// * a safetensors file;
/// * a state dict of PyTorch's torch.save() (a zip archive, from version 1.6). None of its code is
///   run. A name of other code than that of tensors, dicts and plain values is refused with that
///   name;
/// * an index of shards (kShardIndexEnding), or a folder for which weights_in_folder() finds a
/// file.
///
/// Values are read on request. Throws Error(kInputMissing, kUsage) as require_save() does. Throws
/// kBadData for damage and for other files, with their kind and what to do.
std::unique_ptr<WeightsFile> open_weights(const std::string& path);

/// End of the name of an index of shards, as save_pretrained() of transformers writes it.
inline constexpr std::string_view kShardIndexEnding = ".index.json";

/// Returns the weights of a folder that save_pretrained() wrote, in the order of transformers:
/// model.safetensors, its index of shards, pytorch_model.bin, its index. nullopt if there is none.
std::optional<std::string> weights_in_folder(const std::string& folder);

// Openers of the kinds of WeightsFile other than checkpoints. They throw Error(kBadData) for a file
// that is cut, damaged or of another kind.

/// Opens a single file. Its content decides whether it is a state dict or a safetensors file.
std::unique_ptr<WeightsFile> open_weights_file(const std::string& path);

/// Opens the shards of an index. Throws Error(kInputMissing) with the names of missing shards.
/// Throws kBadData for a tensor that is in two shards or in another one than the index names.
/// Throws it too for a shard outside the folder of the index.
std::unique_ptr<WeightsFile> open_sharded_weights(const std::string& index);

/// Opens a state dict of torch.save(). Each value's bytes are checked against the archive's
/// checksum, if it has one.
std::unique_ptr<WeightsFile> open_torch_file(const std::string& path);

/// Opens a file in the format of base/tensors/safetensors_format.h, which has no checksums.
std::unique_ptr<WeightsFile> open_safetensors_file(const std::string& path);

/// Returns a view of our weight in TensorFlow's order. Linear: [O, I] -> [I, O]. Convolution: [O,
/// I, H, W] -> [H, W, I, O]. The same holds for 1 and 3 spatial dimensions.
at::Tensor as_tensorflow_kernel(const at::Tensor& tensor);

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
