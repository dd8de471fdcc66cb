#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "base/files/files.h"

namespace lockstep::train {

/// One line of <project_dir>/train/steps.csv.
struct StepLine {
  int64_t step = 0;  ///< updates done when the line was written, from 1
  double epoch = 0;
  double loss = 0;
  double learning_rate = 0;
  double sparsity = 0;
};

/// The record of a run's steps as CSV (step,epoch,loss,learning_rate,sparsity). A resumed run cuts
/// it at the restored step, so that the file reads as that of an unbroken run. Numbers are written
/// so that reading them gives the same bits.
///
/// A record that cannot be written does not end a run: lines wait in memory (at most 4 MiB, later
/// ones are lost), one warning tells why, and the file goes on where it stopped once there is room.
class StepsCsv {
 public:
  /// Keeps lines of steps <= restored_step, drops the rest. Throws Error(kCannotCreate or kIo).
  StepsCsv(const std::filesystem::path& path, int64_t restored_step);
  ~StepsCsv();  // flushes
  StepsCsv(const StepsCsv&) = delete;
  StepsCsv& operator=(const StepsCsv&) = delete;

  void append(const StepLine& line);
  void flush();

 private:
  void warn_once(const std::string& reason);

  files::Writer out_;
  std::string pending_;  // not yet in the file
  size_t flush_at_bytes_;
  bool warned_ = false;
};

/// The lines of a steps.csv, steps rising. A last line without its line break is left out: it is
/// still being written, or a crash cut it. A loss may be NaN or infinite. Throws Error:
/// kInputMissing or kIo as files::read does, kBadData with file:line for a line that is none.
std::vector<StepLine> read_steps(const std::filesystem::path& path);

}  // namespace lockstep::train
