#include "metrics/table/series_table.h"

#include <algorithm>

#include <fmt/format.h>

#include "base/error.h"

// The two tables are in rank_series.cpp and run_series.cpp.
namespace lockstep::metrics {
namespace {

const SeriesInfo* find_in(std::span<const SeriesInfo> rows, std::string_view name) {
  const auto found =
      std::find_if(rows.begin(), rows.end(), [=](const auto& row) { return row.name == name; });
  return found == rows.end() ? nullptr : &*found;
}

/// Formats "rank, node" as "`rank`, `node`".
std::string quoted(std::string_view labels) {
  std::string text = "`";
  for (const char c : labels) text += c == ',' ? "`," : c == ' ' ? " `" : std::string(1, c);
  return labels.empty() ? "-" : text + "`";
}

/// Adds a line of the Markdown table for each row.
void add_rows(std::span<const SeriesInfo> rows, const char* ranks, std::string* text) {
  for (const SeriesInfo& row : rows) {
    std::string_view help = row.help;
    help.remove_suffix(1);  // the full stop
    *text += fmt::format("| `{}` | {} | {} | {} | {} | {}{} |\n", row.name, kind_name(row.kind),
                         row.unit, quoted(row.labels), ranks, help,
                         row.presence == SeriesInfo::kLate ? "; late" : "");
  }
}

}  // namespace

const char* kind_name(SeriesInfo::Kind kind) {
  switch (kind) {
    case SeriesInfo::kGauge:
      return "gauge";
    case SeriesInfo::kCounter:
      return "counter";
    case SeriesInfo::kHistogram:
      return "histogram";
  }
  return "gauge";
}

const SeriesInfo& series_info(std::string_view name) {
  const SeriesInfo* found = find_in(rank_series(), name);
  if (found == nullptr) found = find_in(run_series(), name);
  if (found == nullptr)
    throw Error(ExitCode::kBug, "metrics", fmt::format("{} has no row in metrics/table", name));
  return *found;
}

bool is_run_series(std::string_view name) { return find_in(run_series(), name) != nullptr; }

std::string series_reference() {
  std::string text =
      "| Name | Type | Unit | Labels | Ranks | Meaning |\n| --- | --- | --- | --- | --- | --- |\n";
  add_rows(rank_series(), "each", &text);
  add_rows(run_series(), "root", &text);
  return text;
}

}  // namespace lockstep::metrics
