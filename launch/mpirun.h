#pragma once

#include <functional>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

/// Hosts, command line and error messages of mpirun.
namespace lockstep::launch {

/// Machine that ranks may run on, with the name by which the launcher reaches it.
struct Host {
  std::string name;
  int slots = 1;  ///< ranks that it can run
};

/// Parses "n1:4,n2:4" (one slot if no number is given), or "@FILE" with lines `n1 slots=4`, in
/// which # begins a comment. Throws Error(kUsage) for another text and for a duplicate host. Throws
/// what files::read() throws.
std::vector<Host> parse_hosts(const std::string& text);

/// Returns the sum of the hosts' slots.
int num_slots(const std::vector<Host>& hosts);

/// Formats the hosts for mpirun: "n1:4,n2:4".
std::string host_list(const std::vector<Host>& hosts);

/// Returns the addresses of a host name as text; none for an unknown name. Any address of this
/// host's interfaces becomes "this host".
std::vector<std::string> addresses_of(const std::string& name);

/// Throws Error(kUsage) if two names lead to one host, such as an alias and an address. mpirun
/// would count that host twice, and losing it would look like losing two. `addresses` is called
/// once per name.
void require_different_hosts(
    const std::vector<Host>& hosts,
    const std::function<std::vector<std::string>(const std::string&)>& addresses = addresses_of);

struct MpirunOptions {
  int num_ranks = 1;
  std::vector<Host> hosts;            ///< none: this host alone
  std::vector<std::string> program;   ///< with its arguments, the same for each rank
  std::vector<std::string> exported;  ///< names of variables that other hosts need
  std::vector<std::string> more;      ///< arguments for mpirun itself, after ours
  bool is_root = false;
  /// Further processes, which take the places of lost ranks (lockstepd --spares). With hosts, the
  /// first is on the last host, the second on the one before, and so on.
  int num_spares = 0;
};

/// Returns the command line that starts these ranks with Open MPI 4.1. launch/README.md explains
/// each argument.
std::vector<std::string> mpirun_command(const MpirunOptions& options);

/// Parser of messages about failing hosts, which mpirun (Open MPI 4.1) and ssh write to stderr, and
/// of the exit code that ranks tell there.
class MpirunMessages {
 public:
  /// Reads the next bytes of mpirun's stderr. Lines may arrive in pieces.
  void read(std::string_view bytes);

  /// Returns the hosts on which a signal ended a rank.
  const std::set<std::string>& killed_on() const { return killed_on_; }
  /// Returns the hosts that are unreachable, or were lost while ranks ran there.
  const std::set<std::string>& lost() const { return lost_; }
  /// Returns the first exit code that a rank has told (kExitCodeLine).
  std::optional<int> exit_code() const { return exit_code_; }

 private:
  void read_line(std::string_view line);

  std::string line_;  ///< the incomplete last line
  std::set<std::string> killed_on_, lost_;
  std::optional<int> exit_code_;
};

}  // namespace lockstep::launch
