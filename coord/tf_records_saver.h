#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <string>

#include "base/files/files.h"
#include "coord/data_map.h"
#include "coord/saver_callback.h"

/// Callback that saves samples as TFRecords, and the encoding of a sample as tf.train.Example.
namespace lockstep::coord {

/// Appends a sample as a tf.train.Example (data/formats/tf_example.proto), framed as a TFRecord
/// (base/digest.h).
///
/// Each value, nested ones by their path ("outputs/boxes"), becomes three features:
///   <key>        floats of 16, 32 and 64 bits as FloatList (float32: 64 bits are rounded),
///                integers and truth values as Int64List, uint8 as a BytesList of one
///                (tf.io.decode_raw), texts as BytesList; row-major
///   <key>/shape  Int64List, empty for a single number
///   <key>/dtype  "float32", "uint8", "string", ...
///
/// Throws Error(kBadData) with key and type for complex and quantized tensors. Throws it with the
/// name for two values that would be one feature. Examples are a key "a/b" and a key "b" of a map
/// "a", or a key "a/shape" next to "a".
void append_tf_example(const DataMap& sample, std::string* records);

struct TfRecordsSaverOptions {
  SampleSaverOptions saver;
  int64_t max_samples_per_file = 10'000;
  std::optional<int64_t> max_files;  ///< per rank; later samples are not saved
};

/// Saver of samples as TFRecords of tf.train.Example (append_tf_example).
///
/// A new file begins after max_samples_per_file samples. With `save_names` it also begins when the
/// name changes (frames of a sequence have one name). The file is <save_name>.tfrecord, with the
/// name of its first sample. Further files of one name are <save_name>-00001.tfrecord and so on,
/// skipping those that exist. A file appears under its name when it is complete. So a killed
/// process leaves only complete files, and a .part of the last one.
class TfRecordsSaverCallback : public SaverCallback {
 public:
  explicit TfRecordsSaverCallback(TfRecordsSaverOptions options);
  std::string stores_as() const override { return files_ending_in(".tfrecord"); }
  void begin() override;
  void end() override;

 protected:
  void save_sample(const DataMap& sample) override;
  bool names_may_repeat() const override { return true; }

 private:
  bool is_new_file() const;
  /// Opens the next file; false if there are max_files already.
  bool open();
  void flush();
  void publish();

  const TfRecordsSaverOptions options_;
  std::unique_ptr<files::WholeFile> file_;
  std::filesystem::path file_name_;  // save_name() of its samples
  std::string pending_;              // records not yet written
  int64_t num_samples_ = 0;          // of the file
  int64_t num_files_ = 0, num_of_name_ = 0;
  std::set<std::string> files_;  // files that were begun
  bool is_full_told_ = false;
};

}  // namespace lockstep::coord
