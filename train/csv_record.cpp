// Lines are appended in memory and flushed in blocks. A full disk must not end training, so failed
// writes are kept and tried again.
#include "train/csv_record.h"

#include <algorithm>
#include <system_error>
#include <utility>

#include <fmt/format.h>

#include "base/error.h"
#include "base/log.h"
#include "base/yaml/config_reader.h"

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
  log::warning("train", fmt::format("lines of {} wait in memory, training goes on: {}; "
                                    "make room, or they are lost when the run ends",
                                    name_, reason));
}

}  // namespace lockstep::train
