// Warm start in two passes: find and check a value for every variable, then copy. So a file that
// does not fit changes nothing.
#include "checkpoint/weights/load_weights.h"

#include <set>

#include <ATen/core/Tensor.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/error.h"
#include "checkpoint/bundle/tensor_type.h"
#include "checkpoint/weights/weight_names.h"

namespace lockstep::checkpoint {
namespace {

constexpr size_t kMostFaults = 10;  // in a message

/// Returns a view of our weight in TensorFlow's order. Linear: [O, I] -> [I, O]. Convolution: [O,
/// I, H, W] -> [H, W, I, O]. The same holds for 1 and 3 spatial dimensions.
at::Tensor as_tensorflow_kernel(const at::Tensor& tensor) {
  std::vector<int64_t> order;
  for (int64_t dim = 2; dim < tensor.dim(); ++dim) order.push_back(dim);
  if (tensor.dim() >= 2) order.insert(order.end(), {1, 0});
  return tensor.dim() >= 2 ? tensor.permute(order) : tensor;
}

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
        return fmt::format("nothing there is '{}' (nearest: {})", variable.key,
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
          "'{}' is {} there and fits '{}' in both orders of its dimensions: say which with "
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
      return fmt::format("'{}' is {} there, '{}' is {} here{} (nearest there: {}){}", name,
                         saved.text(), variable.key, own.text(),
                         is_turned ? fmt::format(", which would be {} there", turned.text()) : "",
                         names_.nearest_to(variable.key),
                         lies_otherwise
                             ? fmt::format("; it fits with checkpoint.warm_start_kernels: {}",
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
                fmt::format("{} does not fit the model:\n  {}\nname what has another name there in "
                            "checkpoint.warm_start_rename, and what is meant to keep its initial "
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
