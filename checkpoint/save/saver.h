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

#include "base/device/device_stager.h"
#include "base/error.h"
#include "base/tensors/staging_buffer.h"
#include "base/tensors/state_list.h"
#include "dist/communicator.h"

namespace lockstep::checkpoint {

class SaveLock;
class Snapshot;

/// Points of a save, in order. Tests stop a save after each of them.
enum class SavePhase {
  kStaged,         ///< this rank's shard is in memory; the state may change
  kShardWritten,   ///< this rank's shard is on disk under its temporary name
  kEntriesAgreed,  ///< every rank knows that all of them are
  kIndexWritten,   ///< rank 0: the index is on disk under its temporary name
  kOldRemoved,     ///< rank 0: an older save of this number is gone
  kShardRenamed,   ///< this rank's shard has its final name
  kCommitted,      ///< rank 0: the index has its final name
  kReadBack,       ///< this rank's shard was read back, where surplus saves are to go
  kStateWritten,   ///< rank 0: the state file names the save
  kDone,           ///< rank 0: surplus saves are gone
};

/// Called after each phase on the rank it concerns, by the saver's thread; an Error that it throws
/// counts as this rank's fault in that phase. May be empty.
using SavePhaseHook = std::function<void(SavePhase)>;

struct SaverOptions {
  std::string prefix = {};          ///< DIR/model.ckpt; the folder is made if it is not there
  int64_t keep_checkpoint_max = 5;  ///< -1 keeps all
  int64_t keep_every = 0;           ///< saves whose number is a multiple of it stay too; 0: none
  bool sparse = false;              ///< of tensors with a mask, store kept elements only
  /// Compare the state of all ranks, bit for bit, before a save is committed.
  bool compare_replicas = false;
  /// Longest wait for another program that saves under the prefix: below the time limit of the
  /// communicator, in which the other ranks wait meanwhile.
  double lock_patience_s = 120;
  /// Longest wait for another rank until the state is staged, as training waits meanwhile; the
  /// lock's patience is added where ranks wait for the one that takes it. Then the communicator's
  /// own time limit holds, unless that is shorter anyway.
  double stage_timeout_s = 300;
  int64_t min_cut_bytes = int64_t{1} << 20;  ///< smaller tensors are never cut into slices
  SavePhaseHook at_phase = {};
};

/// The same on every rank, except seconds.
struct SaveResult {
  bool ok = false;
  int64_t number = 0;
  std::string prefix;               ///< of the save, with its number
  int64_t bytes_written = 0;        ///< all files, all ranks
  int64_t bytes_dense = 0;          ///< what the tensors take with every element
  double seconds = 0;               ///< from begin() to the commit
  double compare_s = 0;             ///< the comparison of the ranks, where asked for
  double blocked_s = 0;             ///< the caller's time in begin() and in the calls that wait
  std::string error;                ///< why it failed; empty if ok
  ExitCode code = ExitCode::kDone;  ///< of that fault
};

/// Writes sharded saves and commits them as a set (docs/checkpoint_format.md, Order of a save), in
/// a thread of its own.
///
///   saver.begin(state, step);  forward();  backward();
///   saver.wait_until_staged();  optimizer.step();
///   ... later: if (saver.is_done()) result = saver.wait();
///
/// Of the folder's saves a saver removes, as surplus, only its own: those that it wrote, those that
/// the state file named when its first save began, and those that a killed save's journal names
/// (checkpoint/files/save_lock.h). Others of the same prefix stay and do not count.
///
/// Every rank passes the same keys, types and shapes; the values are those that every rank holds,
/// except where an entry says what it holds. Each rank writes its part, rank 0 the index. Tensors
/// and texts are copied before begin() returns, unless they are `steady`: those must not change
/// until wait_until_staged() has returned. One caller at a time.
///
/// With a stager the whole state is copied to the host, the tensors of its device on a stream of
/// their own, and the save goes on from these copies. Then no call but wait() and join() waits for
/// the device, and wait_until_staged() returns at once: later kernels of the calling thread's
/// stream wait instead. Where there is no pinned memory for it, saves are as without.
class Saver {
 public:
  /// `comm` must outlive the saver; between begin() and wait() it is the saver's alone.
  Saver(SaverOptions options, dist::Communicator& comm);
  /// Waits for the save under way, whatever set_while_waiting() says.
  ~Saver();
  Saver(const Saver&) = delete;
  Saver& operator=(const Saver&) = delete;

