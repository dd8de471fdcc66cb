#include "coord/savers/tf_records_saver.h"

#include <memory>
#include <utility>

#include <fmt/format.h>

#include "base/log.h"
#include "coord/savers/tf_example.h"

namespace lockstep::coord {
namespace {

// Records are written in pieces of 256 KiB.
constexpr size_t kPendingBytes = 1 << 18;

}  // namespace

TfRecordsSaverCallback::TfRecordsSaverCallback(TfRecordsSaverOptions options)
    : SaverCallback(options.saver), options_(std::move(options)) {}

void TfRecordsSaverCallback::begin() {
  SaverCallback::begin();
  file_name_.clear();
  num_files_ = num_of_name_ = 0;
  files_.clear();
  is_full_told_ = false;
}

bool TfRecordsSaverCallback::is_new_file() const {
  return file_ == nullptr || num_samples_ == options_.max_samples_per_file ||
         (name_is_given() && file_name_ != save_name());
}

void TfRecordsSaverCallback::save_sample(const DataMap& sample) {
  // The file is opened only when there is a sample for it, so no empty file appears.
  if (is_new_file()) {
    publish();
    if (!open()) return;
  }
  append_tf_example(sample, &pending_);
  ++num_samples_;
  if (pending_.size() >= kPendingBytes) flush();
}

bool TfRecordsSaverCallback::open() {
  if (num_files_ == options_.max_files) {
    if (!std::exchange(is_full_told_, true))
      log::info("callbacks", fmt::format("{} files of records are there, as max_files says: later "
                                         "samples are not saved",
                                         num_files_));
    return false;
  }
  // A further file of the same name gets the next number.
  num_of_name_ = file_name_ == save_name() ? num_of_name_ + 1 : 0;
  file_name_ = save_name();
  std::string path;
  do {  // a given name may equal the name of another one's part
    const std::string part = num_of_name_ == 0 ? "" : fmt::format("-{:05}", num_of_name_);
    path = file_name_.string() + part + ".tfrecord";
  } while (!files_.insert(path).second && ++num_of_name_ > 0);
  file_ = std::make_unique<WholeFile>(path);
  pending_.clear();
  num_samples_ = 0;
  ++num_files_;
  return true;
}

void TfRecordsSaverCallback::flush() {
  try {
    file_->append(pending_);
  } catch (...) {  // the file may have half a record, so it is dropped
    file_.reset();
    throw;
  }
  pending_.clear();
}

void TfRecordsSaverCallback::publish() {
  if (file_ == nullptr) return;
  // Without publish() the .part file is removed.
  if (num_samples_ == 0) return file_.reset();  // its first sample could not be written
  flush();
  const std::unique_ptr<WholeFile> file = std::move(file_);
  file->publish(true);
}

void TfRecordsSaverCallback::end() { publish(); }

}  // namespace lockstep::coord
