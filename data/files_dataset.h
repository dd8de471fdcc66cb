#pragma once

#include <memory>
#include <vector>

#include "data/dataset.h"
#include "data/formats/formats.h"
#include "data/images/image_transform.h"

/// Data set of files: conversion of records to samples.
namespace lockstep::data {

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

/// Returns the data set of a source's records. Images are decoded, resized, augmented and
/// normalised directly into the batch; floats and tokens are copied. Throws Error(kConfig) for
/// options that do not fit the source's content.
std::unique_ptr<Dataset> make_files_dataset(std::unique_ptr<Source> source,
                                            const FeedOptions& options);

}  // namespace lockstep::data
