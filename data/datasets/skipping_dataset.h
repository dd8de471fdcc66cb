#pragma once

#include <memory>
#include <mutex>
#include <set>

#include "base/error.h"
#include "data/datasets/dataset.h"

namespace lockstep::data {

/// Replacement for a damaged sample.
enum class InsteadOfDamaged {
  kNextSample,  ///< the next intact one in the data set: for training
  kNothing,     ///< no row: for evaluation
};

/// Data set that continues at a damaged sample (an Error(kBadData) while reading it). The
/// replacement depends only on the data set, the sample and the epoch, so ranks and threads change
/// no bit. Samples::num_skipped counts the damaged ones. Each one is logged once.
class SkippingDataset final : public Dataset {
 public:
  SkippingDataset(std::unique_ptr<Dataset> dataset, InsteadOfDamaged instead)
      : dataset_(std::move(dataset)), instead_(instead) {}

  int64_t num_samples() const override { return dataset_->num_samples(); }
  SampleSpec spec() const override { return dataset_->spec(); }
  /// Rethrows the fault in three cases: the file was replaced (files::FileChanged); 1,000 samples
  /// in a row, or all, are damaged; or even an empty read fails. In the last case no sample is at
  /// fault, but for instance an ended worker.
  Samples get(std::span<const int64_t> indices_B, int64_t epoch) const override;
  std::string digest() const override { return dataset_->digest(); }
  bool reads_in_threads() const override { return dataset_->reads_in_threads(); }
  int64_t usual_threads() const override { return dataset_->usual_threads(); }

 private:
  /// Returns one row, or none.
  Samples sound(int64_t index, int64_t epoch) const;
  void tell(int64_t index, const Error& fault) const;

  std::unique_ptr<Dataset> dataset_;
  InsteadOfDamaged instead_;
  mutable std::mutex mutex_;
  mutable std::set<int64_t> told_;  ///< indices of samples that were logged
};

}  // namespace lockstep::data
