#pragma once

#include <set>
#include <string>
#include <string_view>

namespace lockstep::launch {

/// What mpirun (Open MPI 4.1) and ssh tell of hosts that fail, read from their lines as they come.
class MpirunMessages {
 public:
  /// The next bytes of what mpirun writes to stderr; lines may come in pieces.
  void read(std::string_view bytes);

  /// Hosts on which a rank was ended by a signal.
  const std::set<std::string>& killed_on() const { return killed_on_; }
  /// Hosts that could not be reached, or that were lost while ranks ran there.
  const std::set<std::string>& lost() const { return lost_; }

 private:
  void read_line(std::string_view line);

  std::string line_;  ///< the begun one
  std::set<std::string> killed_on_, lost_;
};

}  // namespace lockstep::launch
