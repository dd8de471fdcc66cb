#pragma once

#include <span>
#include <string>
#include <string_view>

/// Common parts of the programs: version, result of a command, help pages.
namespace lockstep::daemon {

/// Facts about this binary. They must be equal on all ranks of a run, which is checked at the
/// start.
struct VersionFacts {
  std::string version;  ///< 0.1.0
  std::string
      commit;  ///< short git commit, "+changes" if the tree was not clean, "unknown" outside git
  std::string torch;
  std::string compiler;
  std::string build_type;
  std::string build_id;  ///< the linker's digest of this program; empty: not available
};

VersionFacts version_facts();
/// Versions of libraries that only some programs open; empty: not used.
struct OpenedLibraries {
  std::string mpi = {}, nccl = {}, python = {};
};
/// Returns the lines for --version.
std::string version_text(const std::string& program, const OpenedLibraries& libraries);

/// Result of a command of the tool: its text for stdout and the exit code of the process.
struct CommandResult {
  std::string text;
  int exit_code = 0;
};

}  // namespace lockstep::daemon

namespace CLI {
class App;
}

namespace lockstep::daemon {

/// Adds the options `--completion` and `--man`. Each prints its text and ends the program with 0.
/// The first prints a bash script that completes sub-commands and options at every depth; zsh can
/// use it with bashcompinit. The second prints all help as one manual page (section 1, roff).
void add_help_pages(CLI::App* app);

/// Adds the examples, one per line, to the help of `app`. Each sub-command gets the examples that
/// begin with its name. An existing footer stays below them.
void add_examples(CLI::App* app, std::span<const std::string_view> examples);

}  // namespace lockstep::daemon
