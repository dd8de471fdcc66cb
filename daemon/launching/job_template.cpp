#include "daemon/launching/job_template.h"

#include <algorithm>

#include <fmt/format.h>

#include "base/error.h"
#include "base/files/files.h"
#include "base/process/shell.h"

namespace lockstep::daemon {

std::string filled(std::string_view job_template, const TemplateValues& values) {
  // Every text must occur: a changed template would otherwise silently keep its own value.
  for (const auto& [text, value] : values)
    if (job_template.find(text) == std::string_view::npos)
      throw Error(ExitCode::kBug, "launch", fmt::format("the template has no '{}'", text));
  std::string job;
  // One pass from left to right, so that a replacement is never replaced itself.
  while (!job_template.empty()) {
    const auto found = std::find_if(values.begin(), values.end(), [&](const auto& pair) {
      return job_template.starts_with(pair.first);
    });
    job += found == values.end() ? std::string(1, job_template.front()) : found->second;
    job_template.remove_prefix(found == values.end() ? 1 : found->first.size());
  }
  return job;
}

CommandResult job_result(const std::string& job, const std::string& out_file,
                         const std::string& start) {
  if (out_file.empty()) return {job, 0};
  files::write_atomically(out_file, job);
  return {
      fmt::format("{} written; start it with: {} {}\n", out_file, start, shell_quoted(out_file)),
      0};
}

}  // namespace lockstep::daemon
