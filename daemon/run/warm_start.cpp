#include "daemon/run/warm_start.h"

#include <filesystem>
#include <vector>

#include <fmt/format.h>

#include "base/error.h"
#include "base/log.h"
#include "checkpoint/files/save_files.h"
#include "checkpoint/restore/latest_checkpoint.h"
#include "checkpoint/restore/saved_values.h"
#include "dist/agree.h"
#include "train/step/stopwatch.h"

namespace lockstep::daemon {
namespace {

using checkpoint::SavedValues;

/// A folder means its newest save; that of a run, the one of its saves.
std::string found_save(const std::string& named, dist::Communicator& control) {
  std::error_code ignored;
  const bool is_folder = control.rank() == 0 && std::filesystem::is_directory(named, ignored) &&
                         !std::filesystem::exists(checkpoint::index_path(named), ignored);
  if (!dist::any_of(control, is_folder)) return named;
  for (const std::filesystem::path& folder :
       {std::filesystem::path(named), std::filesystem::path(named) / "checkpoints"})
    if (const auto newest = checkpoint::latest_checkpoint(folder, control)) return *newest;
  throw Error(ExitCode::kInputMissing, "warm start",
              fmt::format("checkpoint.warm_start_ckpt: the folder {} holds no save", named))
      .everywhere();
}

/// Parameters and buffers by dotted name, detached.
StateList variables_of(const model::Model& model) {
  StateList list;
  for (const Param& param : model.params())
    list.push_back({.key = param.name, .tensor = param.tensor.detach()});
  for (const model::Buffer& buffer : model.buffers())
    list.push_back({.key = buffer.name, .tensor = buffer.tensor});
  return list;
}

/// The index name of a variable's value; nothing if the save lacks it. A rule of the run file
/// stands above the variable's own name.
std::optional<std::string> name_in(SavedValues& saved, const std::string& variable,
                                   const checkpoint::WarmStartOptions& options) {
  const std::string own = slashed(variable);
  const std::string there = options.name_there(own).value_or(own);
  for (const std::string& key : {"model/" + there, there}) {
    if (auto name = saved.find(key)) return name;
    if (saved.contains(key)) return key;  // name-based
  }
  return std::nullopt;
}

/// A weight as the other program lays it out, seen from ours: [O, I] -> [I, O], [O, I, H, W] ->
/// [H, W, I, O]. Other tensors lie alike in both.
at::Tensor as_tensorflow_kernel(const at::Tensor& tensor) {
  if (tensor.dim() == 2) return tensor.permute({1, 0});
  return tensor.dim() == 4 ? tensor.permute({2, 3, 1, 0}) : tensor;
}

class WarmStart {
 public:
  WarmStart(const TrainingContext& context, const std::string& prefix)
      : options_(context.config.checkpoint.warm_start),
        variables_(variables_of(*context.model)),
        saved_(prefix) {}

  /// Nothing is written before everything is checked.
  void load() {
    require_scopes();
    std::vector<checkpoint::NamedEntry> found;
    std::vector<std::pair<std::string, at::Tensor>> kernels;  // name there, live weight
    for (const StateEntry& variable : variables_) {
      if (!is_wanted(variable.key)) {
        left_out_.push_back(variable.key);
      } else if (const auto name = name_in(saved_, variable.key, options_)) {
        check_form(*name, variable);
        if (is_turned(variable))
          kernels.emplace_back(*name, variable.tensor);
        else
          found.push_back({*name, variable});
        loaded_.push_back(variable.key);
      } else {
        missing_.push_back(variable.key);
      }
    }
    require_complete();
    std::vector<at::Tensor> read;  // all of them, before any is written
    for (const auto& [name, weight] : kernels) read.push_back(saved_.read(name));
    saved_.read_all(found);
    for (size_t i = 0; i < kernels.size(); ++i)
      as_tensorflow_kernel(kernels[i].second).copy_(read[i]);
  }

