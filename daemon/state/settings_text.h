#pragma once

#include <string>
#include <vector>

namespace lockstep::daemon {

/// What a run was told, for people: of lines "section.key=value" (flat_settings()) one line for
/// each section, "optimizer: learning_rate=0.1, type=momentum", in the order given. What is longer
/// than a few lines of a terminal is cut and says how many keys more there are.
std::vector<std::string> settings_by_section(const std::vector<std::string>& settings);

/// The same settings whole, as Markdown: a block of code.
std::string settings_text(const std::vector<std::string>& settings);

}  // namespace lockstep::daemon
