#pragma once

#include <memory>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>

#include "daemon/config/preset.h"
#include "daemon/config/run_config.h"

namespace lockstep::daemon::flag_lines {

/// Overrides that a command line of flags gives in lockstepd. Throws like its parts.
inline std::vector<Override> parse_flag_line(const std::string& line) {
  CLI::App app{"", "lockstepd"};
  const FlagOptions table(&app);
  app.parse(line);
  return table.overrides();
}

/// The settings of `file` (empty: none) with such flags above them, and `sets` as from --set.
inline RunConfig load_with_flags(const std::string& line, const std::string& file = "",
                                 const std::vector<std::string>& sets = {"model.type=lenet"}) {
  std::vector<Override> overrides;
  for (const std::string& text : sets) overrides.push_back(parse_set(text));
  for (Override& one : parse_flag_line(line)) overrides.push_back(std::move(one));
  Diagnostics faults;
  RunConfig config = load_run_config(file, overrides, &faults);
  faults.throw_if_any("test");
  return config;
}

/// "64 text" of the Error that it throws.
inline std::string fault_with_flags(const std::string& line, const std::string& file = "",
                                    const std::vector<std::string>& sets = {"model.type=lenet"}) {
  try {
    (void)load_with_flags(line, file, sets);
  } catch (const Error& error) {
    return std::to_string(static_cast<int>(error.code())) + " " + error.what();
  }
  return "no fault";
}

}  // namespace lockstep::daemon::flag_lines
