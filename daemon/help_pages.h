#pragma once

#include <span>
#include <string>
#include <string_view>

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

/// Puts the examples, a line each, under the help of `app`, and under that of each command below it
/// those that begin with its name. A footer that is there already stays, below them.
void add_examples(CLI::App* app, std::span<const std::string_view> examples);

}  // namespace lockstep::daemon
