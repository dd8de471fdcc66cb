#include "daemon/trace_command.h"

#include <algorithm>
#include <filesystem>
#include <string_view>

#include <fmt/format.h>

#include "base/error.h"
#include "base/files/files.h"
#include "base/yaml/config_reader.h"
#include "train/hooks/timeline.h"

namespace lockstep::daemon {
namespace {

namespace fs = std::filesystem;

/// By name.
/// timeline-<step>.json, and no file of joined ones.
bool is_timeline(const std::string& name) {
  constexpr std::string_view kBegin = "timeline-", kEnd = ".json";
  return name.size() > kBegin.size() + kEnd.size() && name.starts_with(kBegin) &&
         name.ends_with(kEnd) &&
         parse_integer(name.substr(kBegin.size(), name.size() - kBegin.size() - kEnd.size()));
}

std::vector<fs::path> timelines_in(const fs::path& folder) {
  std::vector<fs::path> paths;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder)) {
    const std::string name = entry.path().filename().string();
    if (is_timeline(name)) paths.push_back(entry.path());
  }
  if (paths.empty())
    throw Error(ExitCode::kInputMissing, "trace",
                fmt::format("{}: no timeline-<step>.json is there; trainer.run_config."
                            "profile_hook_config of a run file leaves them",
                            folder.string()));
  std::sort(paths.begin(), paths.end());
  return paths;
}

}  // namespace

CommandResult trace_merge_command(const TraceMergeOptions& options) {
  std::vector<fs::path> paths;
  for (const std::string& source : options.sources) {
    if (!fs::is_directory(source)) {
      paths.emplace_back(source);
      continue;
    }
    const std::vector<fs::path> of_run = timelines_in(source);
    paths.insert(paths.end(), of_run.begin(), of_run.end());
  }
  std::vector<train::TimelineFile> timelines;
  for (const fs::path& path : paths) timelines.push_back({path.string(), files::read(path)});
  files::write_atomically(options.out_file, train::joined_timelines(timelines));
  return {fmt::format("{}: {} timelines; https://ui.perfetto.dev opens it\n", options.out_file,
                      timelines.size()),
          0};
}

}  // namespace lockstep::daemon
