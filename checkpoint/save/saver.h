#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <future>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <thread>

#include "base/error.h"
#include "base/tensors/device_backend.h"
#include "base/tensors/state_list.h"
#include "checkpoint/save/staging_buffer.h"
#include "dist/communicator.h"

namespace lockstep::checkpoint {

class SaveLock;
class Snapshot;

/// Phases of a save, in order. Tests stop a save after each of them.
enum class SavePhase {
  kStaged,         ///< this rank's shard is in memory; ranks may still compare the state
  kShardWritten,   ///< this rank's shard is on disk under its temporary name
  kEntriesAgreed,  ///< all ranks know that every shard is on disk
  kIndexWritten,   ///< rank 0: the index is on disk under its temporary name
  kOldRemoved,     ///< rank 0: an older checkpoint of this number is gone
  kShardRenamed,   ///< this rank's shard has its final name
  kCommitted,      ///< rank 0: the index has its final name
  kReadBack,       ///< this rank's shard was read back, if surplus checkpoints will be removed
  kStateWritten,   ///< rank 0: the state file names the checkpoint
  kDone,           ///< rank 0: surplus checkpoints are gone
};

/// Hook that is called after each phase on the rank it concerns, by the saver's thread. An Error
/// that it throws counts as this rank's fault in that phase. May be empty.
using SavePhaseHook = std::function<void(SavePhase)>;

struct SaverOptions {
  std::string prefix = {};          ///< DIR/model.ckpt; the folder is created if it is missing
  int64_t keep_checkpoint_max = 5;  ///< -1 keeps all
  int64_t keep_every = 0;           ///< multiples of this number stay too; 0: none
  bool sparse = false;              ///< store only the kept elements of tensors with a mask
  /// Compares the state of all ranks, bit for bit, before the commit.
  bool compare_replicas = false;
  /// Longest wait in seconds for another program that saves under the prefix. Keep it below the
  /// communicator's timeout, in which the other ranks wait meanwhile.
  double lock_patience_s = 120;
  /// Longest wait in seconds for another rank until the state is staged, since training waits too.
  /// While ranks wait for rank 0 to take the lock, the lock's patience is added. After staging the
  /// communicator's own timeout applies. A shorter timeout of the communicator always applies.
  double stage_timeout_s = 300;
  /// Folder of each host for copies of a store's newest checkpoint (checkpoint/save/host_copy.h);
  /// empty: none.
  std::string copies_folder = {};
  int64_t min_cut_bytes = int64_t{1} << 20;  ///< smaller tensors are never cut into slices
  SavePhaseHook at_phase = {};
};

/// Result of a save, the same on every rank except for the seconds.
struct SaveResult {
  bool ok = false;
  int64_t number = 0;
  std::string prefix;               ///< of the checkpoint, with its number
  int64_t bytes_written = 0;        ///< sum over all files and ranks
  int64_t bytes_dense = 0;          ///< size of the tensors with every element stored
  double seconds = 0;               ///< from begin() to the commit
  double compare_s = 0;             ///< duration of the comparison of the ranks, if enabled
  double blocked_s = 0;             ///< the caller's time in begin() and in the waiting calls
  std::string error;                ///< why it failed; empty if ok
  ExitCode code = ExitCode::kDone;  ///< of that fault
};

/// Writes sharded checkpoints in its own thread and commits each as a unit
/// (docs/design/checkpoint_format.md, Order of a save).
///
///   saver.begin(state, step);  forward();  backward();
///   saver.wait_until_staged();  optimizer.step();
///   ... later: if (saver.is_done()) result = saver.wait();
///
/// A saver removes only its own checkpoints as surplus. These are the ones that it wrote, and those
/// that the state file named at its first save. Those that a killed save's journal names
/// (checkpoint/save/checkpoint_folder.h) count too. Others of the same prefix stay and do not
/// count.
///
/// Every rank passes the same keys, types and shapes. Values are replicated, except where an entry
/// says what this rank holds. Each rank writes its part; rank 0 writes the index. Tensors and texts
/// may change once begin() has returned, except `steady` ones. Those must not change until
/// wait_until_staged() has returned. If others are more than 16 MiB, begin() waits for that itself.
/// One caller at a time.
///
/// With a stager the entire state is copied to the host; tensors on its device use a separate
/// stream. The save then works on these copies. So only wait() and join() wait for the device.
/// wait_until_staged() returns at once, and later kernels of the calling thread's stream wait
/// instead. Without enough pinned memory, saves work as without a stager.
class Saver {
 public:
  /// `comm` must outlive the saver. Between begin() and wait() only the saver may use it.
  Saver(SaverOptions options, dist::Communicator& comm);
  /// Waits for the save in progress; set_while_waiting() has no effect here.
  ~Saver();
  Saver(const Saver&) = delete;
  Saver& operator=(const Saver&) = delete;

