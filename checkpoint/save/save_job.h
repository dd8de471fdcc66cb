#pragma once

#include <filesystem>
#include <functional>
#include <optional>
#include <set>
#include <string>

#include "base/error.h"
#include "base/tensors/state_list.h"
#include "checkpoint/format/bundle_index.h"
#include "checkpoint/format/checkpoint_files.h"
#include "checkpoint/save/checkpoint_folder.h"
#include "checkpoint/save/host_copy.h"
#include "checkpoint/save/saver.h"
#include "checkpoint/save/shard_writer.h"
#include "checkpoint/save/store_commit.h"

namespace lockstep::checkpoint {

/// One save from start to end on one rank, in the order of docs/design/checkpoint_format.md.
/// Collective. All of it may run concurrently with training, on its own communicator. Local work
/// runs inside fault_of(), collectives outside of it.
class SaveJob {
 public:
  /// Journal of rank 0; null elsewhere.
  struct Journal {
    SaveLock* lock = nullptr;                ///< null too in an object store
    std::set<int64_t>* own_saves = nullptr;  ///< numbers that may be removed as surplus
  };

  /// `memory` belongs to this save alone meanwhile. `staged` is called exactly once, when the state
  /// may change again, even if the save fails.
  SaveJob(const SaverOptions& options, dist::Communicator& comm, const StateList& state,
          int64_t step, StagingBuffer* memory, std::function<void()> staged, Journal journal);
  ~SaveJob();
  SaveJob(const SaveJob&) = delete;
  SaveJob& operator=(const SaveJob&) = delete;

  /// Returns the first fault of any rank, the same on all ranks; nullopt if the checkpoint is
  /// committed.
  std::optional<Error> run();
  /// Removes surplus checkpoints and writes the state file. Call it after run() has committed.
  /// Returns Error(kBadData), the same on all ranks, if something does not read back as written.
  /// The checkpoint is then taken back, no state file names it, and no other was removed. Other
  /// faults are logged and left to the next save.
  std::optional<Error> tidy();

  /// Returns number, prefix, sizes and compare_s. The other fields are the caller's.
  const SaveResult& result() const { return result_; }

 private:
  bool is_first() const { return comm_.rank() == 0; }
  void reached(SavePhase phase) const {
    if (options_.at_phase) options_.at_phase(phase);
  }
  template <typename Body>
  std::optional<Error> on_rank_0(const Body& body);
  template <typename Body>
  std::optional<Error> on_every_rank(const Body& body);

  std::optional<Error> stage();
  std::string copy_prefix() const {
    return std::filesystem::path(options_.copies_folder) /
           std::filesystem::path(prefix_).filename();
  }
  std::optional<Error> agree_on_index();
  void publish_copies();
  void prepare_store();
  void remove_interrupted();
  void note(std::set<int64_t> numbers) const;
  void end_journal() const;
  void begin_writing();
  void finish_writing();
  std::optional<Error> publish();
  std::optional<Error> publish_in_store();
  void remove_own_objects();
  void write_entries() const;
  std::vector<std::string> collect_entries() const;
  std::string index_of(const std::vector<std::string>& reports);
  void write_index();
  void rename_shard();
  void commit();
  void read_back();
  void find_surplus();
  void write_state() const;
  void note_surplus();
  void remove_surplus();
  void remove_own_files();

  const SaverOptions& options_;
  dist::Communicator& comm_;
  const StateList& state_;
  const int64_t number_;
  const std::string prefix_;
  const std::filesystem::path dir_;
  const std::string shard_path_;
  StagingBuffer* memory_;
  std::function<void()> on_staged_;

  std::vector<StoredTensor> pieces_;
  std::optional<StagedShard> staged_;
  std::optional<StoreCommit> store_;   ///< for a prefix in an object store
  std::string index_;                  ///< then: the bytes of the index
  std::optional<HostCopy> copy_;       ///< then: this host's copy, unless it cannot have one
  std::optional<Error> copy_fault_;    ///< and why
  std::optional<ShardWriter> writer_;  // destroyed before the image that it reads
  const Journal journal_;
  std::set<int64_t> interrupted_;         ///< rank 0: numbers of earlier saves, not removed yet
  int64_t index_bytes_ = 0;               ///< rank 0: size of the index,
  uint32_t index_crc_ = 0;                ///< and its crc32c
  std::vector<SaveName> kept_, surplus_;  ///< rank 0
  SaveResult result_;
  bool replaced_ = false;  ///< rank 0: an older checkpoint of this number existed
  bool renamed_ = false, index_renamed_ = false;
};

}  // namespace lockstep::checkpoint
