#pragma once

#include <cstdint>
#include <filesystem>
#include <vector>

#include "train/csv_record.h"

namespace lockstep::train {

/// One line of <project_dir>/train/steps.csv.
struct StepLine {
  int64_t step = 0;  ///< updates done when the line was written, from 1
  double epoch = 0;
  double loss = 0;
  double learning_rate = 0;
  double sparsity = 0;
  bool has_loss = true;  ///< false: the field is empty, and loss NaN
};

/// The record of a run's steps as CSV (step,epoch,loss,learning_rate,sparsity); restored steps and
/// full disks: CsvRecord. Numbers are written so that reading them gives the same bits.
class StepsCsv {
 public:
  /// Throws as CsvRecord does.
  StepsCsv(const std::filesystem::path& path, int64_t restored_step);

  void append(const StepLine& line);
  void flush() { record_.flush(); }

 private:
  CsvRecord record_;
};

/// The lines of a steps.csv, steps rising. A last line without its line break is left out: it is
/// still being written, or a crash cut it. A loss may be NaN or infinite, or its field empty.
/// Throws Error: kInputMissing or kIo as files::read does, kBadData with file:line for a line that
/// is none.
std::vector<StepLine> read_steps(const std::filesystem::path& path);

/// The last whole line of a steps.csv; nothing if it is no line of numbers. Throws as files::Reader
/// does.
std::optional<StepLine> last_step(const std::filesystem::path& path);

}  // namespace lockstep::train
