#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "data/formats/file_list.h"

/// Sources of records: the interface, an opener for each format, and detection of the format.
namespace lockstep::data {

/// Type of a record's input.
enum class Content {
  kImage,   ///< a JPEG or PNG file
  kPixels,  ///< uint8 [C, H, W] or [H, W, C]
  kFloats,  ///< float32, little-endian
  kTokens,  ///< int64, little-endian
};

/// Type of a record's target.
enum class Targets {
  kLabels,   ///< a class number
  kNumbers,  ///< float32
  kTokens,   ///< int64, as many as input tokens
  kNone,     ///< no target: for inference only
};

/// Properties that all records of a source share.
struct SourceSpec {
  Content content = Content::kImage;
  std::vector<int64_t> shape;   ///< [C, H, W] of pixels in either layout; empty for images
  bool is_interleaved = false;  ///< pixels are [H, W, C]
  Targets targets = Targets::kLabels;
  /// Number of classes, of numbers in a target, or of tokens in the vocabulary. 0: unknown.
  int64_t num_classes = 0;
  std::vector<std::string> class_names = {};  ///< by class number; empty: unknown
  bool may_ignore = false;                    ///< target tokens may be kIgnoredTarget
};

/// One record. Reuse it for several reads, so that its memory is kept.
struct Record {
  std::string_view input;   ///< valid until the next read into this record
  std::string_view target;  ///< of numbers and tokens; empty for labels
  int64_t label = 0;
  std::string input_storage, target_storage;  ///< memory of the views, unless in the source
};

/// Records of files with random access. Thread-safe.
class Source {
 public:
  virtual ~Source() = default;

  virtual int64_t num_records() const = 0;
  const SourceSpec& spec() const { return spec_; }
  /// Reads a record. Throws Error(kBadData) with file and position if it is damaged, kInputMissing
  /// if its file is gone.
  virtual void read(int64_t index, Record* record) const = 0;
  /// Announces that the record is read soon, so that its bytes can be prefetched.
  virtual void expect(int64_t /*index*/) const {}
  /// Returns a record's file and position, for messages.
  virtual std::string place_of(int64_t index) const = 0;
  /// Returns the file and position of its target.
  virtual std::string place_of_target(int64_t index) const { return place_of(index); }
  /// Returns a digest that differs for different content: digest_of_files() of all files, or more.
  virtual std::string digest() const = 0;

 protected:
  SourceSpec spec_;  ///< set by the constructor of the format's source
};

// Openers: each function opens files of one format. They throw Error(kInputMissing) for a missing
// file, Error(kBadData) with file and position for a malformed one.

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
/// Returns the paths of their existing images in stores, which then know the facts of these.
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

/// File whose format is to be detected.
struct UnknownFile {
  std::filesystem::path path;
  std::string ending;  ///< .csv
  std::string bytes;   ///< its first ones, at most 100 CIFAR records
  int64_t num_bytes = 0;
};

/// Reads the start of a file.
UnknownFile read_start(const std::filesystem::path& path);

/// True if the file begins as one of this format. Each excludes those before it.
bool is_npy(const UnknownFile& file);
bool is_tar(const UnknownFile& file);
bool is_idx(const UnknownFile& file);
/// True if the file begins with a TFRecord's length and its checksum.
bool is_tfrecord(const UnknownFile& file);
/// True for a .bin file with a size and labels of CIFAR.
bool is_cifar10(const UnknownFile& file);
bool is_cifar100(const UnknownFile& file);

}  // namespace lockstep::data
