// Files with the results of a run. Lines of the CSV files are appended in memory and flushed in
// blocks. A full disk must not end training, so failed writes are kept and tried again.
#include "train/records.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <sstream>
#include <system_error>
#include <utility>

#include <fmt/format.h>

#include "base/digest.h"
#include "base/error.h"
#include "base/json.h"
#include "base/log.h"
#include "base/text.h"
#include "base/yaml/config_reader.h"
#include "coord/saver_callback.h"

namespace lockstep::train {
namespace {

constexpr size_t kFlushBytes = 8192;
constexpr size_t kMaxPendingBytes = size_t{4} << 20;
constexpr int64_t kBlockBytes = int64_t{64} << 10;

std::optional<int64_t> step_of(std::string_view line) {
  return parse_integer(line.substr(0, line.find(',')));
}

/// True if the file exists and begins with this line.
bool begins_with(const std::filesystem::path& path, std::string_view header) {
  if (!std::filesystem::exists(path)) return false;
  const std::string wanted = fmt::format("{}\n", header);
  const files::Reader file(path);
  if (file.num_bytes() < static_cast<int64_t>(wanted.size())) return false;
  std::string found(wanted.size(), '\0');
  file.read_at(0, found);
  return found == wanted;
}

/// A line of a file, without its line break, and the offset after the line break.
struct FoundLine {
  std::string text;
  int64_t end = 0;
};

/// Returns the last wanted complete line of a file, from the offset `begin` on. Reads backwards
/// from the end, no more than necessary, since the file may be larger than memory.
std::optional<FoundLine> last_line(const std::filesystem::path& path, int64_t begin,
                                   const std::function<bool(std::string_view)>& is_wanted) {
  const files::Reader file(path);
  std::string text;  // bytes `start` to `end` of the file
  int64_t end = file.num_bytes(), start = end;
  while (end > begin) {
    // The line break before the last line; the last character may be that line's own.
    const size_t before = text.size() < 2 ? text.npos : text.rfind('\n', text.size() - 2);
    if (before == text.npos && start > begin) {
      std::string block(static_cast<size_t>(std::min(kBlockBytes, start - begin)), '\0');
      start -= static_cast<int64_t>(block.size());
      file.read_at(start, block);
      text.insert(0, block);
      continue;
    }
    const size_t line_begin = before == text.npos ? 0 : before + 1;
    std::string line = text.substr(line_begin);
    if (line.ends_with('\n')) {
      line.pop_back();
      if (is_wanted(line)) return FoundLine{std::move(line), end};
    }
    text.resize(line_begin);
    end = start + static_cast<int64_t>(line_begin);
  }
  return std::nullopt;
}

/// Drops the lines of later steps. Since steps rise, these lines and a cut one are at the end. So
/// not the whole file is read.
void cut(const std::filesystem::path& path, std::string_view header, int64_t last_step) {
  const auto header_bytes = static_cast<int64_t>(header.size()) + 1;
  const std::optional<FoundLine> last = last_line(path, header_bytes, [&](std::string_view line) {
    const std::optional<int64_t> step = step_of(line);
    return step && *step <= last_step;
  });
  std::error_code fault;
  std::filesystem::resize_file(path, static_cast<uintmax_t>(last ? last->end : header_bytes),
                               fault);
  if (fault)
    throw Error(
        ExitCode::kIo, "train",
        fmt::format("{}: cannot be cut at step {}: {}", path.string(), last_step, fault.message()));
}

/// Truncates the file (creates it if necessary) and opens it for appending.
files::Writer cut_and_open(const std::filesystem::path& path, std::string_view header,
                           int64_t last_step) {
  files::make_folders(path.parent_path());
  if (last_step == 0 || !begins_with(path, header)) {
    files::write_atomically(path, fmt::format("{}\n", header));
  } else {
    cut(path, header, last_step);
  }
  return files::Writer(path, files::Writer::Start::kAtEnd);
}

}  // namespace

CsvRecord::CsvRecord(const std::filesystem::path& path, std::string_view header,
                     int64_t restored_step)
    : name_(path.filename().string()),
      out_(cut_and_open(path, header, restored_step)),
      flush_at_bytes_(kFlushBytes) {}

CsvRecord::~CsvRecord() { flush(); }

void CsvRecord::append(std::string_view lines) {
  // The disk has been full for long: drop the line rather than grow without limit.
  if (pending_.size() >= kMaxPendingBytes) return;
  pending_ += lines;
  if (pending_.size() >= flush_at_bytes_) flush();
}

void CsvRecord::flush() {
  // append() may write a part before it throws; keep only the rest.
  const int64_t before = out_.num_bytes();
  try {
    out_.append(pending_);
  } catch (const Error& error) {
    warn_once(error.what());
  }
  pending_.erase(0, static_cast<size_t>(out_.num_bytes() - before));
  flush_at_bytes_ = pending_.size() + kFlushBytes;
}

void CsvRecord::warn_once(const std::string& reason) {
  if (warned_) return;
  warned_ = true;
  log::warning("train", fmt::format("lines of {} wait in memory, training continues: {}; free "
                                    "space, or they are lost when the run ends",
                                    name_, reason));
}

// Numbers are formatted by {fmt} with the fewest digits that give the same bits when read.

constexpr std::string_view kHeader = "step,epoch,loss,learning_rate,sparsity";

/// Parses NaN and infinity as append() writes them; NaN for an empty field.
static std::optional<double> parse_loss(std::string_view text) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  if (text.empty() || text == "nan" || text == "-nan")
    return std::numeric_limits<double>::quiet_NaN();
  if (text == "inf") return kInfinity;
  if (text == "-inf") return -kInfinity;
  return parse_number(text);
}

