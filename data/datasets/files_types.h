#pragma once

#include <vector>

#include "data/datasets/dataset_table.h"

namespace lockstep::data {

/// `files`, which finds the format by what the files hold, and a row for each format: idx, cifar10,
/// cifar100, image_folder, image_csv, tfrecord, npy, safetensors, tokens, webdataset.
std::vector<DatasetType> files_types();

}  // namespace lockstep::data