  /// Replaces the hook of the options. Only while no save is in progress.
  void set_at_phase(SavePhaseHook hook) { options_.at_phase = std::move(hook); }

  /// Sets the stager for state on its device; null: none. Call it before prepare(), while no save
  /// is in progress.
  void set_stager(std::shared_ptr<DeviceStager> stager) { stager_ = std::move(stager); }

  /// Changes keep_checkpoint_max for saves that begin from now on; must be equal on all ranks.
  void keep_from_next_save(int64_t keep_checkpoint_max);

  /// Allocates the memory that saves of such a state need, in the background. So the first save
  /// does not wait longer than later ones. Optional; call it before the first begin().
  void prepare(const StateList& state);

  /// Sets a hook for a save that ends with an error of this rank alone (a lost peer). The saver's
  /// thread calls it. It runs before wait() throws, since wait() may be called much later. Set it
  /// while no save is in progress.
  void set_on_lost(std::function<void(const Error&)> hook) { on_lost_ = std::move(hook); }

  /// Sets a hook that is called several times a second during begin(), wait(), is_done_within(),
  /// wait_until_staged() and join(). These may take as long as a disk hangs. The hook may throw or
  /// end the process. The save stays in progress.
  void set_while_waiting(std::function<void()> look) { while_waiting_ = std::move(look); }

  /// Begins a save. At most one is in progress, so wait() must precede the next. Collective.
  void begin(const StateList& state, int64_t step);
  bool is_under_way() const { return result_.valid(); }
  /// Returns the number of the save that began last.
  int64_t number() const { return number_; }
  /// Returns once the state may change, at once if no save is in progress. With a stager, work that
  /// the calling thread enqueues afterwards may change the state on the device.
  void wait_until_staged();
  /// True if wait() would return at once.
  bool is_done() const;
  /// Waits at most `longest` for is_done() and returns it.
  bool is_done_within(std::chrono::milliseconds longest);

  /// Waits for the save in progress and returns its result. With `ok` it is durable and committed.
  ///
  /// A disk fault on any rank (no space, I/O, no permission) gives a warning, and ok = false
  /// everywhere. The files of this save are then removed, earlier checkpoints are untouched, and
  /// training may continue. An older checkpoint of the same number is removed only after all bytes
  /// of the new one are on disk.
  ///
  /// Other faults throw the same Error on every rank. It is kDisagree if the ranks' states differ,
  /// kConfig for a tensor that cannot be stored. Throws kUnavailable if a peer is lost; after the
  /// index was renamed the checkpoint is committed all the same.
  SaveResult wait();

  /// Returns once no save is in progress and nothing is being written. wait() still returns the
  /// result.
  void join();

  /// Calls begin() and wait(), without copying the state first.
  SaveResult save(const StateList& state, int64_t step);
  /// Saves under the next free number. It is above `above` and above every checkpoint of the prefix
  /// in the folder. That includes one that another program has just made.
  SaveResult save_as_next(const StateList& state, int64_t above);

 private:
  int64_t bytes_to_stage(const StateList& state) const;
  void stage(Snapshot* snapshot);
  /// Number of a save, or the lower limit of the number to choose.
  struct Number {
    int64_t value = 0;
    bool is_next = false;
  };
  SaveResult save_now(const StateList& state, Number number);
  void start(std::shared_ptr<Snapshot> snapshot, Number number);
  SaveResult run(const StateList& state, Number number, const std::function<void()>& staged);
  std::optional<Error> take_lock(Number* number, std::unique_ptr<SaveLock>* lock);
  void find_own_saves();
  SaveResult failed(const Error& fault, int64_t number) const;

  SaverOptions options_;
  std::optional<int64_t> keep_next_;  ///< applies from the next save on
  std::function<void(const Error&)> on_lost_;
  std::function<void()> while_waiting_;
  dist::Communicator& comm_;
  StagingBuffer memory_;
  std::shared_ptr<DeviceStager> stager_;
  std::shared_ptr<StagedCopy> copy_;            ///< of the save in progress; null without a stager
  std::optional<std::set<int64_t>> own_saves_;  // rank 0; nullopt: not determined yet
  int64_t number_ = -1;
  std::chrono::steady_clock::time_point began_;
  double blocked_s_ = 0;
  std::future<void> prepared_;
  std::future<void> staged_;
  std::future<SaveResult> result_;
  std::jthread thread_;  // last: uses the members above
};

}  // namespace lockstep::checkpoint
