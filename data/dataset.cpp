#include "data/dataset.h"

#include <algorithm>
#include <array>

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/tensor.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/digest.h"
#include "base/files/files.h"
#include "base/log.h"

namespace lockstep::data {

std::string name_of(TargetKind kind) {
  constexpr std::array kNames = {"class numbers", "soft labels", "values", "tokens"};
  return kNames.at(static_cast<size_t>(kind));
}

std::string describe(const SampleSpec& spec) {
  const char* counted = spec.target_kind == TargetKind::kValues   ? "values a target"
                        : spec.target_kind == TargetKind::kTokens ? "tokens in the vocabulary"
                                                                  : "classes";
  return fmt::format("inputs [{}]{}{} and {} {}", fmt::join(spec.input_shape, ", "),
                     spec.input_dtype == at::kFloat ? "" : " of tokens",
                     spec.varies ? " (batches by collate_fn)" : "", spec.num_classes, counted);
}

Samples no_samples(const SampleSpec& spec) {
  std::vector<int64_t> inputs{0}, targets{0};
  inputs.insert(inputs.end(), spec.input_shape.begin(), spec.input_shape.end());
  // Tokens predict tokens of the same shape; other targets but classes have num_classes numbers.
  if (spec.target_kind == TargetKind::kTokens)
    targets = inputs;
  else if (spec.target_kind != TargetKind::kClass)
    targets.push_back(spec.num_classes);
  const bool are_numbers =
      spec.target_kind == TargetKind::kClass || spec.target_kind == TargetKind::kTokens;
  return {at::empty(inputs, spec.input_dtype),
          at::empty(targets, are_numbers ? at::kLong : at::kFloat)};
}

namespace {

/// Throws Error(kConfig) unless the tensor has a row for each sample.
void require_rows(const at::Tensor& tensor, int64_t num_samples, const std::string& name) {
  if (tensor.size(0) == num_samples) return;
  throw Error(
      ExitCode::kConfig, "data",
      fmt::format(
          "{} is [{}] in a batch of {} samples, which cannot be cut: give each tensor a row "
          "for each sample, or use train.replicas_to_aggregate: 1 without "
          "run.deterministic: elastic",
          name, fmt::join(tensor.sizes(), ", "), num_samples));
}

/// Name of a tensor of `more`, for messages.
std::string name_of(const Samples& samples, size_t index) {
  return samples.names.empty() ? fmt::format("part {} of the batch", index + 2)
                               : samples.names.at(index + 2);
}

}  // namespace

Samples part_of(const Samples& all, int64_t begin, int64_t size) {
  const int64_t num_samples = all.targets_BY.size(0);
  Samples part{all.inputs_BX.narrow(0, begin, size), all.targets_BY.narrow(0, begin, size)};
  part.names = all.names;
  for (size_t i = 0; i < all.more.size(); ++i) {
    const at::Tensor& tensor = all.more[i];
    // A tensor without dimensions, or the whole batch, needs no cut.
    const bool is_whole = tensor.dim() == 0 || size == num_samples;
    if (!is_whole) require_rows(tensor, num_samples, name_of(all, i));
    part.more.push_back(is_whole ? tensor : tensor.narrow(0, begin, size));
  }
  return part;
}

Samples mapped(Samples samples, const std::function<at::Tensor(const at::Tensor&)>& change) {
  samples.inputs_BX = change(samples.inputs_BX);
  samples.targets_BY = change(samples.targets_BY);
  for (at::Tensor& tensor : samples.more) tensor = change(tensor);
  return samples;
}

ForwardArguments arguments_of(const Samples& samples, bool with_targets) {
  ForwardArguments all{.tensors = {samples.inputs_BX}};
  all.tensors.insert(all.tensors.end(), samples.more.begin(), samples.more.end());
  const std::vector<std::string>& names = samples.names;
  if (!names.empty()) {
    all.names = {names.at(0)};
    all.names.insert(all.names.end(), names.begin() + 2, names.end());
  }
  // Without a name the targets of a named batch are a placeholder.
  if (!with_targets || (!names.empty() && names.at(1).empty())) return all;
  all.tensors.push_back(samples.targets_BY);
  if (!names.empty()) all.names.push_back(names[1]);
  return all;
}

MemoryDataset::MemoryDataset(at::Tensor inputs_SX, at::Tensor targets_SY, int64_t num_classes,
                             TargetKind target_kind)
    : inputs_SX_(std::move(inputs_SX)),
      targets_SY_(std::move(targets_SY)),
      target_kind_(target_kind),
      num_classes_(num_classes) {}

SampleSpec MemoryDataset::spec() const {
  return {.input_shape = inputs_SX_.sizes().slice(1).vec(),
          .input_dtype = inputs_SX_.scalar_type(),
          .target_kind = target_kind_,
          .num_classes = num_classes_};
}

Samples MemoryDataset::get(std::span<const int64_t> indices_B, int64_t /*epoch*/) const {
  const at::Tensor rows_B =
      at::tensor(at::ArrayRef<int64_t>(indices_B.data(), indices_B.size()), at::kLong);
  return {inputs_SX_.index_select(0, rows_B), targets_SY_.index_select(0, rows_B)};
}

std::string MemoryDataset::digest() const {
  return Sha256().add(inputs_SX_).add(targets_SY_).hex();
}

// SkippingDataset: reads whole batches first. If a batch fails, its samples are read singly.

namespace {

constexpr int64_t kMaxInARow = 1000;
/// Number of damaged samples that are logged by name.
constexpr size_t kMaxTold = 100;

/// Rethrows the fault being handled unless the sample is damaged. A missing, unreadable or replaced
/// file is not a damaged sample.
void rethrow_unless_damaged(const Error& fault) {
  if (fault.code() != ExitCode::kBadData ||
      dynamic_cast<const files::FileChanged*>(&fault) != nullptr)
    throw;
}

/// Concatenates the rows of several reads.
Samples joined(const std::vector<Samples>& parts) {
  std::vector<at::Tensor> inputs, targets;
  std::vector<std::vector<at::Tensor>> more(parts.empty() ? 0 : parts.front().more.size());
  Samples all;
  for (const Samples& part : parts) {
    inputs.push_back(part.inputs_BX);
    targets.push_back(part.targets_BY);
    for (size_t i = 0; i < more.size(); ++i) more[i].push_back(part.more.at(i));
    all.names = part.names;
    all.num_skipped += part.num_skipped;
    all.num_records += part.num_records;
    all.num_record_bytes += part.num_record_bytes;
  }
  all.inputs_BX = at::cat(inputs);
  all.targets_BY = at::cat(targets);
  for (const std::vector<at::Tensor>& tensors : more) all.more.push_back(at::cat(tensors));
  return all;
}

}  // namespace

Samples SkippingDataset::get(std::span<const int64_t> indices_B, int64_t epoch) const {
  // Usually no sample is damaged, and the batch is read at once.
  try {
    return dataset_->get(indices_B, epoch);
  } catch (const Error& fault) {
    rethrow_unless_damaged(fault);
  }
  std::vector<Samples> parts;
  for (const int64_t index : indices_B) parts.push_back(sound(index, epoch));
  return joined(parts);
}

Samples SkippingDataset::sound(int64_t index, int64_t epoch) const {
  const int64_t num_tries = std::min(kMaxInARow, num_samples());
  for (int64_t tried = 0;; ++tried) {
    const int64_t place = (index + tried) % num_samples();
    try {
      Samples one = dataset_->get(std::span(&place, 1), epoch);
      one.num_skipped = tried > 0 ? 1 : 0;
      return one;
    } catch (const Error& fault) {
      rethrow_unless_damaged(fault);
      Samples none = dataset_->get({}, epoch);  // throws if it is not the sample's fault
      tell(place, fault);
      if (instead_ == InsteadOfDamaged::kNothing) {
        none.num_skipped = 1;
        return none;
      }
      if (tried + 1 == num_tries) throw;
    }
  }
}

void SkippingDataset::tell(int64_t index, const Error& fault) const {
  const std::scoped_lock lock(mutex_);
  if (told_.size() > kMaxTold || !told_.insert(index).second) return;
  const std::string text = fault.what();
  log::warning(
      "data",
      told_.size() > kMaxTold
          ? fmt::format("more than {} damaged samples: further ones are not logged", kMaxTold)
          : "skipped: " + text.substr(std::min(text.find("] "), text.size() - 2) + 2));
}

}  // namespace lockstep::data
