#pragma once

#include <string>
#include <vector>

#include "base/yaml/config_reader.h"
#include "daemon/config/overrides.h"

/// The estimator on the command line: --estimator=LIB, and its own flags behind `--`.
namespace lockstep::daemon {

/// Takes `--` and what stands behind it off a command line; argv keeps its words.
std::vector<std::string> take_flags(int* argc, char** argv);

/// Overrides of section `estimator` from those words: `--width 64`, `--width=64`, and `--deep`
/// alone, which means true. Throws Error(kUsage) for words that are no flags.
std::vector<Override> parse_flags(const std::vector<std::string>& words);

/// Everything of a command line that stands above the run file, in this order: `sets`, the texts
/// of --set; --estimator=LIB, which sets estimator.path (empty: not given); the words of
/// take_flags(). Throws Error(kUsage).
std::vector<Override> overrides_of(const std::vector<std::string>& sets,
                                   const std::string& estimator,
                                   const std::vector<std::string>& flags);

/// What the program's own code gave with flags::set(), as flags that stand below the environment.
std::vector<Override> overrides_of_program();

/// Throws Error(kUsage), with the nearest names, for a flag that is no key of section `estimator`.
void require_known_flags(const std::vector<Override>& overrides,
                         const std::vector<FieldDoc>& fields);

}  // namespace lockstep::daemon
