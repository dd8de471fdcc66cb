#pragma once

#include <memory>
#include <mutex>
#include <set>

#include "base/error.h"
#include "data/datasets/dataset.h"

namespace lockstep::data {

/// What stands where a damaged sample was.
enum class InsteadOfDamaged {
  kNextSample,  ///< the next sound one behind it in the data set: for training
  kNothing,     ///< no row: for evaluation
};

/// A data set that goes on where a sample is damaged (Error(kBadData) of its reading). What is read
/// instead follows from the data set, the sample and the epoch alone, so that ranks and threads
/// change no bit; Samples::num_skipped counts. Each damaged sample is logged once.
class SkippingDataset final : public Dataset {
 public:
  SkippingDataset(std::unique_ptr<Dataset> dataset, InsteadOfDamaged instead)
      : dataset_(std::move(dataset)), instead_(instead) {}

  int64_t num_samples() const override { return dataset_->num_samples(); }
  SampleSpec spec() const override { return dataset_->spec(); }
  /// Throws the fault on for a file that was replaced (files::FileChanged), where 1,000 samples in
  /// a row are damaged, or all, and where even an empty read fails: then no sample is to blame (a
  /// worker ended).
  Samples get(std::span<const int64_t> indices_B, int64_t epoch) const override;
  std::string digest() const override { return dataset_->digest(); }
  bool reads_in_threads() const override { return dataset_->reads_in_threads(); }
  int64_t usual_threads() const override { return dataset_->usual_threads(); }

 private:
  /// One row, or none.
  Samples sound(int64_t index, int64_t epoch) const;
  void tell(int64_t index, const Error& fault) const;

  std::unique_ptr<Dataset> dataset_;
  InsteadOfDamaged instead_;
  mutable std::mutex mutex_;
  mutable std::set<int64_t> told_;  ///< indices of samples that were logged
};

}  // namespace lockstep::data
