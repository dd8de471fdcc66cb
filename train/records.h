#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/files/files.h"
#include "base/tensors/params.h"
#include "metrics/goodput.h"
#include "train/eval_metrics.h"
#include "train/evaluator.h"

/// Files with the results of a run: train/steps.csv, train/evals.csv and summary.json.
namespace lockstep::train {

/// A file of lines that begin with their step, in rising order. A resumed run truncates it at the
/// restored step, so that the file reads like that of an uninterrupted run.
///
/// A failed write does not end a run. Lines are kept in memory (at most 4 MiB, later ones are
/// lost), and one warning gives the reason. Writing continues once there is space.
class CsvRecord {
 public:
  /// Keeps the header and lines of steps <= restored_step, drops the rest. Throws
  /// Error(kCannotCreate or kIo).
  CsvRecord(const std::filesystem::path& path, std::string_view header, int64_t restored_step);
  ~CsvRecord();  // flushes
  CsvRecord(const CsvRecord&) = delete;
  CsvRecord& operator=(const CsvRecord&) = delete;

  /// Appends complete lines, each with its line break.
  void append(std::string_view lines);
  void flush();

 private:
  void warn_once(const std::string& reason);

  const std::string name_;
  files::Writer out_;
  std::string pending_;  // not yet in the file
  size_t flush_at_bytes_;
  bool warned_ = false;
};

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
class StepsCsv : public CsvRecord {
 public:
  StepsCsv(const std::filesystem::path& path, int64_t restored_step);

  void append(const StepLine& line);
};

/// Reads the lines of a steps.csv, in rising order of steps. A last line without its line break is
/// skipped: it is being written, or a crash cut it. A loss may be NaN, infinite or empty. Throws
/// Error: kInputMissing or kIo like files::read, kBadData with file:line for an invalid line.
std::vector<StepLine> read_steps(const std::filesystem::path& path);

/// Returns the last complete line of a steps.csv; nullopt if it is not a line of numbers. Throws
/// like files::Reader.
std::optional<StepLine> last_step(const std::filesystem::path& path);

/// Returns the values of this name over all samples, by step; empty if the file does not exist. If
/// a step was evaluated again (a finished run was started once more), the last value counts. NaN
/// for a value that is not a finite number.
std::map<int64_t, double> read_evals(const std::filesystem::path& path, const std::string& name);

/// Record of a run's evaluations, <project_dir>/train/evals.csv (step,name,class,value): one value
/// per line, loss and accuracy first. `class` is empty for values of all samples. Restored steps
/// and full disks: see CsvRecord.
class EvalsCsv : public CsvRecord {
 public:
  EvalsCsv(const std::filesystem::path& path, int64_t restored_step)
      : CsvRecord(path, "step,name,class,value", restored_step) {}

  /// Writes the result after `step` updates, without buffering, since evaluations are rare.
  void append(int64_t step, const EvalResult& result);
};

/// Contents of <project_dir>/summary.json.
struct Summary {
  /// finished | stopped_early | stopped | ended | not_saved | not_exported | failed
  std::string exit_reason;
  int exit_code = 0;
  std::string error;  ///< message if failed
  int64_t steps = 0;
  double epochs = 0;
  int world_size = 1;
  int64_t skipped_steps = 0;         ///< of this process: skipped non-finite updates
  std::optional<double> train_loss;  ///< of the last update
  std::optional<EvalResult> eval;
  double sparsity = 0;
  int64_t num_prunable_weights = 0;
  double samples_per_second = 0;  ///< Recorder::samples_per_second()
  std::string checkpoint;         ///< prefix of the last commit; empty: none
  std::optional<int64_t> resumed_from_step;
  std::string parameters_sha256;
  std::string evaluated_sha256;  ///< of the moving averages, if evaluated; else empty
  std::string metrics_address;   ///< empty: no server
  std::optional<metrics::RunTime> time = {};
};

/// Formats {"accuracy", "loss", "num_samples", "metrics", "kpis"} as JSON.
std::string eval_json(const EvalResult& eval);

/// Replaces the file atomically.
void write_summary(const std::filesystem::path& path, const Summary& summary);

/// Returns SHA-256 over the bytes of all parameters in name order: equal if and only if two runs'
/// weights are bit-identical.
std::string parameters_sha256(const ParamTable& params);

}  // namespace lockstep::train
