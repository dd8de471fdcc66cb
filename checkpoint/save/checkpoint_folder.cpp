#include "checkpoint/save/checkpoint_folder.h"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <ctime>
#include <random>
#include <sstream>
#include <thread>

#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error.h"
#include "base/files/files.h"
#include "base/files/folder_lock.h"
#include "base/log.h"
#include "checkpoint/format/bundle_index.h"
#include "checkpoint/format/rank_faults.h"
#include "checkpoint/save/store_commit.h"

namespace lockstep::checkpoint {
namespace {

using Clock = std::chrono::steady_clock;

/// Returns a random text, so that an old file cannot be mistaken for the new one.
std::string random_text() {
  std::random_device source;
  return fmt::format("{:08x}{:08x}{:08x}", source(), source(), source());
}

/// True if the file can be read and has this text.
bool holds(const std::filesystem::path& file, const std::string& text) {
  bool equal = false;
  (void)fault_of([&] { equal = files::read(file, 4096) == text; });
  return equal;
}

/// True once the file has this text. Polls with doubling pauses.
bool comes_to_hold(const std::filesystem::path& file, const std::string& text, double patience_s) {
  const auto deadline = Clock::now() + std::chrono::duration<double>(patience_s);
  for (std::chrono::duration<double> pause(0.01);; pause *= 2) {
    if (holds(file, text)) return true;
    if (Clock::now() + pause > deadline) return false;
    std::this_thread::sleep_for(pause);
  }
}

/// Returns "rank 1 on node3, rank 2 on node4" from the hosts of blind ranks, each with a blank
/// after it.
std::string blind_ranks(const std::vector<std::string>& blind) {
  std::vector<std::string> texts;
  for (size_t rank = 0; rank < blind.size(); ++rank)
    if (const size_t end = blind[rank].rfind(' '); end != std::string::npos)
      texts.push_back(fmt::format("rank {} on {}", rank, blind[rank].substr(0, end)));
  return fmt::format("{}", fmt::join(texts, ", "));
}

}  // namespace

void require_shared(const std::filesystem::path& folder, const std::string& host,
                    dist::Communicator& ranks, double patience_s) {
  // A single rank shares the folder with no other rank.
  if (ranks.world_size() == 1) return;
  const bool is_first = ranks.rank() == 0;
  const std::string text = dist::broadcast_text(ranks, is_first ? random_text() : std::string());
  const std::filesystem::path file = folder / (".shared-" + text);
  // Rank 0's fault first: without its file no rank could see anything.
  run_on_all(ranks, [&] {
    if (!is_first) return;
    files::Writer writer(file);
    writer.append(text);
    writer.sync();
    writer.close();
  });
  const bool sees = is_first || comes_to_hold(file, text, patience_s);
  // A blank after the host keeps it non-empty, which marks a rank that does not see the file.
  const auto blind = dist::gather_texts(ranks, sees ? std::string() : host + " ");
  const std::string first_host = dist::broadcast_text(ranks, is_first ? host : std::string());
  // The gather above ends only after every rank has looked, so the file can go.
  if (is_first) (void)fault_of([&] { files::remove_file(file); });
  if (const std::string who = blind_ranks(blind); !who.empty())
    throw Error(
        ExitCode::kConfig, "checkpoint",
        fmt::format(
            "{} is not the same folder on all ranks: files that rank 0 on {} writes are not "
            "visible to {}. Checkpoints need a folder that all hosts share: set run.project_dir to "
            "one on a network file system, mounted at the same path on every host",
            folder.string(), first_host, who))
        .everywhere();
}

void require_space(const std::filesystem::path& folder, int64_t num_bytes,
                   const std::filesystem::space_info& space) {
  constexpr auto kUnknown = static_cast<std::uintmax_t>(-1);
  // Index and state file are not in num_bytes; 1 MiB is an allowance for them.
  constexpr int64_t kForIndexAndState = int64_t{1} << 20;
  if (space.capacity == 0 || space.capacity == kUnknown || space.available == kUnknown) return;
  const auto needed = static_cast<std::uintmax_t>(num_bytes + kForIndexAndState);
  if (space.available >= needed) return;
  throw Error(ExitCode::kIo, "checkpoint",
              fmt::format("{}: a checkpoint needs {} bytes and {} are free; free space, or lower "
                          "checkpoint.keep_checkpoint_max",
                          folder.string(), needed, space.available));
}

// SaveLock: the lock file PREFIX.saving. Its name can change owner while we wait: a holder unlinks
// it, another user replaces it. So after each flock we compare the locked inode with the one that
// has the name.

constexpr int64_t kMaxJournalBytes = int64_t{1} << 20;
/// Age in seconds after which a save noted by another host counts as interrupted.
constexpr int64_t kLongestSaveS = 600;

/// Throws for a failed call. A full or failing disk is kIo, everything else kCannotCreate.
[[noreturn]] static void fail(const std::string& path, const char* call) {
  const int number = errno;
  const bool is_disk = number == ENOSPC || number == EIO || number == EDQUOT || number == EFBIG;
  throw Error(is_disk ? ExitCode::kIo : ExitCode::kCannotCreate, "checkpoint",
              fmt::format("{}: {}: {}", path, call, std::strerror(number)));
}

/// Throws for a file that exists but cannot be opened, with its owner and mode.
[[noreturn]] static void refuse_foreign(const std::string& path) {
  struct stat file {};
  (void)::stat(path.c_str(), &file);
  throw Error(ExitCode::kCannotCreate, "checkpoint",
              fmt::format("{} belongs to user {} (mode {:04o}) and cannot be read by this one, so "
                          "it is unknown whether a program of that user is saving here; if none "
                          "is, that user may remove it; or choose another prefix",
                          path, file.st_uid, file.st_mode & 07777));
}

/// Logs once per process that the file system has no locks.
static void warn_once(const std::string& path) {
  static std::atomic<bool> said = false;
  if (said.exchange(true)) return;
  log::warning("checkpoint",
               fmt::format("{}: this file system has no locks, so two programs that save under one "
                           "prefix at the same time may use the same number",
                           path));
}

/// Returns the numbers of the first line, up to the first word that is not a number.
static std::set<int64_t> numbers_in(const std::string& text) {
  std::istringstream line(text.substr(0, text.find('\n')));
  std::set<int64_t> numbers;
  for (int64_t number = 0; line >> number && number >= 0;) numbers.insert(number);
  return numbers;
}

/// Parses the holder, which starts on the second line.
static std::optional<files::LockHolder> holder_of(const std::string& text) {
  const size_t line = text.find('\n');
  return files::LockHolder::parse(
      line == std::string::npos ? std::string_view() : std::string_view(text).substr(line + 1));
}

static std::string text_of(int descriptor) {
  std::string text(static_cast<size_t>(kMaxJournalBytes), '\0');
  const ssize_t size = ::pread(descriptor, text.data(), text.size(), 0);
  text.resize(static_cast<size_t>(std::max<ssize_t>(size, 0)));
  return text;
}

SaveLock::SaveLock(const std::string& prefix, double patience_s)
    : path_(prefix + std::string(kJournalSuffix)) {
  try {
    reopen();
    is_held_ = take(patience_s);
    if (!is_held_) warn_once(path_);
    // Before reading the journal: the replacement has the same text and is ours to rewrite.
    if (!may_write_) replace_by_own();
    interrupted_ = interrupted_in(text_of(descriptor_));
    may_go_ = numbers_in(text_of(descriptor_)).empty();
  } catch (...) {
    if (descriptor_ >= 0) ::close(descriptor_);
    throw;
  }
}

/// Returns the numbers of interrupted saves. On some file systems a lock covers one host only. So a
/// recent entry of another host may be a save in progress.
std::set<int64_t> SaveLock::interrupted_in(const std::string& text) const {
  std::set<int64_t> numbers = numbers_in(text);
  const auto holder = holder_of(text);
  struct stat file {};
  if (numbers.empty() || !holder || holder->is_on_this_kernel() ||
      ::fstat(descriptor_, &file) != 0 || std::time(nullptr) - file.st_mtime >= kLongestSaveS)
    return numbers;
  log::warning(
      "checkpoint",
      fmt::format("{}: {} recorded a save {} s ago: its files are kept, as this file system's "
                  "locks may not reach other hosts (`lockstep ckpt gc` removes them)",
                  path_, holder->shown(), std::time(nullptr) - file.st_mtime));
  return {};
}

SaveLock::~SaveLock() {
  // Unlink while the lock is held: no other program can hold it yet.
  if (may_go_ && is_still_the_file()) (void)::unlink(path_.c_str());
  ::close(descriptor_);
}

/// Opens the lock file. Returns false if the file vanished between two attempts, so that the caller
/// retries.
bool SaveLock::open_once() {
  // The second try is without O_CREAT: a world-writable folder (/tmp) refuses O_CREAT for another
  // user's file.
  for (const int flags : {O_RDWR | O_CREAT, O_RDWR, O_RDONLY}) {
    descriptor_ = files::open_lock_file(path_, flags);
    may_write_ = (flags & O_RDWR) != 0;
    if (descriptor_ >= 0) return true;
    if (errno == ENOENT && (flags & O_CREAT) == 0) return false;
    if (errno != EACCES) fail(path_, "open");
  }
  if (::access(path_.c_str(), F_OK) == 0) refuse_foreign(path_);
  return false;
}

void SaveLock::reopen() {
  if (descriptor_ >= 0) ::close(descriptor_);
  const std::string folder = folder_of(path_).string();
  // If this user may not create files in the folder, retrying does not help.
  // Other programs may create and remove the file between our attempts; more rounds mean a defect.
  constexpr int kMaxRounds = 100;
  for (int round = 0; round < kMaxRounds; ++round) {
    if (open_once()) return;
    if (::faccessat(AT_FDCWD, folder.c_str(), W_OK | X_OK, AT_EACCESS) != 0) break;
  }
  throw Error(ExitCode::kCannotCreate, "checkpoint",
              fmt::format("{}: permission denied: this user (id {}) may not create files in {}, as "
                          "every save does; grant it that right, or choose another folder",
                          path_, ::geteuid(), folder));
}

/// Replaces another user's file. The old file's lock is held meanwhile. The new file is locked
/// before it gets the name, so no other program can take it in between.
void SaveLock::replace_by_own() {
  const std::string text = text_of(descriptor_);
  const std::string mine = path_ + std::string(kTemporarySuffix);
  (void)::unlink(mine.c_str());
  const int descriptor = files::open_lock_file(mine, O_RDWR | O_CREAT | O_EXCL);
  if (descriptor < 0) fail(mine, "open");
  const bool is_whole =
      ::pwrite(descriptor, text.data(), text.size(), 0) == static_cast<ssize_t>(text.size());
  if (!is_whole || (is_held_ && ::flock(descriptor, LOCK_EX | LOCK_NB) != 0) ||
      ::rename(mine.c_str(), path_.c_str()) != 0) {
    const int number = errno;
    (void)::unlink(mine.c_str());
    ::close(descriptor);
    errno = number;
    fail(path_, "replace another user's file");
  }
  ::close(descriptor_);
  descriptor_ = descriptor;
  may_write_ = true;
}

/// True if the locked file still has the name. The previous holder may have unlinked it while we
/// waited.
bool SaveLock::is_still_the_file() const {
  struct stat held {
  }, named{};
  return ::fstat(descriptor_, &held) == 0 && ::stat(path_.c_str(), &named) == 0 &&
         held.st_dev == named.st_dev && held.st_ino == named.st_ino;
}

/// Takes the lock; false on a file system without locks.
bool SaveLock::take(double patience_s) {
  const auto deadline = Clock::now() + std::chrono::duration<double>(patience_s);
  std::chrono::duration<double> pause(0.001);
  while (true) {
    if (::flock(descriptor_, LOCK_EX | LOCK_NB) == 0) {
      if (is_still_the_file()) return true;
    } else {
      if (errno == ENOSYS || errno == EOPNOTSUPP || errno == ENOLCK) return false;
      if (errno != EWOULDBLOCK && errno != EINTR) fail(path_, "flock");
    }
    if (Clock::now() > deadline) {
      const auto holder = holder_of(text_of(descriptor_));
      throw Error(ExitCode::kCannotCreate, "checkpoint",
                  fmt::format("{}: another program is still saving under this prefix ({}) after {} "
                              "s; wait for it to end, or choose another prefix",
                              path_, holder ? holder->shown() : "holder unknown", patience_s));
    }
    std::this_thread::sleep_for(pause);
    // Backs off up to 50 ms between attempts.
    pause = std::min(pause * 1.5, std::chrono::duration<double>(0.05));
    if (!is_still_the_file()) reopen();
  }
}

void SaveLock::note(const std::set<int64_t>& numbers) {
  may_go_ = false;
  const std::string text =
      fmt::format("{}\n{}", fmt::join(numbers, " "), files::LockHolder::self().file_text());
  for (size_t at = 0; at < text.size();) {
    const ssize_t count =
        ::pwrite(descriptor_, text.data() + at, text.size() - at, static_cast<off_t>(at));
    if (count < 0 && errno != EINTR) fail(path_, "write");
    at += static_cast<size_t>(std::max<ssize_t>(count, 0));
  }
  // Truncate last: while the file is too long, its first line is already the new one.
  if (::ftruncate(descriptor_, static_cast<off_t>(text.size())) != 0) fail(path_, "write");
}

static std::filesystem::path best_path(const std::string& prefix) { return prefix + ".best"; }

/// Returns the file name of a prefix.
static std::string file_name(const std::string& prefix) {
  return std::filesystem::path(prefix).filename().string();
}

void write_best(const std::string& prefix, const BestSave& best) {
  files::write_atomically(best_path(prefix),
                          fmt::format("{} {} {}\n", best.number, best.metric, best.value));
}

std::optional<BestSave> read_best(const std::string& prefix) {
  try {
    const std::optional<std::string> text = files::read_now(best_path(prefix), 4096);
    if (!text) return std::nullopt;
    std::istringstream line(*text);
    BestSave best;
    if (line >> best.number >> best.metric >> best.value) return best;
    log::warning("checkpoint",
                 best_path(prefix).string() + ": cannot be read as NUMBER METRIC VALUE");
  } catch (const Error& fault) {
    log::warning("checkpoint", fault.what());
  }
  return std::nullopt;
}

std::vector<SaveName> surplus_saves(const std::vector<SaveName>& saves, const KeepRules& rules,
                                    int64_t just_written) {
  if (rules.keep_max == -1) return {};
  const auto stays = [&](const SaveName& save) {
    return save.number == rules.best ||
           (rules.keep_every > 0 && save.number % rules.keep_every == 0);
  };
  std::vector<SaveName> surplus;
  for (const SaveName& save : saves)
    if (!stays(save) && save.number <= just_written) surplus.push_back(save);
  const auto num_kept = std::min(static_cast<size_t>(rules.keep_max), surplus.size());
  const size_t num_surplus = surplus.size() - num_kept;
  // The one just written counts among those to keep, but is never removed itself.
  std::erase_if(surplus, [&](const SaveName& save) { return save.number == just_written; });
  surplus.resize(std::min(num_surplus, surplus.size()));
  return surplus;
}

std::vector<std::string> unfinished_replacements(const std::filesystem::path& dir) {
  const CheckpointFolder folder(dir);
  std::vector<std::string> all;
  for (const std::string& staged : folder.temporary_files()) {
    const std::string index(without_temporary_suffix(staged));
    const auto save = parse_file_name(index);
    if (!save || save->rest != "index" || !folder.committed(save->prefix).empty()) continue;
    std::vector<std::string> names;
    const auto fault = fault_of([&] {
      const int32_t num_shards = decode_index(files::read(dir / staged), staged).num_shards;
      for (int32_t shard = 0; shard < num_shards; ++shard)
        names.push_back(shard_path(numbered(save->prefix, save->number), shard, num_shards));
    });
    // Only damage rules it out. An index that this user may not read may be the only checkpoint's.
    if (fault && fault->code() != ExitCode::kBadData && files::exists(dir / staged))
      throw Error(*fault);
    names.push_back(index);
    const bool is_whole = !fault && std::ranges::all_of(names, [&](const std::string& name) {
      return files::exists(dir / name) || files::exists(dir / (name + ".tmp"));
    });
    const auto state = is_whole ? read_state_file_if_sound(dir) : std::nullopt;
    const bool is_named =
        state && !state->newest.empty()
            ? std::ranges::count(named_by(*state, dir / save->prefix), save->number,
                                 &SaveName::number) > 0
            : files::exists(dir / kStateFile);  // unreadable, so it may name this one
    if (is_whole && is_named) all.insert(all.end(), names.begin(), names.end());
  }
  return all;
}

/// Finishes the replacement of DIR/model.ckpt and returns true, or false if there is none. No other
/// program may be saving.
static bool finish_replacement(const std::string& prefix) {
  const std::filesystem::path dir = folder_of(prefix);
  bool is_finished = false;
  for (const std::string& name : unfinished_replacements(dir)) {
    const FileName file = parse_file_name(name).value();
    const std::filesystem::path staged = dir / (name + ".tmp");
    // A rank that died later has already renamed its shard.
    if (file.prefix != file_name(prefix) || !files::exists(staged)) continue;
    is_finished = file.rest == "index";
    // The index must not reach the disk before the names of the shards.
    if (is_finished) files::sync_folder(dir);
    files::rename_file(staged, dir / name);
  }
  return is_finished;
}

void remove_remains(const std::string& prefix, const std::set<int64_t>& numbers) {
  if (numbers.empty()) return;
  (void)finish_replacement(prefix);
  const std::filesystem::path dir = folder_of(prefix);
  const CheckpointFolder folder(dir);
  std::vector<std::string> names;
  for (const std::string& name : folder.temporary_files()) {
    const auto parts = parse_file_name(without_temporary_suffix(name));
    if (parts && parts->prefix == file_name(prefix) && numbers.contains(parts->number))
      names.push_back(name);
  }
  // A committed checkpoint keeps its shards; only its temporary files go.
  for (const int64_t number : numbers)
    if (const SaveFiles* save = folder.find(numbered(prefix, number));
        save != nullptr && !save->has_index)
      names.insert(names.end(), save->names.begin(), save->names.end());
  std::optional<Error> first;
  for (const std::string& name : names) {
    const auto fault = fault_of([&] { files::remove_file(dir / name); });
    if (!first) first = fault;  // the others are removed anyway
  }
  if (first) throw Error(*first);
}

/// Returns the state file with `restored` at its place among the existing checkpoints that it
/// names.
static StateFile with_save(const StateFile& before, const std::string& prefix, int64_t restored) {
  std::set<int64_t> numbers{restored};
  for (const SaveName& save : named_by(before, prefix))
    if (files::exists(index_path(save.prefix))) numbers.insert(save.number);
  StateFile after{.newest = {}, .all = others_in(before, prefix)};
  for (const int64_t number : numbers) after.all.push_back(file_name(numbered(prefix, number)));
  // The highest number becomes the newest, as the killed program would have written.
  after.newest = after.all.back();
  return after;
}

void finish_replacements(const std::filesystem::path& dir) {
  if (files::is_remote(dir)) return finish_commits(dir);
  for (const std::string& name : unfinished_replacements(dir)) {
    const FileName save = parse_file_name(name).value();
    if (save.rest != "index") continue;
    bool is_finished = false;
    const auto fault = fault_of([&] {
      const SaveLock lock((dir / save.prefix).string(), /*patience_s=*/0);
      if (!lock.excludes_others())
        throw Error(ExitCode::kCannotCreate, "checkpoint", "another program may be saving");
      is_finished = finish_replacement((dir / save.prefix).string());
    });
    if (!fault && !is_finished) continue;  // its program has just done so itself
    const std::string what =
        fault ? "is being replaced, or the save that did it was killed; run this again to finish "
                "it: " +
                    plain_text(*fault)
              : "finished the save that was killed while it replaced this checkpoint";
    log::warning("checkpoint", fmt::format("{}: {}", (dir / name).string(), what));
  }
}

void tidy_interrupted(const std::string& prefix, int64_t restored) {
  const auto fault = fault_of([&] {
    if (files::is_remote(prefix)) {
      constexpr double kADayS = 86'400;
      (void)abort_old_uploads(prefix, kADayS, /*dry_run=*/false);
      return;
    }
    if (!std::filesystem::exists(prefix + std::string(kJournalSuffix))) return;
    // No patience: another program that is saving does this work itself.
    const SaveLock lock(prefix, /*patience_s=*/0);
    if (!lock.is_held() || lock.interrupted().empty()) return;
    remove_remains(prefix, lock.interrupted());
    change_state_file(std::filesystem::path(prefix).parent_path(),
                      [&](const StateFile& before) { return with_save(before, prefix, restored); });
  });
  if (fault)
    log::warning("checkpoint",
                 fmt::format("files of an interrupted save are kept until the next save: {}",
                             plain_text(*fault)));
}

}  // namespace lockstep::checkpoint
