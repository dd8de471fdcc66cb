// Weights from checkpoints and files of other programs.
#include "checkpoint/import/load_weights.h"

#include <algorithm>
#include <array>
#include <filesystem>

#include <ATen/core/Tensor.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/diagnostics.h"
#include "base/error.h"
#include "base/files/files.h"
#include "base/tensors/name_scopes.h"
#include "checkpoint/format/checkpoint_files.h"
#include "checkpoint/format/tensor_type.h"

namespace lockstep::checkpoint {

// Readers: the kind of a weights file is recognized by its first and last bytes. Checkpoints are
// adapted to WeightsFile.

namespace {

constexpr std::string_view kZip("PK\x03\x04", 4), kOldPickle("\x80\x02", 2), kHdf5("\x89HDF", 4);
constexpr std::string_view kTableEnd("\x57\xfb\x80\x8b\x24\x75\x47\xdb", 8);  // of LevelDB

std::string_view last_part(std::string_view name) {
  return name.substr(name.find_last_of("./") + 1);  // the whole name if it has no separator
}

/// True if a name ends as TensorFlow, Keras and TF-slim end those of kernels: kernel, _kernel,
/// depthwise_kernel, weights, depthwise_weights.
bool is_kernel_name(std::string_view name) {
  const std::string_view last = last_part(name);
  return last.ends_with("kernel") || last == "weights" || last.ends_with("_weights");
}

/// True if a name ends in weight, as those of PyTorch and Lockstep do.
bool is_weight_name(std::string_view name) { return last_part(name).ends_with("weight"); }

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
  return std::ranges::any_of(endings, [&](auto ending) { return path.ends_with(ending); });
}

/// True if the path means a single file rather than a checkpoint's prefix.
bool is_single_file(const std::string& path) {
  std::error_code ignored;
  if (is_there(index_path(path)) || !file_ending(path).empty()) return false;
  if (files::FileStore* const store = files::store_of(path); store && store->look_at(path))
    return true;
  return std::filesystem::is_regular_file(path, ignored) ||
         has_ending(path, {".pt", ".pth", ".bin", ".safetensors", kShardIndexEnding});
}

std::string bytes_of(const files::Reader& file, int64_t offset, int64_t num_bytes) {
  std::string bytes(static_cast<size_t>(std::min(num_bytes, file.num_bytes() - offset)), '\0');
  file.read_at(offset, bytes);
  return bytes;
}

}  // namespace

std::unique_ptr<WeightsFile> open_weights_file(const std::string& path) {
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
        path, "a pickle from PyTorch before 1.6: load it in PyTorch and save its state dict again");
  if (begin.starts_with(kHdf5))
    refuse_weights(path, "an HDF5 file: load it in Keras and save it with tf.train.Checkpoint");
  if (end == kTableEnd)
    refuse_weights(
        path,
        "a checkpoint in the first format of tf.train.Saver (V1): restore it in TensorFlow and "
        "save it with tf.compat.v1.train.Saver(write_version=2)");
  refuse_weights(path,
                 "not a supported file of weights: use a checkpoint of Lockstep or TensorFlow "
                 "(named without .index), .safetensors, or a state dict of torch.save()");
}

KernelLayout WeightsFile::kernel_layout(const std::string& name) const {
  return is_weight_name(name) ? KernelLayout::kHere : KernelLayout::kUnknown;
}

std::unique_ptr<WeightsFile> open_weights(const std::string& path) {
  if (is_single_file(path))
    return path.ends_with(kShardIndexEnding) ? open_sharded_weights(path) : open_weights_file(path);
  if (!is_there(index_path(path)))
    if (const auto inside = weights_in_folder(path)) return open_weights(*inside);
  return std::make_unique<SavedWeights>(path);
}

// WeightNames: a variable's value is searched in this order: renamed or equal name, the file's own
// aliases, other frameworks' endings.

