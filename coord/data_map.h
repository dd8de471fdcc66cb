#pragma once

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include <ATen/core/Tensor.h>

namespace lockstep::coord {

class DataMap;

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

}  // namespace lockstep::coord