static std::optional<StepLine> parse_line(std::string_view text) {
  const std::vector<std::string> fields = split(text, ',');
  if (fields.size() != 5 || text.ends_with(',')) return std::nullopt;
  const std::optional<int64_t> step = parse_integer(fields[0]);
  const std::optional<double> epoch = parse_number(fields[1]), loss = parse_loss(fields[2]),
                              rate = parse_number(fields[3]), sparsity = parse_number(fields[4]);
  if (!step || !epoch || !loss || !rate || !sparsity) return std::nullopt;
  return StepLine{*step, *epoch, *loss, *rate, *sparsity, !fields[2].empty()};
}

[[noreturn]] static void fail_at(const std::filesystem::path& path, int64_t line,
                                 const std::string& what) {
  throw Error(ExitCode::kBadData, "train", fmt::format("{}:{}: {}", path.string(), line, what));
}

StepsCsv::StepsCsv(const std::filesystem::path& path, int64_t restored_step)
    : CsvRecord(path, kHeader, restored_step) {}

void StepsCsv::append(const StepLine& line) {
  CsvRecord::append(csv_line_of(line.step, line.epoch,
                                line.has_loss ? fmt::format("{}", line.loss) : std::string(),
                                line.learning_rate, line.sparsity));
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

// The record of evaluations, one value per line, so that new metrics need no new columns.

std::map<int64_t, double> read_evals(const std::filesystem::path& path, const std::string& name) {
  std::error_code ignored;
  if (!std::filesystem::exists(path, ignored)) return {};
  std::map<int64_t, double> last_by_step;
  const std::string mark = "," + name + ",,";  // empty class: all samples
  for (const std::string& line : split(files::read(path))) {
    const size_t at = line.find(mark);
    if (at == std::string::npos || at != line.find(',')) continue;
    if (const std::optional<int64_t> step = parse_integer(line.substr(0, at)))
      last_by_step[*step] = parse_number(line.substr(at + mark.size())).value_or(NAN);
  }
  return last_by_step;
}

void EvalsCsv::append(int64_t step, const EvalResult& result) {
  std::string lines = csv_line_of(step, "loss", "", result.loss);
  if (result.accuracy) lines += csv_line_of(step, "accuracy", "", *result.accuracy);
  for (const metrics::ValidationValue& number : numbers_of(result.metrics))
    lines +=
        csv_line_of(step, number.name,
                    number.class_number ? std::to_string(*number.class_number) : "", number.value);
  CsvRecord::append(lines);
  flush();
}

// summary.json. Non-finite numbers become null, since JSON has none.

static nlohmann::ordered_json json_of(const EvalResult& eval) {
  nlohmann::ordered_json json{{"accuracy", json_or_null(eval.accuracy)},
                              {"loss", eval.loss},
                              {"num_samples", eval.num_samples}};
  for (const auto& [name, value] : eval.metrics)
    json["metrics"][name] = coord::json_of_tensor(value);
  for (const auto& [name, value] : eval.kpis) json["kpis"][name] = value;
  return json;
}

static nlohmann::ordered_json goodput_json(const metrics::RunTime& time) {
  nlohmann::ordered_json json{{"ratio", time.goodput()}, {"starts", time.num_starts}};
  for (size_t use = 0; use < metrics::kNumTimeUses; ++use)
    json["seconds"][metrics::name_of(static_cast<metrics::TimeUse>(use))] = time.seconds[use];
  return json;
}

std::string eval_json(const EvalResult& eval) { return json_of(eval).dump(); }

void write_summary(const std::filesystem::path& path, const Summary& summary) {
  nlohmann::ordered_json json{{"exit_reason", summary.exit_reason},
                              {"exit_code", summary.exit_code},
                              {"steps", summary.steps},
                              {"epochs", summary.epochs},
                              {"skipped_steps", summary.skipped_steps},
                              {"world_size", summary.world_size},
                              {"train_loss", json_or_null(summary.train_loss)},
                              {"eval", nullptr},
                              {"sparsity", summary.sparsity},
                              {"num_prunable_weights", summary.num_prunable_weights},
                              {"samples_per_second", summary.samples_per_second},
                              {"checkpoint", summary.checkpoint},
                              {"resumed_from_step", json_or_null(summary.resumed_from_step)},
                              {"parameters_sha256", summary.parameters_sha256},
                              {"metrics_address", summary.metrics_address}};
  if (!summary.evaluated_sha256.empty()) json["evaluated_sha256"] = summary.evaluated_sha256;
  if (!summary.error.empty()) json["error"] = summary.error;
  if (summary.time) json["goodput"] = goodput_json(*summary.time);
  if (summary.eval) json["eval"] = json_of(*summary.eval);
  files::write_atomically(path, json_text(json, 2) + "\n");
}

std::string parameters_sha256(const ParamTable& params) {
  std::vector<const Param*> by_name;
  for (const Param& param : params) by_name.push_back(&param);
  // By name, so that the digest does not depend on the model's order of parameters.
  std::sort(by_name.begin(), by_name.end(),
            [](const Param* a, const Param* b) { return a->name < b->name; });
  Sha256 digest;
  for (const Param* param : by_name) digest.add(param->tensor.detach().cpu());
  return digest.hex();
}

}  // namespace lockstep::train
