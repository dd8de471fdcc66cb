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

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
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

// Weights with zeros: names of the parts after that of the weight.
constexpr std::string_view kCompressed = ".compressed", kBitmask = ".bitmask",
                           kRowOffsets = ".row_offsets", kShape = ".shape";
constexpr int64_t kBitsOfByte = 8;

/// Returns 1, 2, 4, ... 128 as bytes.
at::Tensor bits_of_byte() { return at::arange(kBitsOfByte, at::kInt).exp2().to(at::kByte); }

}  // namespace

std::vector<SafetensorsItem> without_zeros(const SafetensorsItem& weight) {
  const at::Tensor& values = weight.tensor;
  if (values.dim() < 2 || values.numel() == 0) return {weight};
  const at::Tensor rows = values.detach().cpu().reshape({values.size(0), -1});
  const at::Tensor is_kept = rows.ne(0);
  const int64_t num_bytes = (rows.size(1) + kBitsOfByte - 1) / kBitsOfByte;
  const at::Tensor padded =
      at::constant_pad_nd(is_kept.to(at::kByte), {0, num_bytes * kBitsOfByte - rows.size(1)});
  const at::Tensor bits = (padded.view({rows.size(0), num_bytes, kBitsOfByte}) * bits_of_byte())
                              .sum(2, false, at::kByte);
  const at::Tensor counts = is_kept.sum(1, /*keepdim=*/true), sizes = at::tensor(values.sizes());
  std::vector<SafetensorsItem> parts{
      {weight.name + std::string(kCompressed), rows.masked_select(is_kept)},
      {weight.name + std::string(kBitmask), bits},
      {weight.name + std::string(kRowOffsets), counts.cumsum(0) - counts},
      {weight.name + std::string(kShape), sizes}};
  size_t num_all = 0;
  for (const SafetensorsItem& part : parts) num_all += part.tensor.nbytes();
  if (num_all >= values.nbytes()) return {weight};
  return parts;
}

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
  SafetensorsPlace place;  ///< not of a type that is unsupported; of the kept values
  std::string bitmask{};   ///< name of the tensor that says which are kept; empty: all
};

/// Returns the number of elements of a shape, or -1 for what is no shape.
int64_t num_elements(const std::vector<int64_t>& shape) {
  constexpr int64_t kMost = int64_t{1} << 48;
  int64_t num = 1;
  for (const int64_t extent : shape) {
    if (extent < 0 || (extent > 0 && num > kMost / extent)) return -1;
    num *= extent;
  }
  return num;
}

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

  ValueForm form(const std::string& name) const override { return form_of(tensors_.at(name)); }

  at::Tensor read(const std::string& name) override {
    const TensorInFile& tensor = tensors_.at(name);
    return tensor.bitmask.empty() ? read_place(name, tensor) : with_zeros(name);
  }

 private:
  at::Tensor read_place(const std::string& name, const TensorInFile& tensor) const {
    const auto type = type_named(tensor.dtype);
    if (!type)
      throw Error(ExitCode::kBadData, "weights",
                  fmt::format("'{}' is {}", name, form_of(tensor).text()));
    const at::Tensor values = at::empty(tensor.shape, *type);
    check(static_cast<int64_t>(values.nbytes()) == tensor.place.num_bytes,
          "a tensor has the bytes of its shape");
    file_.read_at(tensor.place.offset, {static_cast<char*>(values.mutable_data_ptr()),
                                        static_cast<size_t>(tensor.place.num_bytes)});
    return values;
  }

  static ValueForm form_of(const TensorInFile& tensor) {
    const auto type = type_named(tensor.dtype);
    if (!type) return {0, tensor.shape, tensor.dtype};
    return {type_number(*type).value_or(0), tensor.shape};
  }

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
    join_parts(reading);
  }

  /// Makes one tensor of the parts of each weight without zeros.
  void join_parts(std::string* reading) {
    std::vector<std::string> weights;
    for (const auto& [name, tensor] : tensors_)
      if (name.ends_with(kCompressed))
        weights.push_back(name.substr(0, name.size() - kCompressed.size()));
    for (const std::string& weight : weights) {
      const auto part = [&](std::string_view ending) { return weight + std::string(ending); };
      if (!tensors_.contains(part(kBitmask)) || !tensors_.contains(part(kShape)) ||
          tensors_.contains(weight))
        continue;  // somebody else's name
      *reading = weight;
      const at::Tensor sizes = read(part(kShape));
      const at::Tensor list = sizes.to(at::kLong).flatten();
      TensorInFile whole = tensors_.at(part(kCompressed));
      whole.shape.assign(list.const_data_ptr<int64_t>(),
                         list.const_data_ptr<int64_t>() + list.numel());
      whole.bitmask = part(kBitmask);
      const int64_t num = num_elements(whole.shape);
      const bool has_rows = !whole.shape.empty() && whole.shape[0] > 0;
      const int64_t num_bytes =
          has_rows ? (num / whole.shape[0] + kBitsOfByte - 1) / kBitsOfByte : 0;
      const TensorInFile& bitmask = tensors_.at(whole.bitmask);
      if (num < 0 || !has_rows || bitmask.dtype != "U8" || !bitmask.bitmask.empty() ||
          bitmask.shape != std::vector<int64_t>{whole.shape[0], num_bytes})
        throw std::runtime_error(
            fmt::format("'{}' and '{}' do not fit", part(kShape), whole.bitmask));
      tensors_[weight] = std::move(whole);
      parts_.insert({part(kCompressed), tensors_.extract(part(kCompressed)).mapped()});
      parts_.insert({part(kBitmask), tensors_.extract(part(kBitmask)).mapped()});
      tensors_.erase(part(kShape));
      tensors_.erase(part(kRowOffsets));
    }
  }

  /// Reads a weight that is stored without its zeros.
  at::Tensor with_zeros(const std::string& name) {
    const TensorInFile& whole = tensors_.at(name);
    const std::string kept_name = name + std::string(kCompressed);
    const at::Tensor kept = read_place(kept_name, parts_.at(kept_name));
    const at::Tensor bytes = read_place(whole.bitmask, parts_.at(whole.bitmask));
    const int64_t num_rows = whole.shape[0], num_inputs = num_elements(whole.shape) / num_rows;
    const at::Tensor is_kept = bytes.unsqueeze(2)
                                   .bitwise_and(bits_of_byte())
                                   .ne(0)
                                   .reshape({num_rows, -1})
                                   .narrow(1, 0, num_inputs);
    if (is_kept.sum().item<int64_t>() != kept.numel())
      throw Error(ExitCode::kBadData, "weights",
                  fmt::format("'{}' has {} values, its bit mask another number of bits", name,
                              kept.numel()));
    return at::zeros({num_rows, num_inputs}, kept.options())
        .masked_scatter_(is_kept, kept)
        .reshape(whole.shape);
  }

  const files::Reader file_;
  std::map<std::string, TensorInFile> parts_;  // of weights without zeros
  std::map<std::string, TensorInFile> tensors_;
};

}  // namespace

std::unique_ptr<WeightsFile> open_safetensors_file(const std::string& path) {
  return std::make_unique<SafetensorsFile>(path);
}

}  // namespace lockstep::checkpoint
