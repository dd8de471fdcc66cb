#include "daemon/run/warm_start.h"

#include <filesystem>
#include <set>
#include <vector>

#include <ATen/TensorOperators.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/error.h"
#include "base/files/file_store.h"
#include "base/log.h"
#include "checkpoint/files/save_files.h"
#include "checkpoint/restore/latest_checkpoint.h"
#include "checkpoint/weights/load_weights.h"
#include "dist/agree.h"

namespace lockstep::daemon {
namespace {

constexpr int64_t kLeastZeros = 5;  // one fifth of the weights: fewer zeros may be chance

/// True for a folder of this host, or for a prefix of names in an object store.
bool is_folder(const std::string& named) {
  if (checkpoint::is_there(checkpoint::index_path(named))) return false;
  std::error_code ignored;
  files::FileStore* const store = files::store_of(named);
  if (store == nullptr) return std::filesystem::is_directory(named, ignored);
  return !store->look_at(named) && !store->list(named + (named.ends_with('/') ? "" : "/")).empty();
}

/// Returns the checkpoint for a name. A folder means its newest checkpoint; a run's folder means
/// the newest in its sub-folder.
std::string found_save(const std::string& named, dist::Communicator& control) {
  // Only rank 0 looks, and all ranks take its answer: they may see a file system differently.
  const bool is_found =
      dist::on_all_ranks(control, [&] { return control.rank() == 0 && is_folder(named); });
  if (!dist::any_of(control, is_found)) return named;
  for (const std::filesystem::path& folder :
       {std::filesystem::path(named), std::filesystem::path(named) / "checkpoints"})
    if (const auto newest = checkpoint::latest_checkpoint(folder, control)) return *newest;
  throw Error(ExitCode::kInputMissing, "warm start",
              fmt::format("checkpoint.warm_start_ckpt: the folder {} holds no save", named))
      .everywhere();
}

/// Returns parameters and buffers by dotted name, detached.
StateList variables_of(const model::Model& model) {
  StateList list;
  for (const Param& param : model.params())
    list.push_back({.key = param.name, .tensor = param.tensor.detach()});
  for (const model::Buffer& buffer : model.buffers())
    list.push_back({.key = buffer.name, .tensor = buffer.tensor});
  return list;
}

/// Returns the weights of linear layers and convolutions. Frameworks differ in their memory layout.
std::set<std::string> kernels_of(const model::Model& model) {
  std::set<std::string> names;
  for (const Param& param : model.params())
    if (param.prunable) names.insert(param.name);
  return names;
}

std::string text_of(const std::pair<std::string, std::string>& loaded) {
  const auto& [variable, name] = loaded;
  return plain_name(variable) == plain_name(name) ? variable
                                                  : fmt::format("{} from {}", variable, name);
}

void tell(const checkpoint::LoadReport& report, const std::string& path, size_t num_variables) {
  std::vector<std::string> loaded;
  for (const auto& pair : report.loaded) loaded.push_back(text_of(pair));
  log::info("warm start", fmt::format("{} of {} variables loaded from {}: {}", loaded.size(),
                                      num_variables, path, fmt::join(loaded, ", ")));
  const auto tell_list = [](const std::vector<std::string>& names, std::string_view what) {
    if (!names.empty())
      log::info("warm start", fmt::format("{} {}: {}", names.size(), what, fmt::join(names, ", ")));
  };
  tell_list(report.turned, "kernels turned from TensorFlow's order of dimensions");
  tell_list(report.left_out, "left as they are, by the scopes");
  tell_list(report.kept, "counters are not there and begin at 0");
  tell_list(report.unused, "saved variables have no use here");
}

/// Warns if the loaded weights are pruned and the recipe does not keep or create zeros from the
/// first step on. Updates would silently overwrite the zeros.
void warn_of_zeros(const TrainingContext& context) {
  int64_t num_weights = 0, num_zeros = 0;
  for (const Param& param : context.model->params()) {
    if (!param.prunable) continue;
    num_weights += param.tensor.numel();
    num_zeros += param.tensor.detach().eq(0).sum().item<int64_t>();
  }
  for (const recal::Action& action : context.recipe.timeline().due_at(0))
    if (action.kind == recal::ActionKind::kKeepZeros || action.kind == recal::ActionKind::kPrune)
      return;
  if (num_zeros * kLeastZeros < num_weights || num_zeros == 0) return;
  log::warning(
      "warm start",
      fmt::format("{} of {} prunable weights are 0, and the recipe keeps no zeros from the "
                  "first step on: updates fill them; to keep them, give it a "
                  "!ConstantPruningModifier with start_epoch 0",
                  num_zeros, num_weights));
}

}  // namespace

void warm_start(TrainingContext& context, bool is_resumed) {
  const checkpoint::WarmStartOptions& options = context.config.checkpoint.warm_start;
  const std::string& named = options.warm_start_ckpt;
  if (named.empty()) return;
  if (is_resumed) {
    if (context.control.rank() == 0)
      log::info("warm start", "the run goes on from a save of its own: " + named + " is not read");
    return;
  }
  const std::string path = found_save(named, context.control);
  const StateList variables = variables_of(*context.model);
  const checkpoint::LoadReport report = dist::on_all_ranks(context.control, [&] {
    const auto file = checkpoint::open_weights(path);
    return checkpoint::load_weights(*file, path, variables, kernels_of(*context.model), options);
  });
  if (context.control.rank() != 0) return;
  tell(report, path, variables.size());
  warn_of_zeros(context);
}

}  // namespace lockstep::daemon
