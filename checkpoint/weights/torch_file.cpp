// A state dict is a zip archive: data.pkl describes the tensors, data/<key> are their storages.
// Tensors are views of storages.
#include <map>
#include <stdexcept>

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <fmt/format.h>

#include "base/error.h"
#include "base/files/files.h"
#include "checkpoint/bundle/tensor_type.h"
#include "checkpoint/weights/pickle.h"
#include "checkpoint/weights/single_files.h"
#include "checkpoint/weights/torch_pickle.h"
#include "checkpoint/weights/zip_members.h"

namespace lockstep::checkpoint {
namespace {

constexpr std::string_view kPickleName = "data.pkl";

class TorchFile final : public WeightsFile {
 public:
  explicit TorchFile(const std::string& path) : file_(path), members_(zip_members(file_)) {
    find_folder();
    if (members_.contains(folder_ + "constants.pkl"))
      refuse("it is a TorchScript archive, which holds code: save the state dict of the module");
    require_byte_order();
    try {
      tensors_ = tensors_of_pickle(member(std::string(kPickleName), kMaxPickleBytes));
    } catch (const Error&) {
      throw;
    } catch (const std::runtime_error& fault) {
      refuse(fault.what());
    }
    if (tensors_.empty()) refuse("it holds no dict of tensors");
    // All storages must be present and long enough before any tensor is read.
    for (const auto& [name, tensor] : tensors_)
      if (tensor.unread.empty()) require_storage(name, tensor);
  }

  std::vector<std::string> names() const override {
    std::vector<std::string> all;
    for (const auto& [name, tensor] : tensors_) all.push_back(name);
    return all;
  }

  ValueForm form(const std::string& name) const override {
    const TensorInStorage& tensor = tensors_.at(name);
    if (!tensor.unread.empty()) return {0, {}, tensor.unread};
    return {type_number(tensor.type).value_or(0), tensor.shape};
  }

  at::Tensor read(const std::string& name) override {
    const TensorInStorage& tensor = tensors_.at(name);
    if (!tensor.unread.empty()) refuse(fmt::format("'{}' is {}", name, form(name).text()));
    if (tensor.storage != last_key_) {  // tensors of one storage often follow one another
      last_bytes_ = member("data/" + tensor.storage, file_.num_bytes());
      last_key_ = tensor.storage;
    }
    return at::from_blob(last_bytes_.data(), {tensor.storage_elements}, tensor.type)
        .as_strided(tensor.shape, tensor.strides, tensor.offset)
        // clone(): last_bytes_ is replaced by the next storage.
        .clone(at::MemoryFormat::Contiguous);
  }

 private:
  [[noreturn]] void refuse(const std::string& why) const {
    throw Error(ExitCode::kBadData, "weights",
                fmt::format("{} cannot be read as a state dict of PyTorch: {}",
                            file_.path().string(), why));
  }

  /// Finds the archive's only folder, which is named after the file as it was first saved.
  void find_folder() {
    for (const auto& [name, member] : members_) {
      const size_t slash = name.find('/');
      if (slash != std::string::npos && std::string_view(name).substr(slash + 1) == kPickleName)
        folder_ = name.substr(0, slash + 1);
    }
    if (folder_.empty()) refuse("the archive holds no data.pkl");
  }

  std::string member(const std::string& name, int64_t max_bytes) const {
    const auto found = members_.find(folder_ + name);
    if (found == members_.end()) refuse(fmt::format("the archive holds no '{}'", name));
    return read_member(file_, found->first, found->second, max_bytes);
  }

  void require_byte_order() const {
    if (members_.contains(folder_ + "byteorder") && member("byteorder", 16) != "little")
      refuse("its numbers begin with their high bytes (big endian)");
  }

  void require_storage(const std::string& name, const TensorInStorage& tensor) const {
    const auto found = members_.find(folder_ + "data/" + tensor.storage);
    const auto element_bytes = static_cast<int64_t>(c10::elementSize(tensor.type));
    if (found == members_.end() ||
        found->second.num_bytes / element_bytes < tensor.storage_elements)
      refuse(fmt::format("tensor '{}': its storage '{}' is missing or cut", name, tensor.storage));
  }

  const files::Reader file_;
  const std::map<std::string, ZipMember> members_;
  std::string folder_;
  std::map<std::string, TensorInStorage> tensors_;
  std::string last_key_, last_bytes_;
};

}  // namespace

std::unique_ptr<WeightsFile> open_torch_file(const std::string& path) {
  return std::make_unique<TorchFile>(path);
}

}  // namespace lockstep::checkpoint
