#include "checkpoint/saver.h"

#include <chrono>
#include <filesystem>
#include <optional>

#include <fmt/format.h>

#include "base/error.h"
#include "base/files.h"
#include "base/log.h"
#include "checkpoint/bundle_index.h"
#include "checkpoint/bundle_writer.h"
#include "checkpoint/entry_proto.h"
#include "checkpoint/proto/shard_report.pb.h"
#include "checkpoint/rank_faults.h"
#include "checkpoint/retention.h"
#include "checkpoint/save_files.h"
#include "checkpoint/save_pieces.h"
#include "dist/agree.h"

namespace lockstep::checkpoint {
namespace {

/// True for what the disk does to us: the run may go on without this save.
bool is_disk_fault(const Error& fault) {
  return fault.code() == ExitCode::kIo || fault.code() == ExitCode::kCannotCreate ||
         fault.code() == ExitCode::kInputMissing;
}

/// One save from start to end, on one rank. Local work runs inside fault_of(); collectives stand
/// outside.
class OneSave {
 public:
  OneSave(const SaverOptions& options, dist::Communicator& control, const StateList& state,
          int64_t step)
      : options_(options),
        control_(control),
        number_(step),
        prefix_(numbered(options.prefix, step)),
        dir_(std::filesystem::path(options.prefix).parent_path()),
        pieces_(state, step) {}

  /// The first fault of any rank, the same on all; nothing if the save is committed.
  std::optional<Error> run() {
    dist::require_equal(control_, "what is to be saved", pieces_.summary());
    std::optional<Error> fault = on_rank_0([&] { files::make_folders(dir_); });
    if (!fault) fault = on_every_rank([&] { write_shard(); });
    if (!fault) fault = publish();
    if (fault)
      remove_own_files();
    else if (is_first())
      tidy();
    return fault;
  }

  const std::string& prefix() const { return prefix_; }
  int64_t bytes_written() const { return bytes_written_; }

 private:
  bool is_first() const { return control_.rank() == 0; }

  void reached(SavePhase phase) const {
    if (options_.at_phase) options_.at_phase(phase);
  }

  template <typename Body>
  std::optional<Error> on_rank_0(Body body) {
    return shared_fault(control_, is_first() ? fault_of(body) : std::nullopt);
  }

  template <typename Body>
  std::optional<Error> on_every_rank(Body body) {
    return shared_fault(control_, fault_of(body));
  }

  /// All bytes are on disk under temporary names before anything of an older save of this number is
  /// touched.
  std::optional<Error> publish() {
    gather_entries();
    reached(SavePhase::kEntriesAgreed);
    std::optional<Error> fault = on_rank_0([&] { stage(); });
    if (!fault) fault = on_every_rank([&] { rename_shard(); });
    if (!fault) fault = on_rank_0([&] { commit(); });
    return fault;
  }

  void write_shard() {
    ShardWriter& shard = shard_.emplace(shard_path(prefix_, control_.rank(), control_.world_size()),
                                        control_.rank());
    const std::vector<int> owners = pieces_.owners(control_.world_size());
    for (size_t i = 0; i < owners.size(); ++i) {
      if (owners[i] != control_.rank()) continue;
      const SavePiece& piece = pieces_.list()[i];
      if (piece.text)
        shard.append(piece.name, std::string_view(*piece.text));
      else
        shard.append(piece.name, piece.tensor);
    }
    shard.finish();
    index_.entries = shard.entries();
    bytes_written_ = shard.num_bytes();
    log::debug(
        "checkpoint",
        fmt::format("wrote {} ({} bytes)",
                    shard_path(prefix_, control_.rank(), control_.world_size()), bytes_written_));
    reached(SavePhase::kShardWritten);
  }

  /// Afterwards index_ holds the entries of all ranks.
  void gather_entries() {
    pb::ShardReport report;
    report.set_shard_bytes(bytes_written_);
    for (const auto& [name, entry] : index_.entries) {
      auto* item = report.add_items();
      item->set_name(name);
      *item->mutable_entry() = to_proto(entry);
    }
    index_.num_shards = control_.world_size();
    index_.entries.clear();
    bytes_written_ = 0;
    for (const std::string& text : dist::gather_texts(control_, report.SerializeAsString())) {
      check(report.ParseFromString(text), "a rank's list of tensors cannot be read");
      bytes_written_ += report.shard_bytes();
      for (const auto& item : report.items())
        index_.entries[item.name()] = from_proto(item.entry(), index_.num_shards);
    }
    check(index_.entries.size() == pieces_.list().size(),
          "the ranks' shards do not make up the whole save");
    bytes_written_ += static_cast<int64_t>(encode_index(index_).size());
  }

