#include "daemon/launching/above_file.h"

#include <algorithm>

#include "daemon/config/estimator_flags.h"

namespace lockstep::daemon {

std::vector<std::string> lockstepd_arguments(const AboveFile& above) {
  std::vector<std::string> words;
  for (const std::string& set : above.sets) words.insert(words.end(), {"--set", set});
  if (!above.estimator.empty()) words.insert(words.end(), {"--estimator", above.estimator});
  // `--` must come last: all words after it belong to the estimator.
  if (!above.flags.empty()) words.emplace_back("--");
  words.insert(words.end(), above.flags.begin(), above.flags.end());
  return words;
}

bool is_given(const std::vector<std::string>& settings, const std::string& key) {
  return std::any_of(settings.begin(), settings.end(),
                     [&](const std::string& one) { return one.starts_with(key + "="); });
}

AboveFile with_missing(AboveFile above, const std::vector<std::string>& settings,
                       const std::vector<std::string>& sets) {
  std::vector<std::string> missing;
  for (const std::string& one : sets)
    if (!is_given(settings, one.substr(0, one.find('=')))) missing.push_back(one);
  // At the front, so that `above` wins: of several --set of a key, the last one counts.
  above.sets.insert(above.sets.begin(), missing.begin(), missing.end());
  return above;
}

RunConfig load_run_config(const std::string& path, const AboveFile& above,
                          const std::optional<std::string>& text) {
  Diagnostics faults;
  RunConfig config =
      load_run_config(path, overrides_of(above.sets, above.estimator, above.flags), &faults, text);
  faults.throw_if_any("config");
  return config;
}

}  // namespace lockstep::daemon
