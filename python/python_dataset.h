#pragma once

#include "data/datasets/dataset_table.h"
#include "python/python_args.h"
#include "python/value.h"

namespace lockstep::python {

struct PythonDatasetOptions {
  PythonArgs args;
  std::string targets = "auto";  ///< auto | class | soft | values | tokens
  int64_t num_classes = 0;       ///< 0: the object's num_classes, vocab_size or classes
  int64_t num_workers = 0;       ///< processes that read samples; 0: this one does
};

/// `data.train: {type: python}`: any object of the user's with __len__ and __getitem__ that gives
/// (input, target). Read by index in Lockstep's order; random and numpy.random and torch's default
/// generator are seeded before each sample from (seed, epoch, index).
class PythonDataset final : public data::Dataset {
 public:
  /// `what`: data.train or data.eval, for messages. Throws Error(kBadData) with file and line if
  /// Python raises, and for a sample that differs when it is read twice.
  PythonDataset(const PythonDatasetOptions& options, const data::DatasetInputs& inputs,
                const std::string& what);
  ~PythonDataset() override;

  int64_t num_samples() const override { return num_samples_; }
  data::SampleSpec spec() const override { return spec_; }
  /// Throws Error(kBadData) for a bad sample, Error(kUnavailable) if a worker was killed.
  data::Samples get(std::span<const int64_t> indices_B, int64_t epoch) const override;
  std::string digest() const override;
  /// With workers each thread waits for one of them. Else this process reads, and must not draw
  /// from torch's generator beside a forward pass.
  bool reads_in_threads() const override { return !pool_.is_none(); }
  int64_t usual_threads() const override { return num_workers_; }

 private:
  int64_t num_samples_ = 0;
  int64_t num_workers_ = 0;
  data::SampleSpec spec_;
  Value data_, pool_;
};

/// The row of `python` in the table of data sets.
data::DatasetType python_dataset_type();

}  // namespace lockstep::python
