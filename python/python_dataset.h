#pragma once

#include "data/datasets/dataset_table.h"
#include "python/python_args.h"
#include "python/value.h"

namespace lockstep::python {

struct PythonDatasetOptions {
  PythonArgs args;
  std::string targets = "auto";  ///< auto | class | soft | values | tokens
  int64_t num_classes = 0;       ///< 0: the object's num_classes, vocab_size or classes
  int64_t num_workers = 0;       ///< worker processes that read samples; 0: this process does
};

/// Data set of a user, `data.train: {type: python}`: any object with __len__ and a __getitem__ that
/// returns (input, target). Samples are read by index in Lockstep's order. Before each one,
/// `random`, numpy.random and torch's default generator are seeded from (seed, epoch, index).
class PythonDataset final : public data::Dataset {
 public:
  /// Creates the object. what: data.train or data.eval, for messages. Throws Error(kBadData), with
  /// file and line, if Python raises, or if a sample differs when it is read twice.
  PythonDataset(const PythonDatasetOptions& options, const data::DatasetInputs& inputs,
                const std::string& what);
  ~PythonDataset() override;

  int64_t num_samples() const override { return num_samples_; }
  data::SampleSpec spec() const override { return spec_; }
  /// Throws Error(kBadData) for a bad sample, Error(kUnavailable) if a worker was killed.
  data::Samples get(std::span<const int64_t> indices_B, int64_t epoch) const override;
  std::string digest() const override;
  /// True with workers: each thread waits for one of them. Without workers this process reads, and
  /// it must not draw from torch's generator during a forward pass.
  bool reads_in_threads() const override { return !pool_.is_none(); }
  int64_t usual_threads() const override { return num_workers_; }

 private:
  int64_t num_samples_ = 0;
  int64_t num_workers_ = 0;
  data::SampleSpec spec_;
  Value data_, pool_;
};

/// Row of `python` in the table of data sets.
data::DatasetType python_dataset_type();

}  // namespace lockstep::python
