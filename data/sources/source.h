#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::data {

/// What the input of a record is.
enum class Content {
  kImage,   ///< a JPEG or PNG file
  kPixels,  ///< uint8 [C, H, W] or [H, W, C]
  kFloats,  ///< float32, little-endian
  kTokens,  ///< int64, little-endian
};

/// What the target of a record is.
enum class Targets {
  kLabels,   ///< a class number
  kNumbers,  ///< float32
  kTokens,   ///< int64, as many as input tokens
  kNone,     ///< there is none: files to be answered, not learned from
};

/// What all records of a source have in common.
struct SourceSpec {
  Content content = Content::kImage;
  std::vector<int64_t> shape;   ///< [C, H, W] of pixels in either order; empty for images
  bool is_interleaved = false;  ///< pixels lie as [H, W, C]
  Targets targets = Targets::kLabels;
  /// Classes; numbers of one target; tokens of the vocabulary. 0: the files do not say.
  int64_t num_classes = 0;
  std::vector<std::string> class_names = {};  ///< by class number; empty: the files name none
  bool may_ignore = false;                    ///< target tokens may be kIgnoredTarget
};

/// One record as it lies in a file. May be used for one read after the other, so that its memory is
/// kept.
struct Record {
  std::string_view input;   ///< valid until the next read into this record
  std::string_view target;  ///< of numbers and tokens; empty for labels
  int64_t label = 0;
  std::string input_storage, target_storage;  ///< where they lie unless they lie in the source
};

/// Records of files: counted, read at random. Safe to read from several threads.
class Source {
 public:
  virtual ~Source() = default;

  virtual int64_t num_records() const = 0;
  virtual const SourceSpec& spec() const = 0;
  /// Throws Error(kBadData) that names file and place if the record is damaged, kInputMissing if
  /// its file is gone.
  virtual void read(int64_t index, Record* record) const = 0;
  /// Says that the record is read next but one or so, so that its bytes may come nearer.
  virtual void expect(int64_t /*index*/) const {}
  /// Where the record stands, for messages: the file and its place in it.
  virtual std::string place_of(int64_t index) const = 0;
  /// The same of its target.
  virtual std::string place_of_target(int64_t index) const { return place_of(index); }
  /// Tells sources of different content apart: digest_of_files() of all its files, unless it says
  /// more.
  virtual std::string digest() const = 0;
};

}  // namespace lockstep::data
