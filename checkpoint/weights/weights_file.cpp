// Recognizes the kind of a weights file by its first and last bytes, and adapts checkpoints to
// WeightsFile.
#include "checkpoint/weights/weights_file.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <map>

#include <fmt/format.h>

#include "base/error.h"
#include "base/files/files.h"
#include "checkpoint/files/save_files.h"
#include "checkpoint/weights/single_files.h"
#include "checkpoint/weights/weight_names.h"

namespace lockstep::checkpoint {
namespace {

constexpr std::string_view kZip("PK\x03\x04", 4), kOldPickle("\x80\x02", 2), kHdf5("\x89HDF", 4);
constexpr std::string_view kTableEnd("\x57\xfb\x80\x8b\x24\x75\x47\xdb", 8);  // of LevelDB

/// Adapter for a checkpoint. Its values have names as users see them.
class SavedWeights final : public WeightsFile {
 public:
  explicit SavedWeights(const std::string& prefix) : saved_(prefix) {
    for (const std::string& name : saved_.variables()) in_index_.emplace(shown_name(name), name);
  }

  std::vector<std::string> names() const override {
    std::vector<std::string> all;
    for (const auto& [shown, name] : in_index_) all.push_back(shown);
    return all;
  }
  std::optional<std::string> find(const std::string& name) const override {
    for (const std::string& key : {"model/" + name, name})
      if (const auto found = saved_.find(key))
        if (const std::string shown = shown_name(*found); in_index_.contains(shown)) return shown;
    return std::nullopt;
  }
  /// Returns kHere for a checkpoint of a run, since only that identifies its writer. TensorFlow's
  /// checkpoints are recognized by their names.
  KernelLayout kernel_layout(const std::string& name) const override {
    if (is_weight_name(name) || saved_.is_of_a_run()) return KernelLayout::kHere;
    return is_kernel_name(name) ? KernelLayout::kTensorFlow : KernelLayout::kUnknown;
  }
  ValueForm form(const std::string& name) const override { return saved_.form(in_index_.at(name)); }
  at::Tensor read(const std::string& name) override { return saved_.read(in_index_.at(name)); }

 private:
  SavedValues saved_;
  std::map<std::string, std::string> in_index_;  // by shown name
};

[[noreturn]] void refuse_weights(const std::string& path, std::string_view what) {
  throw Error(ExitCode::kBadData, "weights", fmt::format("{} is {}", path, what));
}

bool has_ending(const std::string& path, std::initializer_list<std::string_view> endings) {
  return std::any_of(endings.begin(), endings.end(),
                     [&](std::string_view ending) { return path.ends_with(ending); });
}

/// True if the path means a single file rather than a checkpoint's prefix.
bool is_single_file(const std::string& path) {
  std::error_code ignored;
  if (is_there(index_path(path)) || !file_ending(path).empty()) return false;
  if (files::FileStore* const store = files::store_of(path); store && store->look_at(path))
    return true;
  return std::filesystem::is_regular_file(path, ignored) ||
         has_ending(path, {".pt", ".pth", ".bin", ".safetensors"});
}

std::string bytes_of(const files::Reader& file, int64_t offset, int64_t num_bytes) {
  std::string bytes(static_cast<size_t>(std::min(num_bytes, file.num_bytes() - offset)), '\0');
  file.read_at(offset, bytes);
  return bytes;
}

std::unique_ptr<WeightsFile> open_single_file(const std::string& path) {
  // Magic bytes decide, not the extension: state dicts have many. safetensors has none, but its
  // header is JSON after 8 bytes.
  const files::Reader file(path);
  const std::string begin = bytes_of(file, 0, 16);
  const std::string end = bytes_of(file, std::max<int64_t>(0, file.num_bytes() - 8), 8);
  if (begin.starts_with(kZip)) return open_torch_file(path);
  if (path.ends_with(".safetensors") || (begin.size() > 8 && begin[8] == '{'))
    return open_safetensors_file(path);
  if (begin.starts_with(kOldPickle))
    refuse_weights(
        path,
        "a pickle as PyTorch wrote it before 1.6: load it there and save its state dict again");
  if (begin.starts_with(kHdf5))
    refuse_weights(path, "an HDF5 file: load it in Keras and save it with tf.train.Checkpoint");
  if (end == kTableEnd)
    refuse_weights(
        path,
        "a checkpoint in the first format of tf.train.Saver (V1): restore it in TensorFlow and "
        "save it with tf.compat.v1.train.Saver(write_version=2)");
  refuse_weights(
      path,
      "no file of weights that is read here: a save of Lockstep or TensorFlow (named without "
      ".index), .safetensors, or a state dict of torch.save()");
}

}  // namespace

KernelLayout WeightsFile::kernel_layout(const std::string& name) const {
  return is_weight_name(name) ? KernelLayout::kHere : KernelLayout::kUnknown;
}

std::unique_ptr<WeightsFile> open_weights(const std::string& path) {
  if (is_single_file(path)) return open_single_file(path);
  return std::make_unique<SavedWeights>(path);
}

}  // namespace lockstep::checkpoint
