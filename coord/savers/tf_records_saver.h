#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <string>

#include "coord/savers/saver_callback.h"
#include "coord/savers/whole_file.h"

namespace lockstep::coord {

struct TfRecordsSaverOptions {
  SaverOptions saver;
  int64_t max_samples_per_file = 10'000;
  std::optional<int64_t> max_files;  ///< per rank; later samples are not saved
};

/// Saver of samples as TFRecords of tf.train.Example (coord/savers/tf_example.h).
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
  std::unique_ptr<WholeFile> file_;
  std::filesystem::path file_name_;  // save_name() of its samples
  std::string pending_;              // records not yet written
  int64_t num_samples_ = 0;          // of the file
  int64_t num_files_ = 0, num_of_name_ = 0;
  std::set<std::string> files_;  // files that were begun
  bool is_full_told_ = false;
};

}  // namespace lockstep::coord
