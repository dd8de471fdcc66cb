#pragma once

#include <string>
#include <vector>

#include "base/yaml/config_reader.h"
#include "daemon/config/overrides.h"

/// The estimator on the command line: --estimator=LIB, and the estimator's own flags after `--`.
namespace lockstep::daemon {

/// Removes `--` and all words after it from the command line, and returns these words. The words
/// themselves stay valid in argv.
std::vector<std::string> take_flags(int* argc, char** argv);

/// Parses the words of take_flags() into overrides of section `estimator`. Accepted forms: `--width
/// 64`, `--width=64`, and `--deep` alone, which means true. Throws Error(kUsage) for words that are
/// not flags.
std::vector<Override> parse_flags(const std::vector<std::string>& words);

/// Returns all overrides of a command line in the order of application. `sets`: texts of --set.
/// `estimator`: LIB of --estimator=LIB, which sets estimator.path; empty if not given. `flags`:
/// words of take_flags(). Throws Error(kUsage).
std::vector<Override> overrides_of(const std::vector<std::string>& sets,
                                   const std::string& estimator,
                                   const std::vector<std::string>& flags);

/// Returns the values that the program's own code passed to flags::set(). The environment overrides
/// them.
std::vector<Override> overrides_of_program();

/// Throws Error(kUsage), with the nearest names, for a flag that is not a key of section
/// `estimator`.
void require_known_flags(const std::vector<Override>& overrides,
                         const std::vector<FieldDoc>& fields);

}  // namespace lockstep::daemon
