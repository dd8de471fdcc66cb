#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "checkpoint/save/shard_writer.h"
#include "dist/communicator.h"

/// Copies of an object store's newest checkpoint on the hosts that saved it. Each host has the
/// shards of its ranks and the index. So all hosts together can restore it, at any world size. A
/// copy is complete before the store has the checkpoint. So a store that is slow or refuses it
/// costs no steps while the hosts live.
namespace lockstep::checkpoint {

/// Copy of one save on one rank. The order of calls is that of the functions, each once all ranks
/// have returned from the one before. Throws kIo and kCannotCreate, as base/files/files.h.
class HostCopy {
 public:
  /// Creates the folder and starts to write the shard. `prefix` is DIR/model.ckpt-1200 on this
  /// host. Call it before the image is filled; the image must outlive this.
  HostCopy(std::string prefix, int rank, int num_ranks, StagedShard* staged);
  /// Removes what this object has written, unless publish_index() was called.
  ~HostCopy();
  HostCopy(const HostCopy&) = delete;
  HostCopy& operator=(const HostCopy&) = delete;

  /// Waits until the shard is on disk under its temporary name. Throws kIo also if less space than
  /// it takes is left then.
  void finish();
  /// True if this host has the same copy already, from a run before.
  bool is_there(const std::string& index) const;
  /// Removes an older copy of this number.
  void remove_older() const;
  /// Gives the shard its name.
  void publish_shard();
  /// Writes the index. Ranks of one host write the same one.
  void publish_index(const std::string& index);
  /// Removes the copies of other numbers.
  void remove_others() const;

 private:
  const std::string prefix_, shard_;
  const int64_t num_bytes_;
  std::optional<ShardWriter> writer_;
  bool is_renamed_ = false, is_published_ = false;
};

/// Notes that the store has this checkpoint too, DIR/model.ckpt-1200 on this host. Does nothing if
/// the host has no copy, or on a fault of the disk.
void mark_stored(const std::string& prefix);

/// Save of which the hosts together have every file.
struct HostCopies {
  int64_t number = 0;
  std::string index_sha256;
  bool is_stored = false;          ///< the store had it too: if it has not, somebody has removed it
  std::vector<std::string> names;  ///< of the files, the index last
  std::vector<int64_t> sizes;      ///< of the files
  std::vector<std::set<std::string>> of_ranks_N;  ///< files that rank r has with this index
  std::vector<int> first_of_hosts_N;  ///< lowest rank that has the same folder as rank r
};

/// Returns such saves in numeric order, the same on all ranks. `prefix` is DIR/model.ckpt, a folder
/// of each host. Collective.
std::vector<HostCopies> find_host_copies(const std::string& prefix, dist::Communicator& comm);

/// Sends every host the files that it lacks, so that each rank can restore the save from its own
/// folder. Nothing is sent if a host has no space for them. Returns the first fault of any rank,
/// the same on all ranks. Collective.
std::optional<Error> complete_on_each_host(const std::string& prefix, const HostCopies& copies,
                                           dist::Communicator& comm);

}  // namespace lockstep::checkpoint
