#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>

#include "train/csv_record.h"
#include "train/evaluation/eval_result.h"

namespace lockstep::train {

/// Returns the values of this name over all samples, by step; empty if the file does not exist. If
/// a step was evaluated again (a finished run was started once more), the last value counts. NaN
/// for a value that is not a finite number.
std::map<int64_t, double> read_evals(const std::filesystem::path& path, const std::string& name);

/// Record of a run's evaluations, <project_dir>/train/evals.csv (step,name,class,value): one value
/// per line, loss and accuracy first. `class` is empty for values of all samples. Restored steps
/// and full disks: see CsvRecord.
class EvalsCsv {
 public:
  /// Throws like CsvRecord.
  EvalsCsv(const std::filesystem::path& path, int64_t restored_step)
      : record_(path, "step,name,class,value", restored_step) {}

  /// Writes the result after `step` updates, without buffering, since evaluations are rare.
  void append(int64_t step, const EvalResult& result);

 private:
  CsvRecord record_;
};

}  // namespace lockstep::train
