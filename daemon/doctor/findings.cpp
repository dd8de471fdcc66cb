#include "daemon/doctor/findings.h"

#include <algorithm>

#include <fmt/format.h>

#include "base/error.h"

namespace lockstep::daemon {
namespace {

const char* word_of(Finding::Kind kind) {
  return kind == Finding::kOk ? "ok" : kind == Finding::kNote ? "note" : "FAULT";
}

}  // namespace

std::string text_of(const std::vector<Finding>& findings) {
  std::string text;
  for (const Finding& one : findings) {
    text += fmt::format("{:<5}  {:<18}  {}\n", word_of(one.kind), one.what, one.text);
    if (!one.cure.empty()) text += fmt::format("{:27}what to do: {}\n", "", one.cure);
  }
  return text;
}

int exit_code_of(const std::vector<Finding>& findings) {
  // Notes do not change the exit code: runs still work.
  const bool stops = std::any_of(findings.begin(), findings.end(),
                                 [](const Finding& one) { return one.kind == Finding::kFault; });
  return static_cast<int>(stops ? ExitCode::kUnavailable : ExitCode::kDone);
}

}  // namespace lockstep::daemon
