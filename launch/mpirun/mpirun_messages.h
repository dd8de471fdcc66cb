#pragma once

#include <set>
#include <string>
#include <string_view>

namespace lockstep::launch {

/// Parser of messages about failing hosts, which mpirun (Open MPI 4.1) and ssh write to stderr.
class MpirunMessages {
 public:
  /// Reads the next bytes of mpirun's stderr. Lines may arrive in pieces.
  void read(std::string_view bytes);

  /// Returns the hosts on which a signal ended a rank.
  const std::set<std::string>& killed_on() const { return killed_on_; }
  /// Returns the hosts that are unreachable, or were lost while ranks ran there.
  const std::set<std::string>& lost() const { return lost_; }

 private:
  void read_line(std::string_view line);

  std::string line_;  ///< the incomplete last line
  std::set<std::string> killed_on_, lost_;
};

}  // namespace lockstep::launch
