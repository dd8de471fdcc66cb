#include "daemon/control/failure.h"

#include <array>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "base/files/files.h"
#include "base/log.h"
#include "base/text.h"

// The files connect ranks that can no longer communicate: a rank that lost a peer finds the peer's
// error here, if both see the same folder.
namespace lockstep::daemon {
namespace {

constexpr std::string_view kBegin = "lockstep-error-", kEnd = ".json";
constexpr int64_t kMaxFileBytes = 1 << 20;
constexpr size_t kBoxWidth = 100;  ///< text width inside the box

/// Advice to a person about an exit code.
using Advice = std::pair<ExitCode, const char*>;
constexpr std::array kAdvice{
    Advice{ExitCode::kBadData, "check the data or the checkpoints named in the message"},
    Advice{ExitCode::kInputMissing, "correct the path, or mount the folder"},
    Advice{ExitCode::kUnavailable,
           "run the same command again; if it happens again, check the hosts"},
    Advice{ExitCode::kBug, "report the message, which names file and line"},
    Advice{ExitCode::kCannotCreate, "correct permissions, or run.project_dir"},
    Advice{ExitCode::kIo,
           "free space, or repair the disk or store of the message, then run the same command "
           "again"},
    Advice{ExitCode::kDisagree,
           "check memory, file versions and libraries of the hosts named, or whether your own "
           "network writes parameters in forward"},
    Advice{ExitCode::kConfig, "fix the error in the message"},
    Advice{ExitCode::kWatchdog,
           "run the same command again; if it happens again, check the rank and host named"},
    Advice{ExitCode::kNonFinite, "another learning rate, or other data"}};

std::string advice_of(int exit_code) {
  for (const auto& [code, text] : kAdvice)
    if (static_cast<int>(code) == exit_code) return text;
  return "see docs/exit_codes.md";
}

/// True for codes that are often the consequence of another rank's error.
bool is_a_consequence(int exit_code) {
  return exit_code == static_cast<int>(ExitCode::kUnavailable) ||
         exit_code == static_cast<int>(ExitCode::kWatchdog);
}

bool is_failure_file(const std::string& name) {
  return name.starts_with(kBegin) && name.ends_with(kEnd);
}

/// Reads a failure file; nullopt if it is incomplete.
std::optional<Failure> read_failure(const std::filesystem::path& path) {
  try {
    const auto json = nlohmann::json::parse(files::read(path, kMaxFileBytes));
    return Failure{.rank = json.at("rank"),
                   .node = json.at("host"),
                   .pid = json.at("pid"),
                   .step = json.at("step"),
                   .exit_code = json.at("exit_code"),
                   .message = json.at("message"),
                   .unix_time_s = json.at("time")};
  } catch (const std::exception&) {
    return std::nullopt;  // incomplete: its rank was killed while writing
  }
}

/// Breaks a text into lines of at most kBoxWidth characters, at blanks if possible.
std::vector<std::string> wrapped(const std::string& text) {
  std::vector<std::string> lines;
  for (std::string rest : split(text)) {
    while (rest.size() > kBoxWidth) {
      size_t blank = rest.rfind(' ', kBoxWidth);
      if (blank == std::string::npos || blank == 0) blank = kBoxWidth;
      lines.push_back(rest.substr(0, blank));
      rest = rest.substr(rest[blank] == ' ' ? blank + 1 : blank);
    }
    lines.push_back(rest);
  }
  return lines;
}

}  // namespace

void write_failure(const std::filesystem::path& logs, const Failure& failure) {
  const nlohmann::json json{
      {"rank", failure.rank},       {"host", failure.node},           {"pid", failure.pid},
      {"step", failure.step},       {"exit_code", failure.exit_code}, {"message", failure.message},
      {"time", failure.unix_time_s}};
  try {
    files::make_folders(logs);  // a rank may hang before the run's folder is created
    files::write_atomically(
        logs / fmt::format("{}{}{}", kBegin, failure.rank, kEnd),
        json.dump(1, ' ', true, nlohmann::json::error_handler_t::replace) + "\n");
  } catch (const Error& fault) {
    log::warning("lockstepd", fmt::format("the failure cannot be recorded: {}", fault.what()));
  }
}

void remove_failures(const std::filesystem::path& logs) {
  for (const std::string& name : files::list(logs))
    if (is_failure_file(name)) files::remove_file(logs / name);
}

std::optional<Failure> cause_of(const std::filesystem::path& logs, const Failure& own) {
  if (!is_a_consequence(own.exit_code)) return std::nullopt;
  // Own errors come before consequences, then earlier ones before later ones.
  const auto is_before = [](const Failure& a, const Failure& b) {
    const bool a_follows = is_a_consequence(a.exit_code), b_follows = is_a_consequence(b.exit_code);
    return a_follows != b_follows ? b_follows : a.unix_time_s < b.unix_time_s;
  };
  std::optional<Failure> first;
  for (const std::string& name : files::list(logs)) {
    if (!is_failure_file(name)) continue;
    const std::optional<Failure> other = read_failure(logs / name);
    if (!other || other->rank == own.rank || !is_before(*other, own)) continue;
    if (!first || is_before(*other, *first)) first = other;
  }
  return first;
}

std::string boxed(const Failure& failure) {
  std::vector<std::string> lines{
      fmt::format("the run has failed with exit code {}: rank {} on {} (process {}), after step {}",
                  failure.exit_code, failure.rank, failure.node, failure.pid, failure.step)};
  for (const std::string& line : wrapped(failure.message)) lines.push_back(line);
  lines.push_back("what to do: " + advice_of(failure.exit_code));
  const std::string edge = "+" + std::string(kBoxWidth + 2, '-') + "+\n";
  std::string box = edge;
  for (const std::string& line : lines) box += fmt::format("| {:<{}} |\n", line, kBoxWidth);
  return box + edge;
}

}  // namespace lockstep::daemon
