#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>

#include "train/csv_record.h"
#include "train/evaluation/eval_result.h"

namespace lockstep::train {

/// The numbers of all samples by that name, by step; none where there is no such
/// file. A step that was evaluated again (a run that had ended and was started once more) counts
/// once, with its last number. NaN for what is no finite number.
std::map<int64_t, double> read_evals(const std::filesystem::path& path, const std::string& name);

/// The record of a run's evaluations, <project_dir>/train/evals.csv (step,name,class,value): a line
/// a number, loss and accuracy first; `class` is empty where the number is of all. Restored steps
/// and full disks: CsvRecord.
class EvalsCsv {
 public:
  /// Throws as CsvRecord does.
  EvalsCsv(const std::filesystem::path& path, int64_t restored_step)
      : record_(path, "step,name,class,value", restored_step) {}

  /// After `step` updates. Written at once: evaluations are rare.
  void append(int64_t step, const EvalResult& result);

 private:
  CsvRecord record_;
};

}  // namespace lockstep::train
