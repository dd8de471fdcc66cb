// Numbers are formatted by {fmt} with the fewest digits that give the same bits when read.
#include "train/steps_csv.h"

#include <array>
#include <limits>
#include <optional>
#include <sstream>
#include <string_view>

#include <fmt/format.h>

#include "base/error.h"
#include "base/yaml/config_reader.h"

namespace lockstep::train {
namespace {

constexpr std::string_view kHeader = "step,epoch,loss,learning_rate,sparsity";

/// Parses NaN and infinity as append() writes them; NaN for an empty field.
std::optional<double> parse_loss(std::string_view text) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  if (text.empty() || text == "nan" || text == "-nan")
    return std::numeric_limits<double>::quiet_NaN();
  if (text == "inf") return kInfinity;
  if (text == "-inf") return -kInfinity;
  return parse_number(text);
}

std::optional<StepLine> parse_line(std::string_view text) {
  std::array<std::string_view, 5> fields;
  for (size_t i = 0; i < fields.size(); ++i) {
    const size_t comma = text.find(',');
    // Exactly five fields: a comma after each but the last.
    if ((comma == std::string_view::npos) != (i + 1 == fields.size())) return std::nullopt;
    fields[i] = text.substr(0, comma);
    text.remove_prefix(comma == std::string_view::npos ? text.size() : comma + 1);
  }
  const std::optional<int64_t> step = parse_integer(fields[0]);
  const std::optional<double> epoch = parse_number(fields[1]), loss = parse_loss(fields[2]),
                              rate = parse_number(fields[3]), sparsity = parse_number(fields[4]);
  if (!step || !epoch || !loss || !rate || !sparsity) return std::nullopt;
  return StepLine{*step, *epoch, *loss, *rate, *sparsity, !fields[2].empty()};
}

[[noreturn]] void fail_at(const std::filesystem::path& path, int64_t line,
                          const std::string& what) {
  throw Error(ExitCode::kBadData, "train", fmt::format("{}:{}: {}", path.string(), line, what));
}

}  // namespace

StepsCsv::StepsCsv(const std::filesystem::path& path, int64_t restored_step)
    : record_(path, kHeader, restored_step) {}

void StepsCsv::append(const StepLine& line) {
  const std::string loss = line.has_loss ? fmt::format("{}", line.loss) : "";
  record_.append(fmt::format("{},{},{},{},{}\n", line.step, line.epoch, loss, line.learning_rate,
                             line.sparsity));
}

std::vector<StepLine> read_steps(const std::filesystem::path& path) {
  std::istringstream in(files::read(path));
  std::string text;
  if (!std::getline(in, text) || text != kHeader)
    fail_at(path, 1, fmt::format("not a record of steps: its first line must be '{}'", kHeader));
  std::vector<StepLine> lines;
  // eof() after getline: the line has no line break, so it may be incomplete.
  for (int64_t number = 2; std::getline(in, text) && !in.eof(); ++number) {
    const std::optional<StepLine> line = parse_line(text);
    if (!line)
      fail_at(path, number,
              fmt::format("'{:.80}' is not a line of numbers '{}'; remove it", text, kHeader));
    const StepLine before = lines.empty() ? StepLine{} : lines.back();
    if (line->step <= before.step || line->epoch < before.epoch)
      fail_at(path, number,
              fmt::format("step {} of epoch {} cannot follow step {} of epoch {}", line->step,
                          line->epoch, before.step, before.epoch));
    lines.push_back(*line);
  }
  return lines;
}

std::optional<StepLine> last_step(const std::filesystem::path& path) {
  const std::optional<FoundLine> found = last_line(path, 0, [](std::string_view) { return true; });
  return found ? parse_line(found->text) : std::nullopt;
}

}  // namespace lockstep::train
