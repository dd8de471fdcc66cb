#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

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
  virtual const SourceSpec& spec() const = 0;
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
};

}  // namespace lockstep::data
