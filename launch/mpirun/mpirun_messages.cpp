#include "launch/mpirun/mpirun_messages.h"

#include <array>

namespace lockstep::launch {
namespace {

constexpr size_t kMaxLineBytes = 4096;  ///< the rest of a longer line is ignored

/// Returns the word after `mark`, up to a blank, a colon or a dot at the end. Empty without the
/// mark.
std::string word_behind(std::string_view line, std::string_view mark) {
  const size_t place = line.find(mark);
  if (place == std::string_view::npos) return "";
  const std::string_view rest = line.substr(place + mark.size());
  std::string word(rest.substr(0, rest.find_first_of(" :\t\r")));
  if (word.ends_with('.')) word.pop_back();
  return word;
}

}  // namespace

void MpirunMessages::read(std::string_view bytes) {
  for (const char c : bytes) {
    if (c == '\n') {
      read_line(line_);
      line_.clear();
    } else if (line_.size() < kMaxLineBytes) {
      line_ += c;
    }
  }
}

void MpirunMessages::read_line(std::string_view line) {
  const auto note = [](std::set<std::string>* hosts, const std::string& host) {
    if (!host.empty()) hosts->insert(host);
  };
  // Message of mpirun: "mpirun noticed that process rank 1 with PID 12 on node n2 exited on signal
  // 9 (Killed)."
  if (line.starts_with("mpirun noticed that process rank ") &&
      line.find("exited on signal") != std::string_view::npos)
    note(&killed_on_, word_behind(line, " on node "));
  // Message of mpirun: "  Remote daemon: [[64028,0],1] on node n2". Output of ranks does not begin
  // like this.
  if (line.starts_with("  Remote daemon: [[")) note(&lost_, word_behind(line, " on node "));
  constexpr std::array<std::string_view, 2> kOfSsh{"ssh: connect to host ",
                                                   "ssh: Could not resolve hostname "};
  for (const std::string_view mark : kOfSsh)
    if (line.starts_with(mark)) note(&lost_, word_behind(line, mark));
}

}  // namespace lockstep::launch
