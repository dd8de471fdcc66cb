#include "infer/exports/formats.h"

#include <filesystem>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/files/files.h"
#include "base/json.h"
#include "checkpoint/format/tensor_type.h"
#include "checkpoint/import/load_weights.h"
#include "checkpoint/import/safetensors.h"
#include "python/python_types.h"

// A folder as save_pretrained() of transformers writes it. A module of transformers writes it
// itself: only it knows which tied weights are left out and which names files have. The tensors of
// other networks are written here.
namespace lockstep::exports {
namespace {

namespace fs = std::filesystem;

/// Folder that appears under its name when it is complete. It is written under a hidden name next
/// to it. An unpublished folder is removed. If the process is killed, it remains until the next one
/// of this name.
class WholeFolder {
 public:
  explicit WholeFolder(fs::path path) : path_(std::move(path)) {
    std::error_code ignored;
    const bool is_free = fs::is_directory(path_, ignored) && fs::is_empty(path_, ignored);
    if (fs::exists(path_, ignored) && !is_free)
      throw Error(
          ExitCode::kCannotCreate, "export",
          fmt::format("{}: exists and is not an empty folder; remove it, or name another folder",
                      path_.string()));
    files::make_folders(parent());
    part_ = parent() / fmt::format(".{}.tmp", path_.filename().string());
    fs::remove_all(part_, ignored);
    files::make_folders(part_);
  }
  ~WholeFolder() {
    std::error_code ignored;
    if (!is_published_) fs::remove_all(part_, ignored);
  }
  WholeFolder(const WholeFolder&) = delete;
  WholeFolder& operator=(const WholeFolder&) = delete;

  const fs::path& part() const { return part_; }
  std::vector<fs::path> whole_files() const {
    std::vector<fs::path> all;
    for (const std::string& name : files::list(part_))
      if (files::is_file(part_ / name)) all.push_back(part_ / name);
    return all;
  }

  /// Publishes the folder once its files are on disk.
  void publish() {
    for (const fs::path& file : whole_files())
      files::Writer(file, files::Writer::Start::kAtEnd).sync();
    files::sync_folder(part_);
    files::rename_file(part_, path_);  // an empty folder of this name is replaced
    is_published_ = true;
    files::sync_folder(parent());
  }

 private:
  fs::path parent() const { return path_.has_parent_path() ? path_.parent_path() : fs::path("."); }

  const fs::path path_;
  fs::path part_;
  bool is_published_ = false;
};

using Shard = std::vector<checkpoint::SafetensorsItem>;

/// Divides the tensors into shards. A tensor above the limit has a shard of its own.
std::vector<Shard> divide(const CheckpointModel& saved, int64_t max_bytes) {
  std::vector<Shard> shards;
  int64_t num_bytes = 0;
  for (const auto& [name, param] : saved.params) {
    const auto added = static_cast<int64_t>(param.values.nbytes());
    if (shards.empty() || (num_bytes + added > max_bytes && !shards.back().empty())) {
      shards.emplace_back();
      num_bytes = 0;
    }
    shards.back().push_back({name, param.values});
    num_bytes += added;
  }
  return shards;
}

void write_shards(const fs::path& folder, const CheckpointModel& saved, int64_t max_bytes) {
  const std::vector<Shard> shards = divide(saved, max_bytes);
  nlohmann::ordered_json index{{"metadata", {{"total_size", 0}}}};
  int64_t total_bytes = 0;
  for (size_t i = 0; i < shards.size(); ++i) {
    const std::string file =
        shards.size() == 1 ? "model.safetensors"
                           : fmt::format("model-{:05}-of-{:05}.safetensors", i + 1, shards.size());
    // transformers refuses files without this fact.
    (void)checkpoint::write_safetensors(folder / file, shards[i], {{"format", "pt"}});
    for (const checkpoint::SafetensorsItem& item : shards[i]) {
      index["weight_map"][item.name] = file;
      total_bytes += static_cast<int64_t>(item.tensor.nbytes());
    }
  }
  index["metadata"]["total_size"] = total_bytes;
  if (shards.size() > 1)
    files::write_atomically(
        folder / fmt::format("model.safetensors{}", checkpoint::kShardIndexEnding),
        json_text(index, 2) + "\n");
}

/// Writes what the network's module in Python writes itself. Returns false if the tensors are not
/// among it.
bool write_by_module(const fs::path& folder, const CheckpointNetwork* network, int64_t max_bytes) {
  const auto* module =
      network == nullptr ? nullptr : dynamic_cast<const python::PythonModel*>(network->model.get());
  return module != nullptr &&
         module->call_glue("save_pretrained", {folder.string(), max_bytes}).as_bool();
}

/// Reads the folder again, as a warm start does.
std::vector<TensorForm> forms_in(const fs::path& folder) {
  std::vector<TensorForm> forms;
  const auto weights = checkpoint::open_weights(folder.string());
  for (const std::string& name : weights->names()) {
    const checkpoint::ValueForm form = weights->form(name);
    forms.push_back({name, checkpoint::type_name(form.dtype), form.shape});
  }
  return forms;
}

}  // namespace

Written PretrainedExport::write(const CheckpointModel& saved, const CheckpointNetwork* network,
                                const ExportOptions& options) {
  fs::path path = fs::path(options.out_file).lexically_normal();
  if (!path.has_filename()) path = path.parent_path();  // given with a slash at the end
  WholeFolder folder(path);
  const int64_t max_bytes = options.max_shard_bytes.value_or(kShardBytes);
  if (!write_by_module(folder.part(), network, max_bytes))
    write_shards(folder.part(), saved, max_bytes);
  Written written{.file = path.string(), .tensors = forms_in(folder.part())};
  const std::vector<fs::path> all = folder.whole_files();
  for (const fs::path& file : all) written.num_bytes += static_cast<int64_t>(fs::file_size(file));
  const bool has_config = files::is_file(folder.part() / "config.json");
  folder.publish();
  written.text =
      fmt::format("{}: {} files, {} bytes, {} tensors; {}\n", path.string(), all.size(),
                  written.num_bytes, written.tensors.size(),
                  has_config ? "transformers opens it with from_pretrained()"
                             : "without config.json: the network's code has none or was not found");
  return written;
}

}  // namespace lockstep::exports
