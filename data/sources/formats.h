#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "data/files/found_files.h"
#include "data/sources/source.h"

/// Formats: each function opens files of one format. They throw Error(kInputMissing) for a missing
/// file, Error(kBadData) with file and position for a malformed one.
namespace lockstep::data {

using Paths = std::vector<std::filesystem::path>;

/// Opens IDX files, as for MNIST: uint8 images [N, H, W] or [N, C, H, W], and uint8 labels [N].
/// Empty `labels`: the file whose name has `labels-idx1` instead of `images-idx3`.
std::unique_ptr<Source> open_idx(const std::filesystem::path& images,
                                 const std::filesystem::path& labels);
/// Returns that file's path. Throws Error(kConfig) for a name without these parts.
std::filesystem::path idx_labels_beside(const std::filesystem::path& images);

/// Opens CIFAR's binary version: 3,073 bytes per record with 10 classes, 3,074 with 100 (the first
/// is the coarse label).
std::unique_ptr<Source> open_cifar(const Paths& files, int64_t num_classes);

/// Finds a folder per class, sorted by name: class 0 is the first. JPEG and PNG files at any depth
/// count. Throws Error(kInputMissing) for a folder without any, unless it may lack targets.
FoundFiles find_class_folder(const std::string& folder, bool may_lack_targets);
struct ClassOptions {
  /// Class names of the training set, which give the numbers; empty: the folders' own order.
  std::vector<std::string> trained_names;
  int64_t num_trained = 0;        ///< classes of the training set; 0: unknown
  bool may_lack_targets = false;  ///< unknown classes: no labels, else Error(kConfig)
};
std::unique_ptr<Source> open_class_folder(const FoundFiles& found, const ClassOptions& options);

/// Finds image files without labels: one file, those directly in a folder, or those of a pattern.
FoundFiles find_images(const std::string& path);
std::unique_ptr<Source> open_images(const FoundFiles& found);

struct CsvOptions {
  std::string image_column, label_column;  ///< empty: the first and the second
  int64_t num_classes = 0;                 ///< 0: the largest label plus one
};
/// Opens CSV files, one after the other. A line has an image's path and a class number. The path is
/// relative to the CSV's folder or in a store.
std::unique_ptr<Source> open_image_csv(const Paths& files, const CsvOptions& options);
/// Returns the paths of their images in stores that exist. Their facts are then known to the
/// stores.
Paths look_at_remote_images(const Paths& files, const CsvOptions& options);

struct TfRecordOptions {
  std::string image_feature = "image/encoded";
  std::string label_feature = "image/class/label";
  std::vector<int64_t> shape;  ///< of raw pixels or floats; empty: images, or a list
  bool is_interleaved = true;  ///< raw pixels are [H, W, C]
  int64_t num_classes = 0;
};
/// Opens TFRecord files of tf.train.Example. The input is a bytes feature (an image, or raw uint8
/// pixels if `shape` is given) or a float feature. The target is an int64 or float feature.
/// Checksums of lengths are checked on opening, those of data on each read.
std::unique_ptr<Source> open_tfrecord(const Paths& files, const TfRecordOptions& options);

struct ArrayOptions {
  bool is_interleaved = false;  ///< uint8 inputs are [N, H, W, C]
  int64_t num_classes = 0;      ///< 0: the largest label plus one
};
/// Opens two .npy files whose first axis counts the samples. Empty `targets`: no targets.
std::unique_ptr<Source> open_npy(const std::filesystem::path& inputs,
                                 const std::filesystem::path& targets, const ArrayOptions& options);
/// Opens two tensors of one safetensors file in the same way.
std::unique_ptr<Source> open_safetensors(const std::filesystem::path& file,
                                         const std::string& inputs, const std::string& targets,
                                         const ArrayOptions& options);

struct TokenOptions {
  int64_t context = 256;  ///< tokens of one sample
  int64_t token_bytes = 2;
  int64_t vocabulary = 0;  ///< 0: the largest token plus one
};
/// Opens files of little-endian uint16 or uint32 tokens. Sample i of a file is its tokens [i *
/// context, (i + 1) * context). The target is shifted by one token.
std::unique_ptr<Source> open_tokens(const Paths& files, const TokenOptions& options);

/// Opens tar archives whose members NAME.jpg (jpeg, png) and NAME.cls are adjacent.
std::unique_ptr<Source> open_webdataset(const Paths& files, int64_t num_classes);

}  // namespace lockstep::data
