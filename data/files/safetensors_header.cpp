#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "base/nearest_word.h"
#include "data/files/array_header.h"
#include "data/files/refuse.h"

namespace lockstep::data {
namespace {

constexpr int64_t kMaxSafetensorsHeader = int64_t{100} << 20;  // as the format's own library

struct SafetensorsType {
  std::string_view name;
  NumberType type;
};
constexpr SafetensorsType kSafetensorsTypes[] = {
    {"BOOL", NumberType::kBool}, {"U8", NumberType::kU8},   {"I8", NumberType::kI8},
    {"U16", NumberType::kU16},   {"I16", NumberType::kI16}, {"U32", NumberType::kU32},
    {"I32", NumberType::kI32},   {"I64", NumberType::kI64}, {"F16", NumberType::kF16},
    {"BF16", NumberType::kBF16}, {"F32", NumberType::kF32}, {"F64", NumberType::kF64}};

/// A member that must be an array of numbers that are not negative.
std::vector<int64_t> numbers_of(const nlohmann::json& entry, const char* key,
                                const std::string& where) {
  const auto found = entry.find(key);
  if (found == entry.end() || !found->is_array() || found->size() > 32)
    refuse_file(where, fmt::format("its header has no sound {}", key));
  std::vector<int64_t> all;
  for (const nlohmann::json& number : *found) {
    if (!number.is_number_unsigned() || number.get<uint64_t>() > uint64_t{1} << 62)
      refuse_file(where, fmt::format("its header has no sound {}", key));
    all.push_back(number.get<int64_t>());
  }
  return all;
}

NumberType safetensors_type(const nlohmann::json& entry, const std::string& where) {
  const auto found = entry.find("dtype");
  const std::string name =
      found != entry.end() && found->is_string() ? found->get<std::string>() : "";
  for (const SafetensorsType& known : kSafetensorsTypes)
    if (known.name == name) return known.type;
  refuse_file(where, fmt::format("its type '{}' is not read", name));
}

}  // namespace

int64_t safetensors_header_end(std::string_view bytes, int64_t file_bytes,
                               const std::string& file) {
  if (bytes.size() < 8) refuse_file(file, "is no safetensors file: it has fewer than 8 bytes");
  uint64_t length = 0;
  for (size_t i = 0; i < 8; ++i) length |= uint64_t{static_cast<uint8_t>(bytes[i])} << (8 * i);
  if (length > static_cast<uint64_t>(kMaxSafetensorsHeader) ||
      static_cast<int64_t>(length) > file_bytes - 8)
    refuse_file(file, fmt::format("offset 0: says that its header has {} bytes; it is cut or no "
                                  "safetensors file",
                                  length));
  return 8 + static_cast<int64_t>(length);
}

ArrayHeader parse_safetensors_header(std::string_view bytes, int64_t file_bytes,
                                     const std::string& name, const std::string& file) {
  const nlohmann::json all =
      nlohmann::json::parse(bytes.substr(8), nullptr, /*allow_exceptions=*/false);
  if (!all.is_object()) refuse_file(file, "offset 8: its header is not JSON");
  const auto entry = all.find(name);
  if (entry == all.end() || !entry->is_object()) {
    std::vector<std::string> names;
    for (const auto& item : all.items())
      if (item.key() != "__metadata__") names.push_back(item.key());
    refuse_file(file, fmt::format("no tensor '{}'{}; there are {}", name, did_you_mean(name, names),
                                  fmt::join(names, ", ")));
  }
  const std::string where = fmt::format("{}: tensor '{}'", file, name);
  ArrayHeader header{safetensors_type(*entry, where), numbers_of(*entry, "shape", where), 0, 0};
  const std::vector<int64_t> offsets = numbers_of(*entry, "data_offsets", where);
  header.num_bytes = size_of(header.type);
  for (const int64_t size : header.shape)
    if (__builtin_mul_overflow(header.num_bytes, size, &header.num_bytes))
      refuse_file(where, "its shape is that of no file");
  const int64_t room = file_bytes - static_cast<int64_t>(bytes.size());
  if (offsets.size() != 2 || offsets[0] > offsets[1] || offsets[1] > room ||
      offsets[1] - offsets[0] != header.num_bytes)
    refuse_file(where, "its place does not fit its shape or the file; the file is cut");
  header.offset = static_cast<int64_t>(bytes.size()) + offsets[0];
  return header;
}

}  // namespace lockstep::data