namespace {

/// Groups of name endings that frameworks use for the same thing.
const std::array<std::vector<std::string>, 5> kSameThings = {
    {{"weight", "kernel", "_kernel", "weights", "depthwise_weights", "depthwise_kernel",
      "pointwise_weights", "pointwise_kernel", "embeddings", "_embeddings", "gamma"},
     {"bias", "biases", "beta"},
     {"moving_mean", "running_mean"},
     {"moving_variance", "running_var"},
     {"num_batches", "num_batches_tracked"}}};

std::vector<std::string> names_for(const std::string& last) {
  for (const std::vector<std::string>& names : kSameThings)
    if (std::find(names.begin(), names.end(), last) != names.end()) return names;
  return {};
}

/// Returns the names and all their prefixes that end at a separator, as written in the file.
std::vector<std::string> names_and_parts(const std::vector<std::string>& names) {
  std::set<std::string> all(names.begin(), names.end());
  for (const std::string& name : names)
    for (size_t end = name.find_first_of("./"); end != std::string::npos;
         end = name.find_first_of("./", end + 1))
      all.insert(name.substr(0, end));
  return {all.begin(), all.end()};
}

/// Mapping between values of a file and variables of the model.
class WeightNames {
 public:
  /// Builds the mapping. `file` must outlive the object. Throws Error(kConfig) for a rule that
  /// matches no name, and for two names that the rules make equal.
  WeightNames(const WeightsFile& file, const RenameRules& rules) : file_(file) {
    const std::vector<std::string> names = file.names();
    std::vector<bool> is_used(rules.size(), false);
    for (const std::string& name : names) {
      const auto renamed = rules.apply(name);
      if (renamed) is_used[renamed->rule] = true;
      add(renamed ? renamed->name : plain_name(name), name, renamed.has_value());
    }
    for (size_t rule = 0; rule < rules.size(); ++rule)
      if (!is_used[rule])
        throw Error(
            ExitCode::kConfig, "warm start",
            fmt::format("checkpoint.warm_start_rename: no name in the checkpoint matches '{}', or "
                        "an earlier rule matched it (nearest: {})",
                        rules.from(rule),
                        fmt::join(nearest_words(rules.from(rule), names_and_parts(names)), ", ")));
  }

  /// Returns the file's name of a variable's value; nullopt if the file has none.
  std::optional<std::string> name_of(const std::string& variable) const {
    const std::string here = plain_name(variable);
    if (const auto name = find(here)) return name;
    // A name that a rule moved away must not be found again under its old name.
    if (const auto name = file_.find(here); name && !moved_.contains(*name)) return name;
    const size_t last = here.rfind('/') + 1;  // 0 if there is no slash
    for (const std::string& ending : names_for(here.substr(last)))
      if (const auto name = find(here.substr(0, last) + ending)) return name;
    return std::nullopt;
  }

  /// Returns the five names of the file nearest to a variable's, separated by commas.
  std::string nearest_to(const std::string& variable) const {
    if (there_.empty()) return "none, as it contains no value";
    std::vector<std::string> all, there;
    for (const auto& [here, name] : there_) all.push_back(here);
    for (const std::string& here : nearest_words(plain_name(variable), all))
      there.push_back(there_.at(here));
    return fmt::format("{}", fmt::join(there, ", "));
  }

 private:
  void add(const std::string& here, const std::string& there, bool is_renamed) {
    const auto [place, is_new] = there_.emplace(here, there);
    if (is_renamed) {
      renamed_.insert(here);
      moved_.insert(there);
    }
    if (is_new) return;
    if (renamed_.contains(here))
      throw Error(
          ExitCode::kConfig, "warm start",
          fmt::format("checkpoint.warm_start_rename: '{}' and '{}' are both renamed to '{}'",
                      place->second, there, here));
    // Of two names that become equal without a rule, the model's own variable has priority.
    if (there.starts_with("model/")) place->second = there;
  }

  std::optional<std::string> find(const std::string& here) const {
    const auto found = there_.find(here);
    return found == there_.end() ? std::nullopt : std::optional(found->second);
  }

  const WeightsFile& file_;
  std::map<std::string, std::string> there_;  // by plain name here
  std::set<std::string> renamed_;             // those of them that a rule gave
  std::set<std::string> moved_;               // names in the file that a rule renamed
};

}  // namespace

