#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "data/files/found_files.h"
#include "data/sources/source.h"

/// The formats: each function opens files of one. They throw Error(kInputMissing) where a file is
/// absent, Error(kBadData) that names file and place where one is malformed.
namespace lockstep::data {

using Paths = std::vector<std::filesystem::path>;

/// IDX, as MNIST comes: uint8 images [N, H, W] or [N, C, H, W], and uint8 labels [N]. Empty
/// `labels`: the file whose name has `labels-idx1` for `images-idx3`.
std::unique_ptr<Source> open_idx(const std::filesystem::path& images,
                                 const std::filesystem::path& labels);
/// That file. Throws Error(kConfig) for another name.
std::filesystem::path idx_labels_beside(const std::filesystem::path& images);

/// CIFAR's binary version: 3,073 bytes a record with 10 classes, 3,074 with 100 (the first is the
/// coarse label).
std::unique_ptr<Source> open_cifar(const Paths& files, int64_t num_classes);

/// A folder a class, sorted by name: class 0 is the first. JPEG and PNG files anywhere below.
/// Throws Error(kInputMissing) for a folder without any, unless it may lack targets.
FoundFiles find_class_folder(const std::string& folder, bool may_lack_targets);
struct ClassOptions {
  /// Names of the training set's classes, which give the numbers; empty: the folders' own order.
  std::vector<std::string> trained_names;
  int64_t num_trained = 0;        ///< classes of the training set; 0: unknown
  bool may_lack_targets = false;  ///< images of unknown classes have no labels; else Error(kConfig)
};
std::unique_ptr<Source> open_class_folder(const FoundFiles& found, const ClassOptions& options);

/// Image files without labels: one, those directly in a folder, or those of a pattern.
FoundFiles find_images(const std::string& path);
std::unique_ptr<Source> open_images(const FoundFiles& found);

struct CsvOptions {
  std::string image_column, label_column;  ///< empty: the first and the second
  int64_t num_classes = 0;                 ///< 0: the largest label and one
};
/// Lines of an image's path, relative to the CSV's folder or in a store, and a class number; one
/// file after the other.
std::unique_ptr<Source> open_image_csv(const Paths& files, const CsvOptions& options);
/// The paths of their images in stores, which are known to these from then on if they are there.
Paths look_at_remote_images(const Paths& files, const CsvOptions& options);

struct TfRecordOptions {
  std::string image_feature = "image/encoded";
  std::string label_feature = "image/class/label";
  std::vector<int64_t> shape;  ///< of raw pixels or floats; empty: images, or a list's length
  bool is_interleaved = true;  ///< raw pixels lie as [H, W, C]
  int64_t num_classes = 0;
};
/// TFRecord files of tf.train.Example. The input is a bytes feature (an image, or raw uint8 pixels
/// where `shape` is given) or a float feature, the target an int64 or float feature. Checksums of
/// lengths are checked here, those of data with each read.
std::unique_ptr<Source> open_tfrecord(const Paths& files, const TfRecordOptions& options);

struct ArrayOptions {
  bool is_interleaved = false;  ///< uint8 inputs lie as [N, H, W, C]
  int64_t num_classes = 0;      ///< 0: the largest label and one
};
/// Two .npy files whose first axis counts the samples. Empty `targets`: there are none.
std::unique_ptr<Source> open_npy(const std::filesystem::path& inputs,
                                 const std::filesystem::path& targets, const ArrayOptions& options);
/// Two tensors of one safetensors file; as above.
std::unique_ptr<Source> open_safetensors(const std::filesystem::path& file,
                                         const std::string& inputs, const std::string& targets,
                                         const ArrayOptions& options);

struct TokenOptions {
  int64_t context = 256;  ///< tokens of one sample
  int64_t token_bytes = 2;
  int64_t vocabulary = 0;  ///< 0: the largest token and one
};
/// Files of little-endian uint16 or uint32 tokens. Sample i of a file is its tokens [i * context,
/// (i + 1) * context), its target those one further on.
std::unique_ptr<Source> open_tokens(const Paths& files, const TokenOptions& options);

/// Tar archives whose members NAME.jpg (jpeg, png) and NAME.cls stand together.
std::unique_ptr<Source> open_webdataset(const Paths& files, int64_t num_classes);

}  // namespace lockstep::data
