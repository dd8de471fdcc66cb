#include "coord/savers/prediction_saver.h"

#include <string>

#include <nlohmann/json.hpp>

#include "coord/savers/split_batch.h"
#include "coord/savers/whole_file.h"

namespace lockstep::coord {
namespace {

using Json = nlohmann::ordered_json;

/// Returns the numbers of this shape as nested lists, in row-major order from `next` on, which is
/// advanced.
template <typename Number>
Json nested_list(const Number** next, at::IntArrayRef shape) {
  if (shape.empty()) return *(*next)++;
  Json list = Json::array();
  for (int64_t i = 0; i < shape.front(); ++i) list.push_back(nested_list(next, shape.slice(1)));
  return list;
}

template <typename Number>
Json json_of_numbers(const at::Tensor& tensor) {
  const at::Tensor numbers = on_cpu(tensor).to(c10::CppTypeToScalarType<Number>::value);
  const auto* next = static_cast<const Number*>(numbers.const_data_ptr());
  return nested_list(&next, numbers.sizes());
}

/// Converts a tensor: truth values, integers as int64, everything else as float64.
Json json_of_tensor(const at::Tensor& tensor) {
  if (tensor.scalar_type() == at::kBool) return json_of_numbers<bool>(tensor);
  if (c10::isIntegralType(tensor.scalar_type(), false)) return json_of_numbers<int64_t>(tensor);
  return json_of_numbers<double>(tensor);
}

Json json_of_map(const DataMap& map);

Json json_of(const DataValue& value) {
  if (const at::Tensor* const tensor = std::get_if<at::Tensor>(&value))
    return json_of_tensor(*tensor);
  if (const auto* const texts = std::get_if<std::vector<std::string>>(&value))
    return texts->size() == 1 ? Json(texts->front()) : Json(*texts);
  return json_of_map(*std::get<std::shared_ptr<const DataMap>>(value));
}

Json json_of_map(const DataMap& map) {
  Json object = Json::object();
  for (const auto& [key, value] : map.values()) object[key] = json_of(value);
  return object;
}

}  // namespace

void PredictionSaver::save_sample(const DataMap& sample) {
  WholeFile file(save_name().string() + ".json");
  // Invalid UTF-8 is replaced, since JSON must be UTF-8.
  file.append(json_of_map(sample).dump(-1, ' ', false, Json::error_handler_t::replace) + "\n");
  file.publish(false);
}

}  // namespace lockstep::coord