// load_weights(): two passes, find and check a value for every variable, then copy. So a file that
// does not fit changes nothing.

at::Tensor as_tensorflow_kernel(const at::Tensor& tensor) {
  std::vector<int64_t> order;
  for (int64_t dim = 2; dim < tensor.dim(); ++dim) order.push_back(dim);
  if (tensor.dim() >= 2) order.insert(order.end(), {1, 0});
  return tensor.dim() >= 2 ? tensor.permute(order) : tensor;
}

namespace {

constexpr size_t kMostFaults = 10;  // in a message

bool is_counter(const std::string& variable) {
  return variable.ends_with(".num_batches") || variable.ends_with(".num_batches_tracked");
}

/// True for two shapes with the same numbers in the same order. A depthwise convolution is [H, W,
/// C, M] in the file and [H, W, 1, C M] here. A linear layer is [1, 1, I, O] in the file and [I, O]
/// here.
bool is_same_kernel(const std::vector<int64_t>& saved, at::IntArrayRef live) {
  if (saved.size() != 4) return false;
  if (live.size() == 2)
    return saved[0] == 1 && saved[1] == 1 && saved[2] == live[0] && saved[3] == live[1];
  return live.size() == 4 && live[2] == 1 && saved[0] == live[0] && saved[1] == live[1] &&
         saved[2] > 0 && live[3] % saved[2] == 0 && saved[3] == live[3] / saved[2];
}

bool is_same_type(int32_t saved, int32_t live) {
  const auto half = type_number(at::kHalf), bfloat16 = type_number(at::kBFloat16);
  return saved == live || (live == type_number(at::kFloat) && (saved == half || saved == bfloat16));
}

class Loading {
 public:
  Loading(WeightsFile& file, std::string path, const std::set<std::string>& kernels,
          const WarmStartOptions& options)
      : file_(file),
        path_(std::move(path)),
        kernels_(kernels),
        options_(options),
        names_(file, options.warm_start_rename) {}

  LoadReport load(const StateList& variables) {
    require_scopes(variables);
    for (const StateEntry& variable : variables) find_value(variable);
    require_complete();
    // reshape() only for the shapes of is_same_kernel(); the order of elements is the same.
    for (const auto& [name, live] : found_) live.copy_(file_.read(name).reshape(live.sizes()));
    note_unused();
    return std::move(report_);
  }

 private:
  bool is_wanted(const std::string& name) const {
    const bool restored = options_.checkpoint_restore_scopes.empty() ||
                          options_.checkpoint_restore_scopes.cover(name);
    return restored && !options_.checkpoint_exclude_scopes.cover(name);
  }

  /// Checks that each scope matches a name of the model or of the file.
  void require_scopes(const StateList& variables) const {
    std::vector<std::string> names = file_.names();
    for (const StateEntry& variable : variables) names.push_back(variable.key);
    options_.checkpoint_restore_scopes.require_matches("checkpoint.checkpoint_restore_scopes",
                                                       names);
    options_.checkpoint_exclude_scopes.require_matches("checkpoint.checkpoint_exclude_scopes",
                                                       names);
  }

  void find_value(const StateEntry& variable) {
    if (!is_wanted(variable.key)) return report_.left_out.push_back(variable.key);
    const auto name = names_.name_of(variable.key);
    if (!name && is_counter(variable.key)) return report_.kept.push_back(variable.key);
    if (!name) {
      add_fault([&] {
        return fmt::format("the checkpoint has no '{}' (nearest: {})", variable.key,
                           names_.nearest_to(variable.key));
      });
      return;
    }
    const bool is_turned = kernels_.contains(variable.key) && turns(variable, *name);
    const at::Tensor live = is_turned ? as_tensorflow_kernel(variable.tensor) : variable.tensor;
    check_form(variable, *name, is_turned);
    found_.emplace_back(*name, live);
    report_.loaded.emplace_back(variable.key, *name);
    if (is_turned) report_.turned.push_back(variable.key);
  }