  /// Instead of the options' own. While no save is under way.
  void set_at_phase(SavePhaseHook hook) { options_.at_phase = std::move(hook); }

  /// For state on its device; null: none. Before prepare(), while no save is under way.
  void set_stager(std::shared_ptr<DeviceStager> stager) { stager_ = std::move(stager); }

  /// Another keep_checkpoint_max, of the saves that begin from now on; equal on all ranks.
  void keep_from_next_save(int64_t keep_checkpoint_max);

  /// Before the first begin(): takes the memory that saves of such a state need, in the background,
  /// so that the first save waits for it no longer than the others. Not needed.
  void prepare(const StateList& state);

  /// Called by the saver's thread when a save ends with an error of this rank alone (a lost peer),
  /// before wait() throws it: nobody may ask for a while. While no save is under way.
  void set_on_lost(std::function<void(const Error&)> hook) { on_lost_ = std::move(hook); }

  /// Called some times a second by whoever waits in wait(), is_done_within(), wait_until_staged()
  /// or join(), which may take as long as a disk hangs: it may throw, or end the process. The save
  /// stays under way.
  void set_while_waiting(std::function<void()> look) { while_waiting_ = std::move(look); }

  /// Collective. Begins a save; at most one is under way, so wait() comes before the next.
  void begin(const StateList& state, int64_t step);
  bool is_under_way() const { return result_.valid(); }
  /// Of the save begun last.
  int64_t number() const { return number_; }
  /// Returns once the state may change (on a stager's device: by what the calling thread enqueues
  /// from now on). At once if no save is under way.
  void wait_until_staged();
  /// Whether wait() would return at once.
  bool is_done() const;
  /// The same, after a wait of at most so long for it.
  bool is_done_within(std::chrono::milliseconds longest);

  /// How the save under way ended; with ok it is durable and committed.
  ///
  /// A fault of the disk on any rank (no space, I/O, not allowed) gives ok = false on every rank
  /// and a warning: the files of this save are removed, the saves before are untouched, training
  /// may go on. (An older save of the same number is given up only once all bytes of the new one
  /// are on disk.) Other faults throw the same Error on every rank: kDisagree if the ranks' states
  /// differ, kConfig for a tensor that has no form in a save. kUnavailable if a peer is lost.
  SaveResult wait();

  /// Returns once no save is under way and nothing is written any more; how it ended stays to be
  /// asked for with wait().
  void join();

  /// begin() and wait().
  SaveResult save(const StateList& state, int64_t step);
  /// The same under the next free number: above `above` and above every save of the prefix that the
  /// folder holds, also one that another program has just made.
  SaveResult save_as_next(const StateList& state, int64_t above);

 private:
  void stage(Snapshot* snapshot);
  /// The number, or the one below the lowest that may be taken.
  struct Number {
    int64_t value = 0;
    bool is_next = false;
  };
  void start(std::shared_ptr<Snapshot> snapshot, Number number);
  SaveResult run(const StateList& state, Number number, const std::function<void()>& staged);
  std::optional<Error> take_lock(Number* number, std::unique_ptr<SaveLock>* lock);
  void find_own_saves(const SaveLock& lock);
  SaveResult failed(const Error& fault, int64_t number) const;

  SaverOptions options_;
  std::optional<int64_t> keep_next_;  ///< from the next save on
  std::function<void(const Error&)> on_lost_;
  std::function<void()> while_waiting_;
  dist::Communicator& comm_;
  StagingBuffer memory_;
  std::shared_ptr<DeviceStager> stager_;
  std::shared_ptr<StagedCopy> copy_;            ///< of the save under way; null without a stager
  std::optional<std::set<int64_t>> own_saves_;  // rank 0; nothing: not asked for yet
  int64_t number_ = -1;
  std::chrono::steady_clock::time_point began_;
  double blocked_s_ = 0;
  std::future<void> prepared_;
  std::future<void> staged_;
  std::future<SaveResult> result_;
  std::jthread thread_;  // last: it uses the rest
};

}  // namespace lockstep::checkpoint
