// Writer and reader of safetensors files.
#include "checkpoint/import/safetensors.h"

#include <algorithm>
#include <array>
#include <bit>
#include <map>
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

/// LibTorch's type for a number type of files, and the reverse; nullopt if files have no such type.
at::ScalarType scalar_type_of(NumberType type);
std::optional<NumberType> number_type_of(at::ScalarType type);

namespace {

constexpr std::array<std::pair<NumberType, at::ScalarType>, 12> kNumberTypes{
    {{NumberType::kBool, at::kBool},
     {NumberType::kU8, at::kByte},
     {NumberType::kI8, at::kChar},
     {NumberType::kU16, at::kUInt16},
     {NumberType::kI16, at::kShort},
     {NumberType::kU32, at::kUInt32},
     {NumberType::kI32, at::kInt},
     {NumberType::kI64, at::kLong},
     {NumberType::kF16, at::kHalf},
     {NumberType::kBF16, at::kBFloat16},
     {NumberType::kF32, at::kFloat},
     {NumberType::kF64, at::kDouble}}};

}  // namespace

at::ScalarType scalar_type_of(NumberType type) {
  return std::find_if(kNumberTypes.begin(), kNumberTypes.end(),
                      [&](const auto& pair) { return pair.first == type; })
      ->second;
}

std::optional<NumberType> number_type_of(at::ScalarType type) {
  for (const auto& [number, scalar] : kNumberTypes)
    if (scalar == type) return number;
  return std::nullopt;
}

// Writer: one temporary file and one rename, so that a reader never sees half a file.

namespace {

static_assert(std::endian::native == std::endian::little,
              "values are written in native byte order");

std::string_view dtype_name(at::ScalarType type) {
  const std::optional<NumberType> number = number_type_of(type);
  check(number.has_value(), "safetensors has no such type");
  return safetensors_type_name(*number);
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
  std::stable_sort(sorted.begin(), sorted.end(), [](const auto& a, const auto& b) {
    return a.tensor.element_size() > b.tensor.element_size();
  });
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
  SafetensorsPlace place;
  std::string unread = {};  ///< its type if that is unsupported; then there is no place
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
    if (!tensor.unread.empty()) return {0, tensor.shape, tensor.unread};
    return {type_number(scalar_type_of(tensor.place.type)).value_or(0), tensor.shape};
  }

  at::Tensor read(const std::string& name) override {
    const auto& [shape, place, unread] = tensors_.at(name);
    if (!unread.empty())
      throw Error(ExitCode::kBadData, "weights",
                  fmt::format("'{}' is {}", name, form(name).text()));
    const at::Tensor values = at::empty(shape, scalar_type_of(place.type));
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
      if (!entry.dtype.empty() && !safetensors_type(entry.dtype)) {
        tensors_.emplace(name, TensorInFile{entry.shape, {}, entry.dtype});
        continue;
      }
      tensors_.emplace(name, TensorInFile{entry.shape, place_of(entry, begin, num_bytes)});
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
