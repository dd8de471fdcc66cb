#pragma once

#include <string>
#include <utility>
#include <vector>

#include "base/tensors/state_list.h"

/// Values of a checkpoint that TensorFlow wrote for a model of other names and, for kernels,
/// another order of dimensions.
namespace lockstep::checkpoint {

/// Which dimension comes first.
enum class KernelOrder {
  kAsSaved,
  /// Saved with inputs and outputs last, wanted with them first: dense [I, O] -> [O, I],
  /// convolution [H, W, I, O] -> [O, I, H, W], and so for 1 and 3 dimensions of space.
  kOutputsLast,
};

/// What a saved name is called here.
struct ImportRule {
  std::string saved;  ///< RE2 pattern of the whole saved name, without /.ATTRIBUTES/VARIABLE_VALUE
  std::string key;    ///< our key; \1 is what the first group matched
  KernelOrder order = KernelOrder::kAsSaved;
};

/// Everything below a prefix, as it is: rule_for_prefix("net", "model") takes net/a/b to model/a/b.
ImportRule rule_for_prefix(const std::string& saved, const std::string& key);
/// A Keras layer's kernel (turned) or embeddings, and its bias, as weight and bias of a layer of
/// ours. Keras 3 calls them _kernel and _embeddings.
std::vector<ImportRule> rules_for_layer(const std::string& saved, const std::string& key);

struct ImportOptions {
  /// Of several that match a name the first one counts. Empty: names are what our keys are.
  std::vector<ImportRule> rules;
  /// RE2 patterns of keys of ours that the checkpoint may lack: they keep their values.
  std::vector<std::string> allow_missing;
  /// RE2 patterns of saved names that may be left over.
  std::vector<std::string> allow_unused;
};

struct ImportReport {
  std::vector<std::pair<std::string, std::string>> loaded;  ///< (saved name, key)
  std::vector<std::string> missing;                         ///< keys, all allowed
  std::vector<std::string> unused;                          ///< saved names, all allowed
};

/// Copies the checkpoint `prefix` into the live tensors of `state`, by name. No collective. Throws,
/// before a value is written, Error(kBadData) that names every key without a value and every saved
/// value without a key, unless allowed, two values for one key, and forms that do not fit (shapes
/// as they are after turning); Error(kConfig) for a pattern that is none.
ImportReport import_tensorflow(const std::string& prefix, const StateList& state,
                               const ImportOptions& options);

}  // namespace lockstep::checkpoint
