// The record of evaluations, one value per line, so that new metrics need no new columns.
#include "train/evals_csv.h"

#include <cmath>
#include <optional>
#include <sstream>

#include <fmt/format.h>

#include "base/files/files.h"
#include "base/yaml/config_reader.h"

namespace lockstep::train {

std::map<int64_t, double> read_evals(const std::filesystem::path& path, const std::string& name) {
  std::error_code ignored;
  if (!std::filesystem::exists(path, ignored)) return {};
  std::map<int64_t, double> last_by_step;
  std::istringstream lines(files::read(path));
  const std::string mark = "," + name + ",,";  // empty class: all samples
  for (std::string line; std::getline(lines, line);) {
    const size_t at = line.find(mark);
    if (at == std::string::npos || at != line.find(',')) continue;
    if (const std::optional<int64_t> step = parse_integer(line.substr(0, at)))
      last_by_step[*step] = parse_number(line.substr(at + mark.size())).value_or(NAN);
  }
  return last_by_step;
}

void EvalsCsv::append(int64_t step, const EvalResult& result) {
  std::string lines = fmt::format("{},loss,,{}\n", step, result.loss);
  if (result.accuracy) lines += fmt::format("{},accuracy,,{}\n", step, *result.accuracy);
  for (const metrics::ValidationValue& number : numbers_of(result.metrics))
    lines += fmt::format("{},{},{},{}\n", step, number.name,
                         number.class_number ? fmt::format("{}", *number.class_number) : "",
                         number.value);
  record_.append(lines);
  record_.flush();
}

}  // namespace lockstep::train
