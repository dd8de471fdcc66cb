// Writer and reader of safetensors files.
#include "checkpoint/import/safetensors.h"

#include <algorithm>
#include <array>
#include <bit>
#include <functional>
#include <optional>
#include <stdexcept>
#include <string_view>
#include <utility>

#include <ATen/ops/empty.h>
#include <c10/core/ScalarType.h>
#include <fmt/format.h>

#include "base/error.h"
#include "base/files/files.h"
#include "base/json.h"
#include "base/tensors/safetensors_format.h"
#include "checkpoint/format/tensor_type.h"
#include "checkpoint/import/load_weights.h"

namespace lockstep::checkpoint {

namespace {

/// Types by their names in files, the same as in base/tensors/safetensors_format.cpp.
constexpr std::array<std::pair<std::string_view, at::ScalarType>, 12> kTypesInFiles{
    {{"BOOL", at::kBool},
     {"U8", at::kByte},
     {"I8", at::kChar},
     {"U16", at::kUInt16},
     {"I16", at::kShort},
     {"U32", at::kUInt32},
     {"I32", at::kInt},
     {"I64", at::kLong},
     {"F16", at::kHalf},
     {"BF16", at::kBFloat16},
     {"F32", at::kFloat},
     {"F64", at::kDouble}}};

std::optional<at::ScalarType> type_named(std::string_view wanted) {
  for (const auto& [name, type] : kTypesInFiles)
    if (name == wanted) return type;
  return std::nullopt;
}

// Writer: one temporary file and one rename, so that a reader never sees half a file.

static_assert(std::endian::native == std::endian::little,
              "values are written in native byte order");

std::string_view dtype_name(at::ScalarType wanted) {
  for (const auto& [name, type] : kTypesInFiles)
    if (type == wanted) return name;
  check(false, "safetensors has no such type");
  return "";
}

std::string header_of(const std::vector<SafetensorsItem>& items,
                      const std::map<std::string, std::string>& metadata) {
  nlohmann::ordered_json header;
  header[std::string(kSafetensorsMetadata)] = metadata;
  int64_t offset = 0;
  for (const SafetensorsItem& item : items) {
    check(!header.contains(item.name), "a tensor's name is unique in a file");
    const auto num_bytes = static_cast<int64_t>(item.tensor.nbytes());
    header[item.name] = {{"dtype", dtype_name(item.tensor.scalar_type())},
                         {"shape", item.tensor.sizes().vec()},
                         {"data_offsets", {offset, offset + num_bytes}}};
    offset += num_bytes;
  }
  std::string text = json_text(header);
  text.append((8 - text.size() % 8) % 8, ' ');
  return text;
}

std::string_view bytes_of(const at::Tensor& contiguous) {
  return {static_cast<const char*>(contiguous.const_data_ptr()), contiguous.nbytes()};
}

}  // namespace

int64_t write_safetensors(const std::filesystem::path& path,
                          const std::vector<SafetensorsItem>& items,
                          const std::map<std::string, std::string>& metadata) {
  std::vector<SafetensorsItem> sorted = items;
  std::ranges::stable_sort(sorted, std::greater(),
                           [](const auto& item) { return item.tensor.element_size(); });
  const std::string header = header_of(sorted, metadata);
  const auto length = static_cast<uint64_t>(header.size());
  files::WholeFile file(path);
  file.append({reinterpret_cast<const char*>(&length), sizeof length});
  file.append(header);
  // One tensor at a time: a model on a GPU never needs a second copy of its own size here.
  for (const SafetensorsItem& item : sorted)
    file.append(bytes_of(item.tensor.detach().cpu().contiguous()));
  file.publish(true);
  return static_cast<int64_t>(std::filesystem::file_size(path));
}

// Reader: the header is checked when the file is opened; values are read on request.

namespace {

struct TensorInFile {
  std::vector<int64_t> shape;
  std::string dtype;
  SafetensorsPlace place;  ///< not of a type that is unsupported
};

class SafetensorsFile final : public WeightsFile {
 public:
  explicit SafetensorsFile(const std::string& path) : file_(path) {
    std::string reading;  // name of the tensor being read, for the error text
    try {
      read_tensors(&reading);
    } catch (const Error&) {
      throw;
    } catch (const std::runtime_error& fault) {
      const std::string where = reading.empty() ? "" : fmt::format("tensor '{}': ", reading);
      throw Error(
          ExitCode::kBadData, "weights",
          fmt::format("{} cannot be read as a safetensors file: {}{}", path, where, fault.what()));
    }
  }

  std::vector<std::string> names() const override {
    std::vector<std::string> all;
    for (const auto& [name, tensor] : tensors_) all.push_back(name);
    return all;
  }

  ValueForm form(const std::string& name) const override {
    const TensorInFile& tensor = tensors_.at(name);
    const auto type = type_named(tensor.dtype);
    if (!type) return {0, tensor.shape, tensor.dtype};
    return {type_number(*type).value_or(0), tensor.shape};
  }

  at::Tensor read(const std::string& name) override {
    const auto& [shape, dtype, place] = tensors_.at(name);
    const auto type = type_named(dtype);
    if (!type)
      throw Error(ExitCode::kBadData, "weights",
                  fmt::format("'{}' is {}", name, form(name).text()));
    const at::Tensor values = at::empty(shape, *type);
    file_.read_at(place.offset, {static_cast<char*>(values.mutable_data_ptr()),
                                 static_cast<size_t>(place.num_bytes)});
    return values;
  }

 private:
  std::string bytes_at(int64_t offset, int64_t num_bytes) const {
    std::string bytes(static_cast<size_t>(num_bytes), '\0');
    file_.read_at(offset, bytes);
    return bytes;
  }

  void read_tensors(std::string* reading) {
    const int64_t num_bytes = file_.num_bytes();
    const int64_t begin = safetensors_data_begin(
        bytes_at(0, std::min(num_bytes, kSafetensorsLengthBytes)), num_bytes);
    const std::string json = bytes_at(kSafetensorsLengthBytes, begin - kSafetensorsLengthBytes);
    for (const auto& [name, entry] : read_safetensors_header(json)) {
      *reading = name;
      const bool is_unread = !entry.dtype.empty() && !type_named(entry.dtype);
      tensors_[name] = {entry.shape, entry.dtype,
                        is_unread ? SafetensorsPlace() : place_of(entry, begin, num_bytes)};
    }
  }

  const files::Reader file_;
  std::map<std::string, TensorInFile> tensors_;
};

}  // namespace

std::unique_ptr<WeightsFile> open_safetensors_file(const std::string& path) {
  return std::make_unique<SafetensorsFile>(path);
}

}  // namespace lockstep::checkpoint
