#pragma once

#include <string>

namespace lockstep::daemon {

/// Leaves the series of a run that has ended with a Pushgateway, in the place of those that a run
/// of this name left before: group job="lockstep", run=<name>. Never throws: a failure is logged.
void push_result(const std::string& gateway, const std::string& run, const std::string& series);

}  // namespace lockstep::daemon
