#pragma once

#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/rename_rules.h"
#include "checkpoint/weights/weights_file.h"

namespace lockstep::checkpoint {

/// True if a name ends as TensorFlow, Keras and TF-slim end those of kernels: kernel, _kernel,
/// depthwise_kernel, weights, depthwise_weights.
bool is_kernel_name(std::string_view name);
/// True if a name ends in weight, as those of PyTorch and Lockstep do.
bool is_weight_name(std::string_view name);

/// Mapping between values of a file and variables of the model (checkpoint/weights/load_weights.h).
class WeightNames {
 public:
  /// Builds the mapping. `file` must outlive the object. Throws Error(kConfig) for a rule that
  /// matches no name, and for two names that the rules make equal.
  WeightNames(const WeightsFile& file, const RenameRules& rules);

  /// Returns the file's name of a variable's value; nullopt if the file has none.
  std::optional<std::string> name_of(const std::string& variable) const;
  /// Returns the five names of the file nearest to a variable's, separated by commas.
  std::string nearest_to(const std::string& variable) const;

 private:
  void add(const std::string& here, const std::string& there, bool is_renamed);
  std::optional<std::string> find(const std::string& here) const;

  const WeightsFile& file_;
  std::map<std::string, std::string> there_;  // by plain name here
  std::set<std::string> renamed_;             // those of them that a rule gave
  std::set<std::string> moved_;               // names in the file that a rule renamed
};

}  // namespace lockstep::checkpoint
