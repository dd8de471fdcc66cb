#pragma once

#include <string>
#include <utility>
#include <vector>

#include "base/tensors/state_list.h"

/// Import of a checkpoint that TensorFlow wrote for a model with other names and, for kernels,
/// another order of dimensions.
namespace lockstep::checkpoint {

/// Order of a kernel's dimensions.
enum class KernelOrder {
  kAsSaved,
  /// Inputs and outputs are last in the file and first here. Dense: [I, O] -> [O, I]. Convolution:
  /// [H, W, I, O] -> [O, I, H, W]. The same holds for 1 and 3 spatial dimensions.
  kOutputsLast,
};

/// Rule that maps saved names to keys.
struct ImportRule {
  std::string saved;  ///< RE2 pattern of the whole saved name, without /.ATTRIBUTES/VARIABLE_VALUE
  std::string key;    ///< our key; \1 is what the first group matched
  KernelOrder order = KernelOrder::kAsSaved;
};

/// Returns a rule for all names below a prefix: rule_for_prefix("net", "model") maps net/a/b to
/// model/a/b.
ImportRule rule_for_prefix(const std::string& saved, const std::string& key);
/// Returns the rules for a Keras layer. Its kernel (permuted) or embeddings become our weight, its
/// bias our bias. Keras 3 calls them _kernel and _embeddings.
std::vector<ImportRule> rules_for_layer(const std::string& saved, const std::string& key);

struct ImportOptions {
  /// Rules by priority: the first match of a name counts. Empty: saved names equal our keys.
  std::vector<ImportRule> rules;
  /// RE2 patterns of our keys that the checkpoint may lack; those variables keep their values.
  std::vector<std::string> allow_missing;
  /// RE2 patterns of saved names that may stay unused.
  std::vector<std::string> allow_unused;
};

struct ImportReport {
  std::vector<std::pair<std::string, std::string>> loaded;  ///< (saved name, key)
  std::vector<std::string> missing;                         ///< keys, all allowed
  std::vector<std::string> unused;                          ///< saved names, all allowed
};

/// Copies the checkpoint `prefix` into the live tensors of `state` by name. Not collective.
///
/// Throws Error(kBadData) before any value is written. The message names every key without a value
/// and every saved value without a key, unless allowed. It also names two values for one key, and
/// shapes that do not fit after permuting. Throws Error(kConfig) for an invalid pattern.
ImportReport import_tensorflow(const std::string& prefix, const StateList& state,
                               const ImportOptions& options);

}  // namespace lockstep::checkpoint
