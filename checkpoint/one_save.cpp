#include "checkpoint/one_save.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include <fmt/format.h>

#include "base/files.h"
#include "base/log.h"
#include "checkpoint/best_save.h"
#include "checkpoint/bundle_writer.h"
#include "checkpoint/rank_faults.h"
#include "checkpoint/retention.h"
#include "checkpoint/shard_report.h"
#include "dist/agree.h"
#include "dist/state_check.h"

namespace lockstep::checkpoint {

OneSave::OneSave(const SaverOptions& options, dist::Communicator& comm, const StateList& state,
                 int64_t step, KeptMemory* memory, std::function<void()> staged)
    : options_(options),
      comm_(comm),
      state_(state),
      number_(step),
      prefix_(numbered(options.prefix, step)),
      dir_(std::filesystem::path(options.prefix).parent_path()),
      shard_path_(checkpoint::shard_path(prefix_, comm.rank(), comm.world_size())),
      memory_(memory),
      staged_(std::move(staged)) {}

OneSave::~OneSave() {
  if (staged_) staged_();
}

template <typename Body>
std::optional<Error> OneSave::on_rank_0(const Body& body) {
  return shared_fault(comm_, is_first() ? fault_of(body) : std::nullopt);
}

template <typename Body>
std::optional<Error> OneSave::on_every_rank(const Body& body) {
  return shared_fault(comm_, fault_of(body));
}

std::optional<Error> OneSave::run() {
  pieces_ = save_pieces(state_, number_, options_.sparse);
  dense_bytes_ = checkpoint::dense_bytes(pieces_);
  dist::require_equal(comm_, "what is to be saved", summary(pieces_, number_));
  std::optional<Error> fault = stage();
  if (!fault) fault = on_every_rank([&] { finish_writing(); });
  file_.reset();
  if (!fault) fault = publish();
  if (fault) remove_own_files();
  return fault;
}

/// Until the state may change. The ranks are compared while it may not.
std::optional<Error> OneSave::stage() {
  std::optional<Error> fault = on_every_rank([&] {
    const SavePlan plan(pieces_, comm_.world_size(), options_.min_cut_bytes);
    image_.emplace(pieces_, plan.parts_of(comm_.rank()), comm_.rank(), memory_);
  });
  const int64_t all_bytes = dist::sum_of(comm_, image_ ? image_->num_bytes() : 0);
  if (!fault)
    fault = on_rank_0([&] {
      files::make_folders(dir_);
      require_space(all_bytes);
    });
  if (!fault) fault = on_every_rank([&] { begin_writing(); });
  if (!fault && options_.compare_replicas) {
    const auto start = std::chrono::steady_clock::now();
    dist::require_equal_state(comm_, fmt::format("the state to be saved at step {}", number_),
                              state_);
    compare_s_ = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  }
  std::exchange(staged_, nullptr)();
  return fault;
}

void OneSave::require_space(int64_t num_bytes) const {
  std::error_code unknown;
  const std::filesystem::space_info space = std::filesystem::space(dir_, unknown);
  constexpr int64_t kForIndexAndState = int64_t{1} << 20;
  if (unknown || static_cast<int64_t>(space.available) >= num_bytes + kForIndexAndState) return;
  throw Error(ExitCode::kIo, "checkpoint",
              fmt::format("{}: a save needs {} bytes and there are {}; make room, or lower "
                          "checkpoint.keep_checkpoint_max",
                          dir_.string(), num_bytes + kForIndexAndState, space.available));
}

void OneSave::begin_writing() {
  file_.emplace(shard_path_ + std::string(kTemporarySuffix), &*image_);
  image_->fill();
  reached(SavePhase::kStaged);
}

void OneSave::finish_writing() {
  file_->finish();
  log::debug("checkpoint", fmt::format("wrote {} ({} bytes)", shard_path_, image_->num_bytes()));
  reached(SavePhase::kShardWritten);
}

/// All bytes are on disk under temporary names before anything of an older save of this number is
/// touched.
std::optional<Error> OneSave::publish() {
  gather_index();
  reached(SavePhase::kEntriesAgreed);
  std::optional<Error> fault = on_rank_0([&] { write_index(); });
  if (!fault) fault = on_every_rank([&] { rename_shard(); });
  if (!fault) fault = on_rank_0([&] { commit(); });
  return fault;
}

void OneSave::gather_index() {
  index_ = index_of(dist::gather_texts(comm_, shard_report(*image_)), pieces_);
  bytes_written_ =
      dist::sum_of(comm_, image_->num_bytes()) + static_cast<int64_t>(encode_index(index_).size());
}

void OneSave::write_index() {
  (void)decode_index(encode_index(index_), index_path(prefix_));  // what no reader takes is no save
  stage_index(prefix_, index_);
  reached(SavePhase::kIndexWritten);
  std::error_code ignored;
  replaced_ = std::filesystem::exists(index_path(prefix_), ignored);
  remove_save(prefix_);
  reached(SavePhase::kOldRemoved);
}

void OneSave::rename_shard() {
  files::rename_file(shard_path_ + std::string(kTemporarySuffix), shard_path_);
  renamed_ = true;
  files::sync_folder(dir_);
  reached(SavePhase::kShardRenamed);
}

void OneSave::commit() {
  files::rename_file(index_path(prefix_) + std::string(kTemporarySuffix), index_path(prefix_));
  index_renamed_ = true;
  files::sync_folder(dir_);
  reached(SavePhase::kCommitted);
}

/// The save counts already: what fails here is left for the next save. Surplus saves go only after
/// every rank has read back what it wrote.
std::optional<Error> OneSave::tidy() {
  const std::string prefix_name = std::filesystem::path(options_.prefix).filename().string();
  std::optional<Error> fault = on_rank_0([&] {
    const std::vector<SaveName> saves = find_saves(dir_, prefix_name);
    const std::optional<BestSave> best = read_best(options_.prefix);
    surplus_ = surplus_saves(saves,
                             {.keep_max = options_.keep_checkpoint_max,
                              .keep_every = options_.keep_every,
                              .best = best ? std::optional(best->number) : std::nullopt},
                             number_);
    write_state(saves);
    reached(SavePhase::kStateWritten);
  });
  if (!fault && dist::any_of(comm_, !surplus_.empty())) fault = on_every_rank([&] { read_back(); });
  if (fault && fault->code() == ExitCode::kBadData) return fault;
  if (!fault)
    fault = on_rank_0([&] {
      for (const SaveName& save : surplus_) remove_save(save.prefix);
      remove_debris(dir_, prefix_name);
      reached(SavePhase::kDone);
    });
  if (fault && is_first())
    log::warning("checkpoint", fmt::format("{} is saved, but: {}", prefix_, plain_text(*fault)));
  return std::nullopt;
}

void OneSave::read_back() {
  require_written(shard_path_, image_->slots());
  if (is_first() && files::read(index_path(prefix_)) != encode_index(index_))
    throw Error(ExitCode::kBadData, "checkpoint",
                index_path(prefix_) + ": does not read back as it was written");
  reached(SavePhase::kReadBack);
}

void OneSave::write_state(const std::vector<SaveName>& saves) const {
  StateFile state;
  state.newest = std::filesystem::path(prefix_).filename().string();
  for (const SaveName& save : saves) {
    const bool goes = std::any_of(surplus_.begin(), surplus_.end(),
                                  [&](const SaveName& s) { return s.number == save.number; });
    if (!goes) state.all.push_back(std::filesystem::path(save.prefix).filename().string());
  }
  write_state_file(dir_, state);
}

/// Takes back what this save has put there, and nothing of an older save of its number. The index
/// goes first, durably; while it may be there, the shards that it names stay.
void OneSave::remove_own_files() {
  const auto try_to_remove = [](const std::string& path) {
    (void)fault_of([&] { files::remove_file(path); });
  };
  const std::optional<Error> index_may_stay = on_rank_0([&] {
    if (!index_renamed_) return;
    files::remove_file(index_path(prefix_));
    files::sync_folder(dir_);
  });
  if (is_first()) try_to_remove(index_path(prefix_) + std::string(kTemporarySuffix));
  try_to_remove(shard_path_ + std::string(kTemporarySuffix));
  if (renamed_ && !index_may_stay) try_to_remove(shard_path_);
  if (replaced_)
    log::warning("checkpoint",
                 fmt::format("the older save {} had to make room and is gone", prefix_));
  if (index_may_stay && is_first())
    log::warning("checkpoint", fmt::format("{} cannot be taken back: {}; it may count as a save",
                                           prefix_, plain_text(*index_may_stay)));
}

}  // namespace lockstep::checkpoint
