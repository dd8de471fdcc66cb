#pragma once

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include <ATen/core/Tensor.h>

#include "base/error.h"

/// Data that callbacks exchange, and its division into single samples.
namespace lockstep::coord {

class DataMap;

/// Throws Error(kBadData) for data that a callback cannot use.
[[noreturn]] inline void refuse_data(const std::string& message) {
  throw Error(ExitCode::kBadData, "callbacks", message);
}

/// Value: a tensor, texts (one per sample), or a nested map. Maps are shared and immutable.
using DataValue =
    std::variant<at::Tensor, std::vector<std::string>, std::shared_ptr<const DataMap>>;

/// Data that an iteration passes between callbacks: values by key, in the order of the keys. Copies
/// share tensors and nested maps.
///
///   DataMap made;
///   made.put("probabilities", outputs.at("logits").softmax(1));
///   const at::Tensor& labels = data.tensor("labels");
class DataMap {
 public:
  void put(std::string key, DataValue value) {
    values_.insert_or_assign(std::move(key), std::move(value));
  }
  bool contains(const std::string& key) const { return values_.count(key) > 0; }
  /// Returns the value; null if there is none.
  const DataValue* find(const std::string& key) const {
    const auto found = values_.find(key);
    return found == values_.end() ? nullptr : &found->second;
  }
  /// Returns a value of the kind in the function's name. Throws Error(kBadData) with the key if it
  /// is missing (a callback must declare what it reads) or of another kind.
  const at::Tensor& tensor(const std::string& key) const;
  const std::vector<std::string>& texts(const std::string& key) const;
  const DataMap& map(const std::string& key) const;
  const std::map<std::string, DataValue>& values() const { return values_; }
  bool empty() const { return values_.empty(); }

 private:
  std::map<std::string, DataValue> values_;
};

/// Splits a batch [B, ...] into its B samples. Nested maps are flattened, each value is split along
/// dimension 0, and the nesting is restored. A sample's tensor has the shape [...], is on the CPU
/// and contiguous. It shares the batch's memory if that is on the CPU and contiguous too. Texts [B]
/// give one text each. Keys of `not_batch_keys` (of the outermost map) are passed unsplit to each
/// sample. A map without other keys has no samples.
///
/// Throws Error(kBadData) if batch sizes differ (with both keys and sizes) or a tensor has no
/// dimension 0.
std::vector<DataMap> split_batch_inputs(const DataMap& batch,
                                        const std::vector<std::string>& not_batch_keys);

/// Options of joined_maps(), with the words for its messages.
struct JoinOptions {
  bool stacks = false;         ///< tensors along a new dimension 0, instead of their own
  const char* area = "";       ///< of the Error
  const char* parts_are = "";  ///< "the feeds of one iteration"
};

/// Joins maps with the same keys: tensors on dimension 0, lists of texts one after another, nested
/// maps in the same way. No parts give an empty map.
///
/// Throws Error(kBadData), naming the key and both sides, if only some maps have a key. Also throws
/// if kinds, types or shapes after dimension 0 differ, or for a tensor without a dimension to join.
DataMap joined_maps(const std::vector<const DataMap*>& parts, const JoinOptions& options);

/// Value in nested maps with its path: "outputs/boxes".
struct FlatValue {
  std::vector<std::string> path;
  const DataValue* value;  ///< never a map; valid as long as the map
};
std::vector<FlatValue> flat_values(const DataMap& map);
std::string path_text(const FlatValue& value);

/// Returns the tensor on the CPU and contiguous, so that its numbers can be read in row-major
/// order.
at::Tensor on_cpu(const at::Tensor& tensor);

}  // namespace lockstep::coord
