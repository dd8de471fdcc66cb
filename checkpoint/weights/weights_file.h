#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/restore/saved_values.h"

namespace lockstep::checkpoint {

/// How the dimensions of a linear layer's or a convolution's weight lie.
enum class KernelLayout {
  kHere,        ///< as in PyTorch: [O, I] and [O, I, H, W]
  kTensorFlow,  ///< [I, O] and [H, W, I, O]
  kUnknown,
};

/// Named values of a file or save, whoever wrote it. One thread at a time.
class WeightsFile {
 public:
  virtual ~WeightsFile() = default;

  /// Names of all values that a model's variables may be, as people see them: model/fc/weight of a
  /// save, fc.weight of a state dict. Sorted.
  virtual std::vector<std::string> names() const = 0;
  /// Another name for the same value that the file knows (TensorFlow's object graph); nothing if
  /// there is none.
  virtual std::optional<std::string> find(const std::string& /*name*/) const {
    return std::nullopt;
  }
  /// How a weight of this name lies, as far as the file and the name tell.
  virtual KernelLayout kernel_layout(const std::string& name) const;
  /// Type and shape of a value. One of a type that is not read is among them, with its name.
  virtual ValueForm form(const std::string& name) const = 0;
  /// A new CPU tensor, contiguous. Throws Error(kBadData) if its bytes are damaged, or it is
  /// not read.
  virtual at::Tensor read(const std::string& name) = 0;
};

/// Opens, by what stands in the file:
/// * a save of Lockstep or TensorFlow (by objects, or by names as tf.train.Saver's), `path` without
///   .index;
/// * a file in the safetensors format;
/// * a state dict that PyTorch saved with torch.save() (a zip archive, from version 1.6), of which
///   nothing is run: what names other code than that of tensors, dicts and plain values is refused
///   by this name.
/// Values are read when they are asked for. Throws Error(kInputMissing, kUsage) as require_save()
/// does, kBadData for damage and for other files, with what they are and what to do.
std::unique_ptr<WeightsFile> open_weights(const std::string& path);

}  // namespace lockstep::checkpoint
