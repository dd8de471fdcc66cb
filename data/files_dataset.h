#pragma once

#include <memory>
#include <mutex>
#include <vector>

#include <ATen/core/Tensor.h>

#include "data/dataset.h"
#include "data/formats/formats.h"
#include "data/images/image_transform.h"

/// Data set of files: memory of the batches, and conversion of records to samples.
namespace lockstep::data {

/// Pool of batch tensors that are reused once no other owner holds them. New memory costs more time
/// than filling it. Thread-safe.
class BatchMemory {
 public:
  /// Returns a tensor with undefined values.
  at::Tensor take(at::IntArrayRef shape, at::ScalarType type) const;

 private:
  mutable std::mutex mutex_;
  mutable std::vector<at::Tensor> tensors_;
};

/// Conversion of a source's records to samples.
struct FeedOptions {
  int64_t channels = 0;             ///< 0: that of the pixels; 3 for image files
  std::vector<int64_t> image_size;  ///< height and width, or one for both; empty: the first image's
  bool keeps_ratio = false;
  std::vector<double> means, deviations;  ///< one for all channels, or one per channel
  AugmentOptions augment;
  int64_t num_classes = 0;        ///< 0: as the files say
  bool one_hot = false;           ///< class numbers become soft labels
  bool soft_labels = false;       ///< the target's numbers are probabilities
  bool may_lack_targets = false;  ///< for inference: Samples::targets_BY may be undefined
  bool skips_damaged = false;     ///< mixup takes another sample instead of a damaged one
};

/// Data set of a source's records. Images are decoded, resized, augmented and normalised directly
/// into the batch; floats and tokens are copied.
class FilesDataset final : public Dataset {
 public:
  /// Throws Error(kConfig) for options that do not fit the source's content.
  FilesDataset(std::unique_ptr<Source> source, const FeedOptions& options);

  int64_t num_samples() const override { return source_->num_records(); }
  SampleSpec spec() const override { return spec_; }
  /// Throws Error(kBadData) with file, position and sample.
  Samples get(std::span<const int64_t> indices_B, int64_t epoch) const override;
  std::string digest() const override { return source_->digest(); }

 private:
  struct Scratch;
  SampleSpec make_spec();
  ImageTarget image_target() const;
  void read(int64_t index, Scratch* scratch) const;
  void read_partner(int64_t index, int64_t epoch, Scratch* scratch) const;
  void require_in_range(int64_t index, const Record& record) const;
  void write_sample(int64_t index, int64_t epoch, int64_t row, Samples* samples,
                    Scratch* scratch) const;
  void write_input(int64_t index, const SampleRandom& random, float* out, Scratch* scratch) const;
  void convert_input(const Record& record, const SampleRandom& random, float* out,
                     ImageScratch* scratch) const;
  void write_target(const Record& record, int64_t row, at::Tensor* targets_BY) const;
  void mix_in(const SampleRandom& random, int64_t epoch, int64_t row, Samples* samples,
              Scratch* scratch) const;

  std::unique_ptr<Source> source_;
  FeedOptions options_;
  SampleSpec spec_;
  std::unique_ptr<ImageTransform> images_;  ///< null for floats and tokens
  int64_t input_numbers_ = 1, target_numbers_ = 1;
  BatchMemory memory_;
};

}  // namespace lockstep::data
