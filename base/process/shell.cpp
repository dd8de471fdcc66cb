#include "base/process/shell.h"

#include <sys/wait.h>
#include <array>
#include <cstdio>
#include <string_view>

namespace lockstep {

std::string shell_quoted(const std::string& word) {
  constexpr std::string_view kPlain =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_@%+=:,./-";
  if (!word.empty() && word.find_first_not_of(kPlain) == std::string::npos) return word;
  // A quote ends the quoted text, adds an escaped quote and starts again.
  std::string quoted = "'";
  for (const char c : word) quoted += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return quoted + "'";
}

ShellResult run_in_shell(const std::string& command) {
  ShellResult result;
  FILE* const pipe = ::popen((command + " </dev/null").c_str(), "re");
  if (pipe == nullptr) return result;
  std::array<char, 4096> part{};
  while (const size_t count = std::fread(part.data(), 1, part.size(), pipe))
    result.text.append(part.data(), count);
  const int status = ::pclose(pipe);
  if (WIFEXITED(status)) result.exit_code = WEXITSTATUS(status);
  return result;
}

}  // namespace lockstep