  void stage() {
    stage_index(prefix_, index_);
    reached(SavePhase::kIndexWritten);
    remove_save(prefix_);
    reached(SavePhase::kOldRemoved);
  }

  void rename_shard() {
    renaming_ = true;
    shard_->publish();
    reached(SavePhase::kShardRenamed);
  }

  void commit() {
    committing_ = true;
    publish_index(prefix_);
    reached(SavePhase::kCommitted);
  }

  /// The save counts already: what fails here is said and left for the next save.
  void tidy() {
    const std::optional<Error> fault = fault_of([&] {
      const std::string prefix_name = std::filesystem::path(options_.prefix).filename().string();
      const std::vector<SaveName> saves = find_saves(dir_, prefix_name);
      const std::vector<SaveName> surplus =
          surplus_saves(saves, options_.keep_checkpoint_max, number_);
      write_state(saves, surplus);
      reached(SavePhase::kStateWritten);
      for (const SaveName& save : surplus) remove_save(save.prefix);
      remove_debris(dir_, prefix_name);
      reached(SavePhase::kDone);
    });
    if (fault)
      log::warning("checkpoint", fmt::format("{} is saved, but: {}", prefix_, plain_text(*fault)));
  }

  void write_state(const std::vector<SaveName>& saves, const std::vector<SaveName>& surplus) const {
    StateFile state;
    state.newest = std::filesystem::path(prefix_).filename().string();
    for (const SaveName& save : saves) {
      const bool goes = std::any_of(surplus.begin(), surplus.end(),
                                    [&](const SaveName& s) { return s.number == save.number; });
      if (!goes) state.all.push_back(std::filesystem::path(save.prefix).filename().string());
    }
    write_state_file(dir_, state);
  }

  /// Takes back what this save has put there, and nothing of an older save of its number. The index
  /// goes before any shard does.
  void remove_own_files() {
    const std::string shard = shard_path(prefix_, control_.rank(), control_.world_size());
    if (is_first()) remove(index_path(prefix_), committing_);
    control_.barrier();
    remove(shard, renaming_);
  }

  /// The temporary file, and the final one if this save may have renamed it.
  static void remove(const std::string& path, bool renamed) {
    (void)fault_of([&] {
      files::remove_file(path + std::string(kTemporarySuffix));
      if (renamed) files::remove_file(path);
    });
  }

  const SaverOptions& options_;
  dist::Communicator& control_;
  const int64_t number_;
  const std::string prefix_;
  const std::filesystem::path dir_;
  const SavePieces pieces_;
  std::optional<ShardWriter> shard_;
  BundleIndex index_;
  int64_t bytes_written_ = 0;
  bool renaming_ = false;
  bool committing_ = false;
};

}  // namespace

Saver::Saver(SaverOptions options, dist::Communicator& control)
    : options_(std::move(options)), control_(control) {
  check(options_.keep_checkpoint_max == -1 || options_.keep_checkpoint_max > 0,
        "keep_checkpoint_max is 0 or below -1");
  check(!std::filesystem::path(options_.prefix).filename().empty(), "a save needs a prefix");
  options_.prefix = std::filesystem::absolute(options_.prefix).string();
}

SaveResult Saver::save(const StateList& state, int64_t step) {
  check(step >= 0, "a save needs a step");
  const auto start = std::chrono::steady_clock::now();
  OneSave save(options_, control_, state, step);
  const std::optional<Error> fault = save.run();
  if (fault && !is_disk_fault(*fault)) throw Error(*fault);
  SaveResult result;
  result.ok = !fault;
  result.prefix = save.prefix();
  result.bytes_written = fault ? 0 : save.bytes_written();
  result.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  if (fault) result.error = plain_text(*fault);
  if (fault && control_.rank() == 0)
    log::warning("checkpoint", fmt::format("{} could not be saved: {}; the saves before it stand",
                                           save.prefix(), result.error));
  return result;
}

}  // namespace lockstep::checkpoint
