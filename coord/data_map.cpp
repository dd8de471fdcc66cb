#include "coord/data_map.h"

#include <fmt/format.h>

#include "base/error.h"

namespace lockstep::coord {
namespace {

// Names of the alternatives of DataValue, in their order.
constexpr const char* kKinds[] = {"a tensor", "texts", "a map"};

/// Returns the value if it exists and has this kind.
template <typename Kind>
const Kind& value_of(const DataMap& map, const std::string& key, const char* wanted) {
  const DataValue* const value = map.find(key);
  if (value == nullptr)
    throw Error(
        ExitCode::kBadData, "callbacks",
        fmt::format("there is no key '{}': a callback gets what its incoming_keys() declare, "
                    "and of optional ones what is there",
                    key));
  if (const Kind* const found = std::get_if<Kind>(value)) return *found;
  throw Error(
      ExitCode::kBadData, "callbacks",
      fmt::format("key '{}' is {}, where {} is wanted", key, kKinds[value->index()], wanted));
}

}  // namespace

const at::Tensor& DataMap::tensor(const std::string& key) const {
  return value_of<at::Tensor>(*this, key, kKinds[0]);
}

const std::vector<std::string>& DataMap::texts(const std::string& key) const {
  return value_of<std::vector<std::string>>(*this, key, kKinds[1]);
}

const DataMap& DataMap::map(const std::string& key) const {
  return *value_of<std::shared_ptr<const DataMap>>(*this, key, kKinds[2]);
}

}  // namespace lockstep::coord