  void tell() const {
    const std::vector<std::string> unused = unused_names();
    log::info("warm start",
              fmt::format("{} of {} variables loaded from {}: {}", loaded_.size(),
                          variables_.size(), saved_.prefix(), fmt::join(loaded_, ", ")));
    if (!left_out_.empty())
      log::info("warm start", fmt::format("{} left as they are, by the scopes: {}",
                                          left_out_.size(), fmt::join(left_out_, ", ")));
    if (!unused.empty())
      log::info("warm start", fmt::format("{} saved variables have no use here: {}", unused.size(),
                                          fmt::join(unused, ", ")));
  }

 private:
  bool is_wanted(const std::string& name) const {
    const bool restored = options_.checkpoint_restore_scopes.empty() ||
                          options_.checkpoint_restore_scopes.cover(name);
    return restored && !options_.checkpoint_exclude_scopes.cover(name);
  }

  bool is_turned(const StateEntry& variable) const {
    return options_.warm_start_kernels == "tensorflow" && variable.key.ends_with(".weight");
  }
  StateEntry as_there(const StateEntry& variable) const {
    return is_turned(variable)
               ? StateEntry{.key = variable.key, .tensor = as_tensorflow_kernel(variable.tensor)}
               : variable;
  }

  /// A scope may name what only the model or only the checkpoint has.
  void require_scopes() const {
    std::vector<std::string> names;
    for (const StateEntry& variable : variables_) names.push_back(variable.key);
    for (const std::string& name : saved_.variables())
      names.push_back(checkpoint::shown_name(name));
    options_.checkpoint_restore_scopes.require_matches("checkpoint.checkpoint_restore_scopes",
                                                       names);
    options_.checkpoint_exclude_scopes.require_matches("checkpoint.checkpoint_exclude_scopes",
                                                       names);
  }

  void check_form(const std::string& name, const StateEntry& variable) {
    const auto saved = saved_.form(name), live = checkpoint::form_of(as_there(variable));
    if (saved != live)
      unfit_.push_back(
          fmt::format("'{}' is {} there, {} here", variable.key, saved.text(), live.text()));
  }

  void require_complete() const {
    std::string text;
    if (!unfit_.empty()) text += fmt::format("{}; ", fmt::join(unfit_, "; "));
    if (!missing_.empty()) text += fmt::format("it holds no '{}'; ", fmt::join(missing_, "', '"));
    if (!text.empty())
      throw Error(ExitCode::kConfig, "warm start",
                  fmt::format("{} does not fit the model: {}what is meant to keep its initial "
                              "values is named in checkpoint.checkpoint_exclude_scopes",
                              saved_.prefix(), text));
  }

  std::vector<std::string> unused_names() const {
    NameScopes used(loaded_);
    std::vector<std::string> names;
    for (const std::string& name : saved_.variables()) {
      const std::string shown = checkpoint::shown_name(name);
      if (!shown.starts_with("optimizer/") && (loaded_.empty() || !used.cover(shown)))
        names.push_back(shown);
    }
    return names;
  }

  const checkpoint::WarmStartOptions& options_;
  const StateList variables_;
  SavedValues saved_;
  std::vector<std::string> loaded_, left_out_, missing_, unfit_;
};

}  // namespace

void warm_start(TrainingContext& context, bool is_resumed) {
  const std::string& named = context.config.checkpoint.warm_start.warm_start_ckpt;
  if (named.empty()) return;
  if (is_resumed) {
    if (context.control.rank() == 0)
      log::info("warm start", "the run goes on from a save of its own: " + named + " is not read");
    return;
  }
  const std::string prefix = found_save(named, context.control);
  const auto start = dist::on_all_ranks(context.control, [&] {
    auto work = std::make_unique<WarmStart>(context, prefix);
    work->load();
    return work;
  });
  if (context.control.rank() == 0) start->tell();
}

}  // namespace lockstep::daemon
