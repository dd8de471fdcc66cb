#include <cstring>
#include <map>

#include <ATen/ops/empty.h>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/files/files.h"
#include "checkpoint/bundle/tensor_type.h"
#include "checkpoint/weights/single_files.h"

namespace lockstep::checkpoint {
namespace {

constexpr int64_t kMaxJsonBytes = int64_t{32} << 20;  // some hundred thousand tensors
constexpr int64_t kLengthBytes = 8;
constexpr size_t kMaxShapeDims = 32;

std::optional<at::ScalarType> type_named(std::string_view name) {
  static const std::map<std::string_view, at::ScalarType> kTypes = {
      {"BOOL", at::kBool}, {"U8", at::kByte},   {"I8", at::kChar},  {"I16", at::kShort},
      {"I32", at::kInt},   {"I64", at::kLong},  {"F16", at::kHalf}, {"BF16", at::kBFloat16},
      {"F32", at::kFloat}, {"F64", at::kDouble}};
  const auto found = kTypes.find(name);
  return found == kTypes.end() ? std::nullopt : std::optional(found->second);
}

struct TensorPlace {
  at::ScalarType type = at::kFloat;
  std::vector<int64_t> shape;
  int64_t offset = 0, num_bytes = 0;  // in the file
};

class SafetensorsFile final : public WeightsFile {
 public:
  explicit SafetensorsFile(const std::string& path) : file_(path) {
    const std::string header = read_header();
    const nlohmann::json all = nlohmann::json::parse(header, nullptr, /*allow_exceptions=*/false);
    if (!all.is_object())
      refuse("its header is no JSON object; the file is cut or of another kind");
    const int64_t begin = kLengthBytes + static_cast<int64_t>(header.size());
    for (const auto& [name, entry] : all.items())
      if (name != "__metadata__") places_.emplace(name, place_of(name, entry, begin));
  }

  std::vector<std::string> names() const override {
    std::vector<std::string> all;
    for (const auto& [name, place] : places_) all.push_back(name);
    return all;
  }

  ValueForm form(const std::string& name) const override {
    const TensorPlace& place = places_.at(name);
    return {type_number(place.type).value_or(0), place.shape};
  }

  at::Tensor read(const std::string& name) override {
    const TensorPlace& place = places_.at(name);
    const at::Tensor values = at::empty(place.shape, place.type);
    file_.read_at(place.offset, {static_cast<char*>(values.mutable_data_ptr()),
                                 static_cast<size_t>(place.num_bytes)});
    return values;
  }

 private:
  [[noreturn]] void refuse(const std::string& why) const {
    throw Error(
        ExitCode::kBadData, "weights",
        fmt::format("{} cannot be read as a safetensors file: {}", file_.path().string(), why));
  }

  std::string read_header() const {
    if (file_.num_bytes() < kLengthBytes) refuse("it has fewer than 8 bytes");
    uint64_t length = 0;  // little-endian, as this host
    file_.read_at(0, {reinterpret_cast<char*>(&length), sizeof length});
    if (length > static_cast<uint64_t>(std::min(kMaxJsonBytes, file_.num_bytes() - kLengthBytes)))
      refuse(fmt::format("it says that its header has {} bytes; it is cut or of another kind",
                         length));
    std::string header(length, '\0');
    file_.read_at(kLengthBytes, header);
    return header;
  }

  std::vector<int64_t> numbers_of(const std::string& name, const nlohmann::json& entry,
                                  const char* key) const {
    const auto found = entry.find(key);
    const bool is_list =
        found != entry.end() && found->is_array() && found->size() <= kMaxShapeDims;
    std::vector<int64_t> all;
    if (is_list)
      for (const nlohmann::json& number : *found)
        if (number.is_number_unsigned() && number.get<uint64_t>() < uint64_t{1} << 62)
          all.push_back(number.get<int64_t>());
    if (!is_list || all.size() != found->size())
      refuse(fmt::format("tensor '{}' has no sound {}", name, key));
    return all;
  }

  TensorPlace place_of(const std::string& name, const nlohmann::json& entry, int64_t begin) const {
    if (!entry.is_object() || !entry.contains("dtype") || !entry["dtype"].is_string())
      refuse(fmt::format("tensor '{}' has no dtype", name));
    const auto type = type_named(entry["dtype"].get_ref<const std::string&>());
    if (!type)
      refuse(fmt::format("tensor '{}' is of type {}, which is not read", name,
                         entry["dtype"].dump(-1, ' ', true)));
    TensorPlace place{.type = *type, .shape = numbers_of(name, entry, "shape")};
    const std::vector<int64_t> range = numbers_of(name, entry, "data_offsets");
    place.num_bytes = static_cast<int64_t>(c10::elementSize(*type));
    for (const int64_t size : place.shape)
      if (__builtin_mul_overflow(place.num_bytes, size, &place.num_bytes))
        refuse(fmt::format("tensor '{}' has a shape that no file can hold", name));
    if (range.size() != 2 || range[0] > range[1] || range[1] > file_.num_bytes() - begin ||
        range[1] - range[0] != place.num_bytes)
      refuse(fmt::format("the place of tensor '{}' does not fit its shape or the file; it is cut",
                         name));
    place.offset = begin + range[0];
    return place;
  }

  const files::Reader file_;
  std::map<std::string, TensorPlace> places_;
};

}  // namespace

std::unique_ptr<WeightsFile> open_safetensors_file(const std::string& path) {
  return std::make_unique<SafetensorsFile>(path);
}

}  // namespace lockstep::checkpoint
