// Maps travel between ranks as pickled dictionaries, LibTorch's format of torch.save.
#include <span>
#include <string_view>
#include <vector>

#include <ATen/core/Dict.h>
#include <ATen/core/ivalue.h>
#include <ATen/core/jit_type.h>
#include <ATen/ops/from_blob.h>
#include <torch/csrc/jit/serialization/pickle.h>

#include "dist/agree.h"
#include "train/hooks/callback_hook.h"

namespace lockstep::train {
namespace {

c10::IValue to_ivalue(const coord::DataMap& data);

c10::IValue to_ivalue(const coord::DataValue& value) {
  if (const auto* tensor = std::get_if<at::Tensor>(&value)) return tensor->contiguous();
  if (const auto* texts = std::get_if<std::vector<std::string>>(&value)) return *texts;
  return to_ivalue(*std::get<std::shared_ptr<const coord::DataMap>>(value));
}

c10::IValue to_ivalue(const coord::DataMap& data) {
  c10::impl::GenericDict dict(c10::StringType::get(), c10::AnyType::get());
  for (const auto& [key, value] : data.values()) dict.insert(key, to_ivalue(value));
  return dict;
}

coord::DataMap to_map(const c10::IValue& dict) {
  coord::DataMap data;
  for (const auto& item : dict.toGenericDict()) {
    const std::string key = item.key().toStringRef();
    const c10::IValue& value = item.value();
    if (value.isTensor())
      data.put(key, value.toTensor());
    else if (value.isList())
      data.put(key, value.to<std::vector<std::string>>());
    else
      data.put(key, std::make_shared<const coord::DataMap>(to_map(value)));
  }
  return data;
}

/// Serialises a map in LibTorch's format, as torch.save does.
std::string bytes_of(const coord::DataMap& data) {
  const std::vector<char> bytes = torch::jit::pickle_save(to_ivalue(data));
  return {bytes.begin(), bytes.end()};
}

}  // namespace

coord::Services services_over(dist::Communicator& control) {
  coord::Services services;
  // In place: from_blob() shares the caller's memory.
  services.sum_over_ranks = [&control](std::span<double> numbers) {
    const at::Tensor values_K =
        at::from_blob(numbers.data(), {static_cast<int64_t>(numbers.size())}, at::kDouble);
    control.all_reduce(values_K, dist::ReduceOp::kSum)->wait();
  };
  services.gather_over_ranks = [&control](const coord::DataMap& own) {
    std::vector<coord::DataMap> all;
    for (const std::string& text : dist::gather_texts(control, bytes_of(own)))
      all.push_back(to_map(torch::jit::pickle_load({text.begin(), text.end()})));
    return all;
  };
  return services;
}

}  // namespace lockstep::train
