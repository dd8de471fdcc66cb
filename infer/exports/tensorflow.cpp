#include "infer/exports/formats.h"

#include <deque>
#include <filesystem>
#include <set>

#include <fmt/format.h>

#include "base/error.h"
#include "base/tensors/state_list.h"
#include "checkpoint/format/object_graph.h"
#include "checkpoint/format/saved_values.h"
#include "checkpoint/save/saver.h"
#include "dist/communicator.h"
#include "infer/exports/checkpoint_model.h"

// Copies a checkpoint into one dense shard through the saver. TensorFlow can read the result, since
// Lockstep's own format is TensorFlow's.
namespace lockstep::exports {
namespace {

using checkpoint::DenseView;

constexpr std::string_view kModelPrefix = "model/";
constexpr std::string_view kStep = "_lockstep/step";

std::filesystem::path folder_of(const std::string& prefix) {
  const std::filesystem::path folder = std::filesystem::path(prefix).parent_path();
  return std::filesystem::weakly_canonical(folder.empty() ? "." : folder);
}

/// Throws Error if both folders are the same: the export would overwrite the run's state file.
void require_another_folder(const std::string& save_prefix, const std::string& out_prefix) {
  if (folder_of(save_prefix) == folder_of(out_prefix))
    throw Error(ExitCode::kUsage, "export",
                fmt::format("{}: this folder contains the checkpoint itself, and its state file "
                            "belongs to its run: write into another folder",
                            out_prefix));
}

/// Copy of a checkpoint's content, whole and dense.
class Content {
 public:
  Content(const std::string& prefix, const ExportOptions& options)
      : reader_(prefix), view_(&reader_) {
    const auto& all = view_.names();
    const std::set<std::string> names(all.begin(), all.end());
    for (const std::string& name : all) {
      const std::string key = checkpoint::state_key(name).value_or("");
      // The saver adds these entries itself.
      if (name == checkpoint::kGraphName || key == checkpoint::kCounterKey) continue;
      const bool is_of_model = key.starts_with(kModelPrefix);
      if (!is_of_model && !options.all) continue;
      // Only weights have averages; buffers of the model are written as they are.
      const bool is_averaged = is_of_model && options.ema && names.contains(ema_name(key));
      add(is_averaged ? ema_name(key) : name, key);
    }
    step_ = view_.read(std::string(kStep)).item<int64_t>();
  }

  const StateList& state() const { return state_; }
  int64_t step() const { return step_; }

 private:
  void add(const std::string& name, const std::string& key) {
    if (key.empty())
      throw Error(ExitCode::kUsage, "export",
                  fmt::format("{}: '{}' has a name that Lockstep does not write: remove --all",
                              reader_.prefix(), name));
    if (!view_.is_text(name)) {
      state_.push_back({.key = key, .tensor = view_.read(name)});
      return;
    }
    std::vector<std::string> texts = view_.read_texts(name);
    if (texts.size() != 1)
      throw Error(
          ExitCode::kUsage, "export",
          fmt::format("{}: '{}' contains {} strings, and Lockstep writes single ones: remove --all",
                      reader_.prefix(), name, texts.size()));
    state_.push_back({.key = key, .text = &texts_.emplace_back(std::move(texts.front()))});
  }

  checkpoint::BundleReader reader_;
  DenseView view_;
  StateList state_;
  std::deque<std::string> texts_;  // a deque: entries keep addresses of its elements
  int64_t step_ = 0;
};

}  // namespace

Written TensorFlowExport::write(const CheckpointModel& saved, const CheckpointNetwork* /*network*/,
                                const ExportOptions& options) {
  require_another_folder(saved.prefix, options.out_file);
  const Content content(saved.prefix, options);
  // The saver writes the files, so format and commit are those of checkpoints.
  dist::SelfCommunicator alone;
  checkpoint::Saver saver({.prefix = options.out_file, .keep_checkpoint_max = -1}, alone);
  const checkpoint::SaveResult result = saver.save(content.state(), content.step());
  if (!result.ok) throw Error(ExitCode::kIo, "export", result.error);
  Written written{.file = result.prefix, .num_bytes = result.bytes_written};
  for (const StateEntry& entry : content.state()) {
    const std::string name = checkpoint::index_name(entry.key);
    written.tensors.push_back(entry.text != nullptr ? TensorForm{name, "string", {}}
                                                    : form_of(name, entry.tensor));
  }
  written.text = fmt::format(
      "{}: {} bytes in TensorFlow's files, {} dense tensors; "
      "tf.train.Checkpoint(model=...).restore() takes this prefix\n",
      result.prefix, result.bytes_written, written.tensors.size());
  return written;
}

}  // namespace lockstep::exports
