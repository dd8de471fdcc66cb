#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/restore/saved_values.h"

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
///   name.
///
/// Values are read on request. Throws Error(kInputMissing, kUsage) as require_save() does. Throws
/// kBadData for damage and for other files, with their kind and what to do.
std::unique_ptr<WeightsFile> open_weights(const std::string& path);

}  // namespace lockstep::checkpoint
