#include "daemon/serve/job.h"

#include <algorithm>
#include <array>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "base/error.h"

// Format of the JSON files in a queue. Both directions are in this file, so that they stay equal.
namespace lockstep::daemon {
namespace {

using Json = nlohmann::json;

constexpr int kJobVersion = 1;
constexpr std::array<std::string_view, kNumJobStates> kStateNames{
    "queued", "running", "done", "stopped", "cancelled", "failed", "set_aside"};

/// Formats JSON; bytes that are not UTF-8 are replaced.
std::string dumped(const Json& object) {
  return object.dump(1, ' ', true, Json::error_handler_t::replace) + "\n";
}

/// Parses JSON and passes it to `read`. Every fault is reported with the file's name.
template <typename Read>
auto parsed(const std::string& file, std::string_view text, const Read& read) {
  try {
    const Json object = Json::parse(text);
    // Check the version first: other versions may have other keys.
    if (const int version = object.at("version"); version != kJobVersion)
      throw Error(ExitCode::kBadData, "queue",
                  fmt::format("{}: it is of version {}, this program reads version {}", file,
                              version, kJobVersion));
    return read(object);
  } catch (const Json::exception& fault) {
    throw Error(ExitCode::kBadData, "queue",
                fmt::format("{}: it is cut short or damaged: {}", file, fault.what()));
  }
}

JobState state_named(const std::string& name) {
  const auto* const found = std::find(kStateNames.begin(), kStateNames.end(), name);
  if (found == kStateNames.end())
    throw Error(ExitCode::kBadData, "queue", fmt::format("'{}' is no state of a job", name));
  return static_cast<JobState>(found - kStateNames.begin());
}

}  // namespace

std::string_view job_state_name(JobState state) {
  return kStateNames.at(static_cast<size_t>(state));
}

std::string text_of(const JobSpec& spec) {
  return dumped({{"version", kJobVersion},
                 {"run", spec.run_name},
                 {"project_dir", spec.project_dir},
                 {"file", spec.file},
                 {"folder", spec.folder},
                 {"sets", spec.sets},
                 {"estimator", spec.estimator},
                 {"flags", spec.flags},
                 {"submitted", spec.submitted},
                 {"tries", spec.tries},
                 {"last_save", spec.last_save},
                 {"text", spec.text}});
}

JobSpec parse_job(const std::string& file, std::string_view text) {
  return parsed(file, text, [](const Json& object) {
    return JobSpec{.file = object.at("file"),
                   .text = object.at("text"),
                   .folder = object.at("folder"),
                   .sets = object.at("sets"),
                   .estimator = object.at("estimator"),
                   .flags = object.at("flags"),
                   .run_name = object.at("run"),
                   .project_dir = object.at("project_dir"),
                   .submitted = object.at("submitted"),
                   .tries = object.at("tries"),
                   .last_save = object.at("last_save")};
  });
}

std::string text_of(const JobResult& result, const JobSpec& spec) {
  return dumped({{"version", kJobVersion},
                 {"state", job_state_name(result.state)},
                 {"exit_code", result.exit_code},
                 {"message", result.message},
                 {"tries", result.tries},
                 {"run", spec.run_name},
                 {"project_dir", spec.project_dir},
                 {"submitted", spec.submitted},
                 {"began", result.began},
                 {"ended", result.ended}});
}

JobResult parse_result(const std::string& file, std::string_view text) {
  return parsed(file, text, [](const Json& object) {
    return JobResult{.state = state_named(object.at("state")),
                     .exit_code = object.at("exit_code"),
                     .message = object.at("message"),
                     .tries = object.at("tries"),
                     .began = object.at("began"),
                     .ended = object.at("ended")};
  });
}

}  // namespace lockstep::daemon
