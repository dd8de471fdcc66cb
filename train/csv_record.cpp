#include "train/csv_record.h"

#include <optional>
#include <sstream>

#include <fmt/format.h>

#include "base/error.h"
#include "base/log.h"
#include "base/yaml/config_reader.h"

namespace lockstep::train {
namespace {

constexpr size_t kFlushBytes = 8192;
constexpr size_t kMaxPendingBytes = size_t{4} << 20;

/// Whole lines of earlier steps, with the header.
std::string lines_until(const std::filesystem::path& path, std::string_view header,
                        int64_t last_step) {
  std::string kept = fmt::format("{}\n", header);
  if (last_step == 0 || !std::filesystem::exists(path)) return kept;
  std::istringstream in(files::read(path));
  std::string line;
  while (std::getline(in, line) &&
         !in.eof()) {  // a last line without its line break was cut by a crash
    const std::optional<int64_t> step =
        parse_integer(std::string_view(line).substr(0, line.find(',')));
    if (step && *step <= last_step) kept += line + "\n";
  }
  return kept;
}

/// Cuts the file (makes it if need be) and opens it for what follows.
files::Writer cut_and_open(const std::filesystem::path& path, std::string_view header,
                           int64_t last_step) {
  files::make_folders(path.parent_path());
  files::write_atomically(path, lines_until(path, header, last_step));
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
  if (pending_.size() >= kMaxPendingBytes) return;
  pending_ += lines;
  if (pending_.size() >= flush_at_bytes_) flush();
}

void CsvRecord::flush() {
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
