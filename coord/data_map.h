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

/// A tensor, texts (one a sample), or maps within maps, which are shared and not changed.
using DataValue =
    std::variant<at::Tensor, std::vector<std::string>, std::shared_ptr<const DataMap>>;

/// What an iteration passes from one callback to the next: values by key, in the order of the keys.
/// Copies share tensors and nested maps.
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
  /// Null where there is none.
  const DataValue* find(const std::string& key) const {
    const auto found = values_.find(key);
    return found == values_.end() ? nullptr : &found->second;
  }
  /// Of the kind that the name says. These throw Error(kBadData) with the key where it is not there
  /// (a callback must declare what it reads) or of another kind.
  const at::Tensor& tensor(const std::string& key) const;
  const std::vector<std::string>& texts(const std::string& key) const;
  const DataMap& map(const std::string& key) const;
  const std::map<std::string, DataValue>& values() const { return values_; }
  bool empty() const { return values_.empty(); }

 private:
  std::map<std::string, DataValue> values_;
};

}  // namespace lockstep::coord
