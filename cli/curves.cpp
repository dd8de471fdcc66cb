#include "cli/curves.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/files/files.h"
#include "plot/plot.h"

// Reads a run's CSV file and summary and draws them. The CSV file may still be growing.
namespace lockstep::cli {
namespace {

constexpr const char* kLossColor = "#1f6fb2";
constexpr const char* kSparsityColor = "#2f8f5b";
constexpr const char* kRateColor = "#c2571a";
constexpr size_t kSmoothedParts = 40;  // the moving mean spans this part of the records

using Column = double train::StepLine::*;

/// Reads summary.json; nullopt while the run has not ended.
std::optional<RunEnd> read_end(const std::filesystem::path& path) {
  if (!std::filesystem::exists(path)) return std::nullopt;
  try {
    const nlohmann::json json = nlohmann::json::parse(files::read(path));
    RunEnd end{.exit_reason = json.at("exit_reason"),
               .steps = json.at("steps"),
               .epochs = json.at("epochs"),
               .world_size = json.at("world_size"),
               .sparsity = json.at("sparsity")};
    // Networks without classes have no accuracy.
    if (json.contains("eval") && json["eval"].is_object() && !json["eval"].at("accuracy").is_null())
      end.test_accuracy = json["eval"].at("accuracy").get<double>();
    return end;
  } catch (const nlohmann::json::exception& fault) {
    throw Error(ExitCode::kBadData, "curves",
                fmt::format("{}: not a run's summary ({}); remove it to see the curves without it",
                            path.string(), fault.what()));
  }
}

double last_epoch(const RunRecord& run) {
  const double epoch = run.lines.back().epoch;
  return epoch > 0 ? epoch : 1;
}

/// Returns false for the loss of a step without a loss.
bool has_value(const train::StepLine& line, Column column) {
  return line.has_loss || column != &train::StepLine::loss;
}

std::vector<chart::Point> points_of(const RunRecord& run, Column column) {
  std::vector<chart::Point> points;
  for (const train::StepLine& line : run.lines)
    if (has_value(line, column)) points.push_back({line.epoch, line.*column});
  return points;
}

/// Value of a text plot's column, from the records in it.
enum class Shown { kMean, kLast };

/// Returns the values of a text plot. A column without records repeats its left neighbour. Columns
/// before the first record show the first record.
std::vector<double> column_values(const RunRecord& run, Column column, Shown shown) {
  constexpr int kColumns = chart::kTextPlotColumns;
  std::vector<double> sums(kColumns), counts(kColumns);
  double value = std::nan("");  // before the first record
  for (const train::StepLine& line : run.lines) {
    if (!has_value(line, column)) continue;
    if (std::isnan(value)) value = line.*column;
    // The epsilon keeps a record at a column's end in that column in spite of rounding.
    const double place = std::ceil(line.epoch / last_epoch(run) * kColumns - 1e-9) - 1;
    const auto at = static_cast<size_t>(std::clamp(place, 0.0, kColumns - 1.0));
    sums[at] = line.*column + (shown == Shown::kMean ? sums[at] : 0);
    counts[at] = 1 + (shown == Shown::kMean ? counts[at] : 0);
  }
  std::vector<double> values;
  for (size_t i = 0; i < sums.size(); ++i) {
    if (counts[i] > 0) value = sums[i] / counts[i];
    values.push_back(value);
  }
  return values;
}

std::string plot(const RunRecord& run, std::string heading, Column column, Shown shown) {
  return chart::text_plot({.heading = std::move(heading),
                           .values = column_values(run, column, shown),
                           .x_end = last_epoch(run),
                           .x_label = "epochs"});
}

/// Returns the loss as recorded and, with enough records, its moving mean.
chart::Panel loss_panel(const RunRecord& run) {
  const std::vector<chart::Point> raw = points_of(run, &train::StepLine::loss);
  // An odd width: smoothed() centres the window on the record.
  const size_t width = raw.size() / kSmoothedParts | 1;
  chart::Panel panel{.heading = "Training loss", .prefers_log = true};
  chart::Curve curve{.label = "as recorded", .color = kLossColor, .points = raw};
  if (width > 1) {
    curve.is_light = true;
    panel.curves.push_back(curve);
    curve = {.label = fmt::format("mean of {} records", width),
             .color = kLossColor,
             .points = chart::smoothed(raw, width)};
  }
  panel.curves.push_back(std::move(curve));
  return panel;
}

/// Returns a panel with one column as a staircase: values hold until the next record.
chart::Panel steps_panel(const RunRecord& run, const char* heading, const char* color,
                         Column column, double least_top) {
  return {.heading = heading,
          .curves = {{.color = color, .points = points_of(run, column), .is_staircase = true}},
          .least_top = least_top};
}

}  // namespace

RunRecord read_run(const std::filesystem::path& folder) {
  const std::filesystem::path csv = folder / "train" / "steps.csv";
  if (!files::is_folder(folder))
    throw Error(ExitCode::kInputMissing, "curves",
                folder.string() +
                    ": no such folder; give the folder of a run (run.project_dir of its run file)");
  if (!files::exists(csv))
    throw Error(ExitCode::kInputMissing, "curves",
                csv.string() + ": no such file; a run writes it once it trains. Is " +
                    folder.string() + " the folder of a run?");
  RunRecord run{.name = std::filesystem::canonical(folder).filename().string(),
                .lines = train::read_steps(csv),
                .end = read_end(folder / "summary.json")};
  if (run.lines.empty())
    throw Error(ExitCode::kBadData, "curves",
                csv.string() +
                    ": no step is recorded yet; wait for the run's first steps (they are written "
                    "with each progress line, summary.progress_secs)");
  // The summary of an earlier start does not count.
  if (run.end && run.end->steps < run.lines.back().step) run.end.reset();
  return run;
}

std::string run_facts(const RunRecord& run) {
  const train::StepLine& last = run.lines.back();
  if (!run.end)
    return fmt::format("{} steps, {:.4g} epochs recorded; not ended, or cut off", last.step,
                       last.epoch);
  const RunEnd& end = *run.end;
  std::string text =
      fmt::format("{}: {} steps, {:.4g} epochs on {} rank{}", end.exit_reason, end.steps,
                  end.epochs, end.world_size, end.world_size == 1 ? "" : "s");
  if (end.test_accuracy) text += fmt::format("; test accuracy {:.4f}", *end.test_accuracy);
  return text + fmt::format("; sparsity {:.4f}", end.sparsity);
}

std::string curves_text(const RunRecord& run) {
  const train::StepLine& last = run.lines.back();
  return fmt::format(
             "{}: {}\nlast record: step {}, loss {}, sparsity {:.6g}, learning rate {:.6g}\n\n",
             run.name, run_facts(run), last.step,
             last.has_loss ? fmt::format("{:.6g}", last.loss) : "-", last.sparsity,
             last.learning_rate) +
         plot(run, "training loss", &train::StepLine::loss, Shown::kMean) +
         plot(run, "sparsity", &train::StepLine::sparsity, Shown::kLast) +
         plot(run, "learning rate", &train::StepLine::learning_rate, Shown::kLast);
}

std::string curves_svg(const RunRecord& run) {
  return chart::svg_chart(
      {.title = run.name,
       .subtitle = run_facts(run),
       .x_label = "epoch",
       .x_end = last_epoch(run),
       .panels = {
           loss_panel(run),
           steps_panel(run, "Sparsity", kSparsityColor, &train::StepLine::sparsity, 1),
           steps_panel(run, "Learning rate", kRateColor, &train::StepLine::learning_rate, 0)}});
}

daemon::CommandResult curves_command(const std::filesystem::path& folder,
                                     const std::string& svg_file) {
  const RunRecord run = read_run(folder);
  if (!svg_file.empty()) files::write_atomically(svg_file, curves_svg(run));
  return {curves_text(run), 0};
}

}  // namespace lockstep::cli