  bool fits(const StateEntry& variable, const std::string& name, bool is_turned) const {
    const std::vector<int64_t> saved = file_.form(name).shape;
    const at::Tensor live = is_turned ? as_tensorflow_kernel(variable.tensor) : variable.tensor;
    return live.sizes() == at::IntArrayRef(saved) ||
           (is_turned && is_same_kernel(saved, live.sizes()));
  }

  /// True if the kernel has TensorFlow's order: by the option, else by the file, else by its shape.
  bool turns(const StateEntry& variable, const std::string& name) {
    if (options_.warm_start_kernels != "auto") return options_.warm_start_kernels == "tensorflow";
    const KernelLayout layout = file_.kernel_layout(name);
    if (layout != KernelLayout::kUnknown) return layout == KernelLayout::kTensorFlow;
    if (!fits(variable, name, true)) return false;
    if (!fits(variable, name, false)) return true;
    add_fault([&] {
      return fmt::format(
          "'{}' is {} in the checkpoint and fits '{}' in both dimension orders: set "
          "checkpoint.warm_start_kernels: tensorflow ([inputs, outputs]) or lockstep ([outputs, "
          "inputs], as PyTorch)",
          name, file_.form(name).text(), variable.key);
    });
    return false;
  }

  void check_form(const StateEntry& variable, const std::string& name, bool is_turned) {
    const ValueForm saved = file_.form(name), own = form_of({.key = "", .tensor = variable.tensor});
    const bool is_same_shape = saved.unread.empty() && fits(variable, name, is_turned);
    if (is_same_shape && is_same_type(saved.dtype, own.dtype)) return;
    const bool lies_otherwise =
        !is_same_shape && kernels_.contains(variable.key) && fits(variable, name, !is_turned);
    add_fault([&] {
      const ValueForm turned =
          form_of({.key = "", .tensor = as_tensorflow_kernel(variable.tensor)});
      return fmt::format(
          "'{}' is {} in the checkpoint, '{}' is {} in the model{} (nearest: {}){}", name,
          saved.text(), variable.key, own.text(),
          is_turned ? fmt::format(", which would be {} in the checkpoint", turned.text()) : "",
          names_.nearest_to(variable.key),
          lies_otherwise ? fmt::format("; it fits with checkpoint.warm_start_kernels: {}",
                                       is_turned ? "lockstep" : "tensorflow")
                         : "");
    });
  }

  /// Counts a fault. The text is built only for faults that are shown, because it searches all
  /// names.
  template <typename MakeText>
  void add_fault(const MakeText& make_text) {
    if (++num_faults_ <= kMostFaults) faults_.push_back(make_text());
  }

  void require_complete() const {
    if (faults_.empty()) return;
    std::vector<std::string> lines = faults_;
    if (num_faults_ > kMostFaults)
      lines.push_back(fmt::format("and {} more", num_faults_ - kMostFaults));
    throw Error(ExitCode::kConfig, "warm start",
                fmt::format("{} does not fit the model:\n  {}\nlist renamed variables in "
                            "checkpoint.warm_start_rename, and those that keep their initial "
                            "values in checkpoint.checkpoint_exclude_scopes",
                            path_, fmt::join(lines, "\n  ")));
  }

  void note_unused() {
    std::set<std::string> used;
    for (const auto& [variable, name] : report_.loaded) used.insert(name);
    for (const std::string& name : file_.names())
      // Optimizer state and moving averages of our own checkpoints are never wanted here.
      if (!name.starts_with("optimizer/") && !name.starts_with("ema/") && !used.contains(name))
        report_.unused.push_back(name);
  }

  WeightsFile& file_;
  const std::string path_;
  const std::set<std::string>& kernels_;
  const WarmStartOptions& options_;
  const WeightNames names_;
  std::vector<std::pair<std::string, at::Tensor>> found_;  // name there, live as it lies there
  std::vector<std::string> faults_;                        // the first kMostFaults
  size_t num_faults_ = 0;
  LoadReport report_;
};

}  // namespace

LoadReport load_weights(WeightsFile& file, const std::string& path, const StateList& variables,
                        const std::set<std::string>& kernels, const WarmStartOptions& options) {
  return Loading(file, path, kernels, options).load(variables);
}

}  // namespace lockstep::checkpoint
