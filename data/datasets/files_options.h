#pragma once

#include <string>

#include "data/datasets/dataset_table.h"
#include "data/datasets/files_dataset.h"
#include "data/sources/formats.h"

namespace lockstep::data {

/// The keys of data sets made of files.
struct FilesOptions {
  std::string format;  ///< a row's name; files: found by what the files hold
  std::string path;    ///< a file, a folder or a pattern
  std::string inputs, targets;
  std::string targets_file;  ///< where `targets` is, if it names a file
  CsvOptions csv;
  TfRecordOptions tfrecord;
  TokenOptions tokens;
  bool is_interleaved = false;
  FeedOptions feed;
  SampleSpec trained;  ///< as DatasetInputs::trained
};

/// Reads those keys of the section that are the format's.
FilesOptions read_files_options(const std::string& format, ConfigReader* in, DatasetUse use);

}  // namespace lockstep::data
