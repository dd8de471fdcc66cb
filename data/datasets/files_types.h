#pragma once

#include <vector>

#include "data/datasets/dataset_table.h"

namespace lockstep::data {

/// Returns the rows `files`, which detects the format, and one for each format: idx, cifar10,
/// cifar100, image_folder, images, image_csv, tfrecord, npy, safetensors, tokens, webdataset.
std::vector<DatasetType> files_types();

}  // namespace lockstep::data
