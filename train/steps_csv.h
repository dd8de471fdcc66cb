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

/// Record of a run's steps as CSV (step,epoch,loss,learning_rate,sparsity). Restored steps and full
/// disks: see CsvRecord. Numbers are written so that reading them gives the same bits.
class StepsCsv {
 public:
  /// Throws like CsvRecord.
  StepsCsv(const std::filesystem::path& path, int64_t restored_step);

  void append(const StepLine& line);
  void flush() { record_.flush(); }

 private:
  CsvRecord record_;
};

/// Reads the lines of a steps.csv, in rising order of steps. A last line without its line break is
/// skipped: it is being written, or a crash cut it. A loss may be NaN, infinite or empty. Throws
/// Error: kInputMissing or kIo like files::read, kBadData with file:line for an invalid line.
std::vector<StepLine> read_steps(const std::filesystem::path& path);

/// Returns the last complete line of a steps.csv; nullopt if it is not a line of numbers. Throws
/// like files::Reader.
std::optional<StepLine> last_step(const std::filesystem::path& path);

}  // namespace lockstep::train
