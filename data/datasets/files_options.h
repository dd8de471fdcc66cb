#pragma once

#include <string>

#include "data/datasets/dataset_table.h"
#include "data/datasets/files_dataset.h"
#include "data/sources/formats.h"

namespace lockstep::data {

/// Keys of data sets that are made of files.
struct FilesOptions {
  std::string format;  ///< name of a format's row; `files`: detected from the content
  std::string path;    ///< a file, a folder or a pattern
  std::string inputs, targets;
  std::string targets_file;  ///< path of `targets`, if that names a file
  CsvOptions csv;
  TfRecordOptions tfrecord;
  TokenOptions tokens;
  bool is_interleaved = false;
  FeedOptions feed;
  SampleSpec trained;  ///< as DatasetInputs::trained
};

/// Reads the format's keys of the section.
FilesOptions read_files_options(const std::string& format, ConfigReader* in, DatasetUse use);

}  // namespace lockstep::data
