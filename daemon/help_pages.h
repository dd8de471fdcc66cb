#pragma once

#include <span>
#include <string>
#include <string_view>

namespace CLI {
class App;
}

namespace lockstep::daemon {

/// Returns a bash script that completes sub-commands and options of the program at every depth. zsh
/// can use it with bashcompinit.
std::string bash_completion(const CLI::App& app);

/// Returns all help of the program as one manual page (section 1, roff).
std::string man_page(const CLI::App& app);

/// Adds the options `--completion` and `--man`. Each prints its text and ends the program with 0.
void add_help_pages(CLI::App* app);

/// Adds the examples, one per line, to the help of `app`. Each sub-command gets the examples that
/// begin with its name. An existing footer stays below them.
void add_examples(CLI::App* app, std::span<const std::string_view> examples);

}  // namespace lockstep::daemon
