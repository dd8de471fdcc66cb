// Reader for safetensors files. The header is checked when the file is opened; values are read on
// request.
#include <algorithm>
#include <map>
#include <stdexcept>

#include <ATen/ops/empty.h>
#include <fmt/format.h>

#include "base/error.h"
#include "base/files/files.h"
#include "base/tensors/safetensors_header.h"
#include "checkpoint/bundle/number_types.h"
#include "checkpoint/bundle/tensor_type.h"
#include "checkpoint/weights/single_files.h"

namespace lockstep::checkpoint {
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
