// The text of all faults ends up in one Error, so that a user sees them together.
#include "base/diagnostics.h"

#include <utility>

#include <fmt/format.h>

#include "base/error.h"

namespace lockstep {

void Diagnostics::add(Fault fault) {
  if (full()) return;
  if (fault.message.size() > kMaxMessageBytes) {
    fault.message.resize(kMaxMessageBytes);
    fault.message += "...";
  }
  list_.push_back(std::move(fault));
}

std::string Diagnostics::text() const {
  std::string out;
  for (const Fault& fault : list_) {
    out += fault.file;
    if (fault.line > 0) out += fmt::format(":{}:{}", fault.line, fault.column);
    out += ": error: " + fault.message + "\n";
    if (!fault.source_line.empty())
      out += fmt::format("  {}\n  {:>{}}\n", fault.source_line, "^", fault.column);
  }
  return out + fmt::format("{}{} error{}; nothing was started", full() ? "at least " : "",
                           list_.size(), list_.size() == 1 ? "" : "s");
}

void Diagnostics::throw_if_any(std::string_view area) const {
  if (!empty()) throw Error(ExitCode::kConfig, area, "the configuration has faults\n" + text());
}

}  // namespace lockstep
