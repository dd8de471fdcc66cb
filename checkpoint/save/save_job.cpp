// The save path, top to bottom: run() = stage, write, publish; then tidy().
// Every stage ends with a collective in which all ranks learn of a fault. So all ranks take the
// same branch.
#include "checkpoint/save/save_job.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include <fmt/format.h>

#include "base/digest.h"
#include "base/files/files.h"
#include "base/log.h"
#include "base/trace.h"
#include "checkpoint/format/rank_faults.h"
#include "dist/communicator.h"
#include "dist/replica_check.h"

namespace lockstep::checkpoint {

SaveJob::SaveJob(const SaverOptions& options, dist::Communicator& comm, const StateList& state,
                 int64_t step, StagingBuffer* memory, std::function<void()> staged, Journal journal)
    : options_(options),
      comm_(comm),
      state_(state),
      number_(step),
      prefix_(numbered(options.prefix, step)),
      dir_(std::filesystem::path(options.prefix).parent_path()),
      shard_path_(checkpoint::shard_path(prefix_, comm.rank(), comm.world_size())),
      memory_(memory),
      on_staged_(std::move(staged)),
      journal_(journal),
      result_{.number = step, .prefix = prefix_} {
  if (files::is_remote(prefix_)) store_.emplace(prefix_, comm.rank(), comm.world_size());
  // On all ranks but 0 there is neither lock nor journal.
  if (journal_.lock != nullptr) interrupted_ = journal_.lock->interrupted();
}

SaveJob::~SaveJob() {
  // Training waits for this call, also if the save failed before staging.
  if (on_staged_) on_staged_();
}

template <typename Body>
std::optional<Error> SaveJob::on_rank_0(const Body& body) {
  return shared_fault(comm_, is_first() ? fault_of(body) : std::nullopt);
}

template <typename Body>
std::optional<Error> SaveJob::on_every_rank(const Body& body) {
  return shared_fault(comm_, fault_of(body));
}

std::optional<Error> SaveJob::run() {
  std::optional<Error> fault = stage();
  if (!fault && store_) {
    fault = agree_on_index();
    if (!fault) publish_copies();
    // Only now: training must not wait for a store, nor may the copies.
    if (!fault) fault = on_rank_0([&] { prepare_store(); });
  }
  if (!fault) {
    const trace::Span span("write a save");
    fault = on_every_rank([&] { finish_writing(); });
  }
  // Ends the writer threads before the files are renamed or removed.
  writer_.reset();
  if (!fault) {
    const trace::Span span("commit a save");
    fault = store_ ? publish_in_store() : publish();
  }
  if (fault) store_ ? remove_own_objects() : remove_own_files();
  return fault;
}

/// Stages the shard and starts writing it. Until the end the state must not change, so the ranks'
/// states are compared here.
std::optional<Error> SaveJob::stage() {
  const trace::Span span("stage a save");
  const TimeLimit limit(comm_, options_.stage_timeout_s);
  pieces_ = save_pieces(state_, number_, options_.sparse);
  result_.bytes_dense = dense_bytes(pieces_);
  // Differing keys or shapes would give the ranks different plans.
  dist::require_equal(comm_, "what is to be saved", summary(pieces_, number_));
  std::optional<Error> fault = on_every_rank([&] {
    const SavePlan plan(pieces_, comm_.world_size(), options_.min_cut_bytes);
    staged_.emplace(pieces_, plan.parts_of(comm_.rank()), comm_.rank(), memory_);
  });
  // Every rank must take part in the sum, including one with a fault.
  const int64_t all_bytes = dist::sum_of(comm_, staged_ ? staged_->num_bytes() : 0);
  if (!fault)
    fault = on_rank_0([&] {
      if (store_) return;  // prepare_store() comes later
      remove_interrupted();
      std::error_code unknown;
      const std::filesystem::space_info space = std::filesystem::space(dir_, unknown);
      if (!unknown) require_space(dir_, all_bytes, space);
      note({});  // from here on files of this number may exist
    });
  if (!fault) fault = on_every_rank([&] { begin_writing(); });
  if (!fault && options_.compare_replicas) {
    const auto start = std::chrono::steady_clock::now();
    dist::require_equal_state(comm_, fmt::format("the state to be saved at step {}", number_),
                              state_);
    result_.compare_s =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  }
  // The state may change from here on: shard and checksums are in memory.
  std::exchange(on_staged_, nullptr)();
  return fault;
}

/// Gives all ranks the index of a save in an object store. Reports travel as messages: files for
/// them would be objects to write and to remove in every save.
std::optional<Error> SaveJob::agree_on_index() {
  const std::vector<std::string> reports = dist::gather_texts(comm_, shard_report(*staged_));
  std::optional<Error> fault = on_rank_0([&] { index_ = index_of(reports); });
  if (!fault) index_ = dist::broadcast_text(comm_, index_);
  return fault;
}

/// Completes the copies on the hosts. A fault costs only them, but a disk that hangs also delays
/// the commit.
void SaveJob::publish_copies() {
  if (options_.copies_folder.empty()) return;
  bool is_there = false;
  std::optional<Error> fault = on_every_rank([&] {
    if (copy_fault_) throw Error(*copy_fault_);
    copy_->finish();
    is_there = copy_->is_there(index_);
  });
  // A run that continued from this copy saves it again: it must not be at risk meanwhile.
  if (!fault && !dist::any_of(comm_, !is_there)) return;
  if (!fault) fault = on_every_rank([&] { copy_->remove_older(); });
  if (!fault) fault = on_every_rank([&] { copy_->publish_shard(); });
  if (!fault) fault = on_every_rank([&] { copy_->publish_index(index_); });
  const bool has_copy = !fault;
  // Until every host has the new copy, the one before is the newest that can be restored.
  if (has_copy) fault = on_every_rank([&] { copy_->remove_others(); });
  if (!has_copy) copy_.reset();
  if (fault && is_first())
    log::warning("checkpoint",
                 has_copy ? "cannot remove older copies on the hosts: " + plain_text(*fault)
                          : fmt::format("no copy of {} on the hosts: {}; the checkpoint goes only "
                                        "to the store",
                                        prefix_, plain_text(*fault)));
}

/// Finishes what other programs have begun to commit, and finds what this save replaces. In the
/// first save it also finds the checkpoints that are this program's own.
void SaveJob::prepare_store() {
  finish_commits(dir_);
  if (journal_.own_saves->empty())
    if (const auto state = read_state_file_if_sound(dir_))
      for (const SaveName& save : named_by(*state, options_.prefix))
        journal_.own_saves->insert(save.number);
  store_->begin();
}

/// Removes the remains of interrupted saves. Not on a file system without locks, where they may
/// belong to a save in progress.
void SaveJob::remove_interrupted() {
  if (!journal_.lock->is_held()) return;
  if (const auto fault = fault_of([&] { remove_remains(options_.prefix, interrupted_); }))
    log::warning("checkpoint",
                 fmt::format("files of an interrupted save are kept until the next save: {}",
                             plain_text(*fault)));
  else
    interrupted_.clear();
}

/// Writes the journal: this save's number, `numbers`, and what could not be removed.
void SaveJob::note(std::set<int64_t> numbers) const {
  numbers.insert(number_);
  numbers.insert(interrupted_.begin(), interrupted_.end());
  journal_.lock->note(numbers);
}

void SaveJob::end_journal() const {
  if (store_) return;
  if (interrupted_.empty()) return journal_.lock->done();
  if (const auto fault = fault_of([&] { journal_.lock->note(interrupted_); }))
    log::warning("checkpoint", plain_text(*fault));  // it then names too many, never too few
}

void SaveJob::begin_writing() {
  if (store_ && !options_.copies_folder.empty()) {
    copy_fault_ = fault_of(
        [&] { copy_.emplace(copy_prefix(), comm_.rank(), comm_.world_size(), &*staged_); });
  }
  // The writers start before the image is filled and follow its watermark.
  writer_.emplace(
      store_ ? store_->shard_sink(staged_->num_bytes())
             : file_sink(shard_path_ + std::string(kTemporarySuffix), staged_->num_bytes()),
      &*staged_);
  staged_->fill();
  reached(SavePhase::kStaged);
}

void SaveJob::finish_writing() {
  writer_->finish();
  if (!store_) write_entries();
  log::debug("checkpoint", fmt::format("wrote {} ({} bytes, {} bytes of memory)", shard_path_,
                                       staged_->num_bytes(),
                                       memory_->num_touched() * StagingBuffer::kChunkBytes));
  reached(SavePhase::kShardWritten);
}

/// Publishes the checkpoint. All bytes are on disk under temporary names before an older checkpoint
/// of this number is touched. So a full disk cannot cost the old one.
std::optional<Error> SaveJob::publish() {
  // Every rank's shard is on disk by now: run() ended its writing with an agreement.
  std::optional<Error> fault = on_every_rank([&] { reached(SavePhase::kEntriesAgreed); });
  if (!fault) fault = on_rank_0([&] { write_index(); });
  if (!fault) fault = on_every_rank([&] { rename_shard(); });
  // Only now: the index is the commit, and every shard that it names must have its final name.
  if (!fault) fault = on_rank_0([&] { commit(); });
  result_.bytes_written = dist::sum_of(comm_, (staged_ ? staged_->num_bytes() : 0) + index_bytes_);
  return fault;
}

/// Writes this rank's entries for rank 0 into the folder. Sent as messages to all ranks, such lists
/// would grow with the square of the number of ranks.
void SaveJob::write_entries() const {
  files::Writer file(entries_path(shard_path_));
  file.append(shard_report(*staged_));
  file.close();
}

std::vector<std::string> SaveJob::collect_entries() const {
  std::vector<std::string> reports;
  for (int rank = 0; rank < comm_.world_size(); ++rank)
    reports.push_back(files::read(entries_path(shard_path(prefix_, rank, comm_.world_size()))));
  return reports;
}

/// Returns the bytes of the index from all ranks' reports.
std::string SaveJob::index_of(const std::vector<std::string>& reports) {
  IndexBuilder index(comm_.world_size());
  for (const std::string& report : reports) index.add(report);
  std::string bytes = encode_index(index.finish(pieces_));
  // Larger indices are not checked, since decoding takes a multiple of their bytes.
  constexpr size_t kMostToDecode = size_t{256} << 20;
  if (bytes.size() <= kMostToDecode)
    (void)decode_index(bytes, index_path(prefix_));  // readers must accept it
  index_bytes_ = static_cast<int64_t>(bytes.size());
  index_crc_ = crc32c(bytes);
  return bytes;
}

void SaveJob::write_index() {
  const std::string bytes = index_of(collect_entries());
  files::Writer file(index_path(prefix_) + std::string(kTemporarySuffix));
  file.append(bytes);
  file.sync();
  file.close();
  reached(SavePhase::kIndexWritten);
  std::error_code ignored;
  replaced_ = std::filesystem::exists(index_path(prefix_), ignored);
  // While shards are replaced, no reader may trust an old index of this number.
  CheckpointFolder(dir_).remove(prefix_);
  reached(SavePhase::kOldRemoved);
}

void SaveJob::rename_shard() {
  files::rename_file(shard_path_ + std::string(kTemporarySuffix), shard_path_);
  renamed_ = true;
  // Durable before the agreement: the index must not reach the disk before the names of the shards.
  files::sync_folder(dir_);
  files::remove_file(entries_path(shard_path_));
  reached(SavePhase::kShardRenamed);
}

void SaveJob::commit() {
  files::rename_file(index_path(prefix_) + std::string(kTemporarySuffix), index_path(prefix_));
  // From here on remove_own_files() must remove the index first.
  index_renamed_ = true;
  files::sync_folder(dir_);
  reached(SavePhase::kCommitted);
}

/// Publishes the checkpoint in an object store, in the order of StoreCommit.
std::optional<Error> SaveJob::publish_in_store() {
  const std::vector<std::string> tickets = dist::gather_texts(comm_, store_->ticket());
  std::optional<Error> fault = on_every_rank([&] { reached(SavePhase::kEntriesAgreed); });
  if (!fault)
    fault = on_rank_0([&] {
      reached(SavePhase::kIndexWritten);
      replaced_ = store_->decide(tickets, index_);
      reached(SavePhase::kOldRemoved);
    });
  if (!fault)
    fault = on_every_rank([&] {
      store_->publish_shard();
      reached(SavePhase::kShardRenamed);
    });
  if (!fault)
    fault = on_rank_0([&] {
      store_->publish_index();
      reached(SavePhase::kCommitted);
    });
  if (!fault && copy_) mark_stored(copy_prefix());
  result_.bytes_written = dist::sum_of(comm_, (staged_ ? staged_->num_bytes() : 0) + index_bytes_);
  return fault;
}

/// Takes back what this save has written. If the record cannot be removed, the shards stay, since
/// another program may complete the save.
void SaveJob::remove_own_objects() {
  const std::optional<Error> may_be_completed = on_rank_0([&] { store_->take_back_record(); });
  if (may_be_completed && is_first())
    log::warning("checkpoint", fmt::format("{} cannot be taken back: {}; it may be completed later",
                                           prefix_, plain_text(*may_be_completed)));
  (void)on_every_rank(
      [&] { may_be_completed ? store_->leave_parts() : store_->take_back_shard(); });
  if (replaced_ && !may_be_completed)
    log::warning("checkpoint",
                 fmt::format("the previous checkpoint {} is lost: the save that replaced it failed",
                             prefix_));
}

/// Cleans up after the commit. The checkpoint counts already, so what fails here is left to the
/// next save. Before surplus checkpoints are removed, every rank reads back what it wrote.
std::optional<Error> SaveJob::tidy() {
  std::optional<Error> fault = on_rank_0([&] { find_surplus(); });
  if (!fault) {
    // surplus_ is rank 0's; the others learn here whether they must read back.
    if (dist::any_of(comm_, !surplus_.empty())) fault = on_every_rank([&] { read_back(); });
    if (fault && fault->code() == ExitCode::kBadData) {
      store_ ? remove_own_objects() : remove_own_files();
      return fault;
    }
    if (fault) {
      kept_.insert(kept_.end(), surplus_.begin(), surplus_.end());
      surplus_.clear();
    }
    const std::optional<Error> untidy = on_rank_0([&] {
      // First the journal: if we are killed in between, the next save completes the removal.
      note_surplus();
      // Without a state file readers use the folder, so the surplus may go anyway.
      const std::optional<Error> unnamed = fault_of([&] { write_state(); });
      reached(SavePhase::kStateWritten);
      remove_surplus();
      end_journal();
      reached(SavePhase::kDone);
      if (unnamed) throw Error(*unnamed);
    });
    if (!fault) fault = untidy;
  }
  if (fault && is_first())
    log::warning("checkpoint", fmt::format("{} is saved, but: {}", prefix_, plain_text(*fault)));
  return std::nullopt;
}

/// Finds the surplus among this program's own checkpoints. Those of other programs, if the state
/// file names them, stay in it.
void SaveJob::find_surplus() {
  const std::filesystem::path prefix(options_.prefix);
  std::set<int64_t> named;
  std::optional<StateFile> state;
  (void)fault_of([&] { state = read_state_file(dir_); });  // the saver has warned of its faults
  if (state)
    for (const SaveName& save : named_by(*state, prefix)) named.insert(save.number);
  std::set<int64_t>& own = *journal_.own_saves;
  own.insert(number_);
  std::vector<SaveName> own_saves;
  for (const SaveName& save : find_saves(dir_, prefix.filename().string())) {
    if (own.contains(save.number)) own_saves.push_back(save);
    if (own.contains(save.number) || named.contains(save.number)) kept_.push_back(save);
  }
  const std::optional<BestSave> best = read_best(options_.prefix);
  surplus_ = surplus_saves(own_saves,
                           {.keep_max = options_.keep_checkpoint_max,
                            .keep_every = options_.keep_every,
                            .best = best ? std::optional(best->number) : std::nullopt},
                           number_);
  // The state file must name none of those to be removed.
  std::erase_if(kept_, [&](const SaveName& save) {
    return std::ranges::find(surplus_, save.number, &SaveName::number) != surplus_.end();
  });
}

void SaveJob::read_back() {
  if (store_) return;  // it has compared the crc of every part
  require_written(shard_path_, staged_->slots());
  const std::string index = is_first() ? files::read(index_path(prefix_)) : "";
  if (is_first() &&
      (static_cast<int64_t>(index.size()) != index_bytes_ || crc32c(index) != index_crc_))
    throw Error(ExitCode::kBadData, "checkpoint",
                index_path(prefix_) + ": the bytes read back differ from those written");
  reached(SavePhase::kReadBack);
}

/// Writes the state file; checkpoints of other prefixes in the folder stay named.
void SaveJob::write_state() const {
  std::vector<SaveName> kept = kept_;
  std::ranges::sort(kept, {}, &SaveName::number);
  change_state_file(dir_, [&](const StateFile& before) {
    StateFile state{.newest = std::filesystem::path(prefix_).filename().string(),
                    .all = others_in(before, options_.prefix)};
    for (const SaveName& save : kept)
      state.all.push_back(std::filesystem::path(save.prefix).filename().string());
    return state;
  });
}

/// Notes the surplus in the journal, before the state file forgets it.
void SaveJob::note_surplus() {
  std::set<int64_t> numbers;
  for (const SaveName& save : surplus_) numbers.insert(save.number);
  if (!surplus_.empty() && !store_) note(std::move(numbers));
}

void SaveJob::remove_surplus() {
  for (const SaveName& save : surplus_) {
    CheckpointFolder(dir_).remove(save.prefix);
    journal_.own_saves->erase(save.number);
  }
}

/// Takes back what this save has written, but nothing of an older checkpoint of its number. The
/// index goes first, durably. While it may still exist, the shards that it names stay.
void SaveJob::remove_own_files() {
  bool is_clean = true;
  const auto try_to_remove = [&](const std::string& path) {
    is_clean = !fault_of([&] { files::remove_file(path); }) && is_clean;
  };
  const std::optional<Error> index_may_stay = on_rank_0([&] {
    if (!index_renamed_) return;
    files::remove_file(index_path(prefix_));
    files::sync_folder(dir_);
  });
  if (is_first()) try_to_remove(index_path(prefix_) + std::string(kTemporarySuffix));
  try_to_remove(shard_path_ + std::string(kTemporarySuffix));
  try_to_remove(entries_path(shard_path_));
  // A shard that an index may still name must stay.
  if (renamed_ && !index_may_stay) try_to_remove(shard_path_);
  if (replaced_)
    log::warning("checkpoint",
                 fmt::format("the previous checkpoint {} is lost: the save that replaced it failed",
                             prefix_));
  if (index_may_stay && is_first())
    log::warning("checkpoint",
                 fmt::format("{} cannot be removed: {}; it may be taken for a valid checkpoint",
                             prefix_, plain_text(*index_may_stay)));
  // Other programs may save under this prefix once every rank has finished here.
  const bool all_clean = !dist::any_of(comm_, !is_clean || index_may_stay.has_value());
  if (all_clean && is_first()) end_journal();
}

}  // namespace lockstep::checkpoint
