#pragma once

#include <string>

namespace CLI {
class App;
}

namespace lockstep::daemon {

/// A script for bash that completes sub-commands and options of the program, at every depth; zsh
/// takes it with bashcompinit.
std::string bash_completion(const CLI::App& app);

/// All of the program's help as one manual page (section 1, roff).
std::string man_page(const CLI::App& app);

/// Adds `--completion` and `--man`, which print these and end the program with 0.
void add_help_pages(CLI::App* app);

}  // namespace lockstep::daemon
