#pragma once

#include <string>
#include <vector>

namespace lockstep::daemon {

/// Returns the run's settings for people, one line per section in the given order: "optimizer:
/// learning_rate=0.1, type=momentum". `settings`: lines "section.key=value" (flat_settings()). A
/// line longer than a few lines of a terminal is cut and ends with the number of omitted keys.
std::vector<std::string> settings_by_section(const std::vector<std::string>& settings);

/// Returns all settings as Markdown: a block of code.
std::string settings_text(const std::vector<std::string>& settings);

}  // namespace lockstep::daemon
