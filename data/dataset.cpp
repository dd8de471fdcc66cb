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
  return fmt::format("inputs [{}]{} and {} {}", fmt::join(spec.input_shape, ", "),
                     spec.input_dtype == at::kFloat ? "" : " of tokens", spec.num_classes, counted);
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
  Samples all;
  for (const Samples& part : parts) {
    inputs.push_back(part.inputs_BX);
    targets.push_back(part.targets_BY);
    all.num_skipped += part.num_skipped;
    all.num_records += part.num_records;
    all.num_record_bytes += part.num_record_bytes;
  }
  all.inputs_BX = at::cat(inputs);
  all.targets_BY = at::cat(targets);
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
