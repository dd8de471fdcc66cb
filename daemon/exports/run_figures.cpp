#include "daemon/exports/run_figures.h"

#include <cmath>
#include <filesystem>

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/files/files.h"
#include "base/log.h"
#include "train/steps_csv.h"

namespace lockstep::daemon {
namespace {

constexpr int64_t kMaxSummaryBytes = int64_t{1} << 20;

/// Returns the run's folder: checkpoints are in its sub-folder.
std::filesystem::path run_folder_of(const std::string& save_prefix) {
  const std::filesystem::path saves = std::filesystem::absolute(save_prefix).parent_path();
  return saves.parent_path();
}

/// Reads a file; faults become a warning, since the export succeeds without it.
template <typename Read>
void pass_over_faults(const std::filesystem::path& path, Read read) {
  std::error_code ignored;  // a file that is not accessible counts as missing
  if (!std::filesystem::is_regular_file(path, ignored)) return;
  try {
    read();
  } catch (const Error& fault) {
    log::warning("export", path.string() + " is passed over: " + fault.what());
  } catch (const nlohmann::json::exception& fault) {
    log::warning("export", path.string() + " is passed over: " + fault.what());
  }
}

void take_summary(const std::filesystem::path& path, int64_t step, const std::string& sha256,
                  RunFigures* figures) {
  const nlohmann::json json = nlohmann::json::parse(files::read(path, kMaxSummaryBytes));
  if (sha256.empty() || json.at("steps") != step) return;
  const std::string trained = json.at("parameters_sha256");
  // An older summary has no evaluated_sha256; then the trained weights were evaluated.
  const bool is_evaluated = sha256 == json.value("evaluated_sha256", trained);
  if ((is_evaluated || sha256 == trained) && json.at("train_loss").is_number())
    figures->train_loss = json["train_loss"].get<double>();
  const auto& eval = json.at("eval");
  if (!is_evaluated || !eval.is_object()) return;
  figures->eval = {.loss = eval.at("loss").get<double>(),
                   .num_samples = eval.at("num_samples").get<int64_t>()};
  if (!eval.at("accuracy").is_null()) figures->eval->accuracy = eval["accuracy"].get<double>();
}

void take_steps(const std::filesystem::path& path, int64_t step, RunFigures* figures) {
  for (const train::StepLine& line : train::read_steps(path))
    if (line.step == step && std::isfinite(line.loss)) figures->train_loss = line.loss;
}

}  // namespace

RunFigures find_run_figures(const std::string& save_prefix, int64_t step,
                            const std::string& parameters_sha256) {
  const std::filesystem::path run = run_folder_of(save_prefix);
  const std::filesystem::path summary = run / "summary.json", steps = run / "train" / "steps.csv";
  RunFigures figures;
  // The summary comes last: its loss is that of the run's end and overrides the line of steps.csv.
  pass_over_faults(steps, [&] { take_steps(steps, step, &figures); });
  pass_over_faults(summary, [&] { take_summary(summary, step, parameters_sha256, &figures); });
  return figures;
}

}  // namespace lockstep::daemon
