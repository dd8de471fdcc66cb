#include "infer/feed/join.h"

#include <string>

#include <ATen/ops/cat.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/error.h"

namespace lockstep::infer {
// joined() first checks that all maps have the same keys, then joins value by value. Messages name
// the key, and the position of the first map that differs.
namespace {

using coord::DataMap;
using coord::DataValue;

constexpr const char* kKinds[] = {"a tensor", "texts", "a map"};

[[noreturn]] void refuse_join(const std::string& key, size_t part, const std::string& first,
                              const std::string& other) {
  throw Error(ExitCode::kBadData, "infer",
              fmt::format("'{}' of the feeds of one iteration cannot be joined: it is {} in the "
                          "first, {} in number {} of the list",
                          key, first, other, part + 1));
}

std::string described(const at::Tensor& tensor) {
  return fmt::format("{} [{}]", toString(tensor.scalar_type()), fmt::join(tensor.sizes(), ", "));
}

/// Joins on dimension 0. All other dimensions and the type must be equal.
at::Tensor joined_tensors(const std::string& key, const std::vector<const DataValue*>& parts) {
  std::vector<at::Tensor> tensors;
  for (const DataValue* part : parts) tensors.push_back(std::get<at::Tensor>(*part));
  const at::Tensor& first = tensors.front();
  for (size_t i = 0; i < tensors.size(); ++i) {
    const at::Tensor& other = tensors[i];
    if (other.dim() == 0 || other.dim() != first.dim() ||
        other.sizes().slice(1) != first.sizes().slice(1) ||
        other.scalar_type() != first.scalar_type())
      refuse_join(key, i, described(first), described(other));
  }
  return at::cat(tensors);
}

std::vector<std::string> joined_texts(const std::vector<const DataValue*>& parts) {
  std::vector<std::string> all;
  for (const DataValue* part : parts)
    for (const std::string& text : std::get<std::vector<std::string>>(*part)) all.push_back(text);
  return all;
}

/// Joins values of one key; recursive for nested maps.
DataValue joined_values(const std::string& key, const std::vector<const DataValue*>& parts) {
  for (size_t i = 0; i < parts.size(); ++i)
    if (parts[i]->index() != parts.front()->index())
      refuse_join(key, i, kKinds[parts.front()->index()], kKinds[parts[i]->index()]);
  if (std::holds_alternative<at::Tensor>(*parts.front())) return joined_tensors(key, parts);
  if (std::holds_alternative<std::vector<std::string>>(*parts.front())) return joined_texts(parts);
  std::vector<DataMap> maps;
  for (const DataValue* part : parts)
    maps.push_back(*std::get<std::shared_ptr<const DataMap>>(*part));
  return std::make_shared<const DataMap>(joined(maps));
}

}  // namespace

DataMap joined(const std::vector<DataMap>& parts) {
  check(!parts.empty(), "there is something to join");
  // The usual case: no copy of the tensors.
  if (parts.size() == 1) return parts.front();
  for (size_t i = 1; i < parts.size(); ++i)
    for (const auto& [key, value] : parts[i].values())
      if (!parts.front().contains(key)) refuse_join(key, i, "not there", "there");
  DataMap all;
  for (const auto& [key, value] : parts.front().values()) {
    std::vector<const DataValue*> values;
    for (size_t i = 0; i < parts.size(); ++i) {
      values.push_back(parts[i].find(key));
      if (values.back() == nullptr) refuse_join(key, i, "there", "not there");
    }
    all.put(key, joined_values(key, values));
  }
  return all;
}

}  // namespace lockstep::infer
