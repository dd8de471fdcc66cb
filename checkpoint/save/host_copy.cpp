#include "checkpoint/save/host_copy.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <utility>

#include <sys/stat.h>

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/digest.h"
#include "base/error.h"
#include "base/files/files.h"
#include "base/process.h"
#include "base/text.h"
#include "checkpoint/format/bundle_index.h"
#include "checkpoint/format/checkpoint_files.h"
#include "checkpoint/format/rank_faults.h"
#include "checkpoint/save/checkpoint_folder.h"

namespace lockstep::checkpoint {
namespace {

std::string temporary(const std::string& path) { return path + std::string(kTemporarySuffix); }

std::string name_of(const std::string& path) {
  return std::filesystem::path(path).filename().string();
}

/// Identifies a folder among those of all hosts.
std::string identity_of(const std::filesystem::path& folder) {
  struct stat facts {};
  if (::stat(folder.c_str(), &facts) != 0) return "";
  return fmt::format("{} {} {}", first_line("/proc/sys/kernel/random/boot_id"), facts.st_dev,
                     facts.st_ino);
}

/// Lists this host's committed checkpoints, one a line:
/// NUMBER/SHA256/NUM_SHARDS/NAME/BYTES/NAME/BYTES...
std::string list_copies(const std::string& prefix) {
  std::string lines;
  const CheckpointFolder folder(folder_of(prefix));
  const auto by_number = folder.saves().find(name_of(prefix));
  if (by_number == folder.saves().end()) return lines;
  for (const auto& [number, save] : by_number->second) {
    if (!save.has_index) continue;
    const std::string path = index_path(numbered(prefix, number));
    // A damaged one has no copy; the others count.
    (void)fault_of([&, number_ = number, &save_ = save] {
      const std::string bytes = files::read(path);
      std::string line =
          fmt::format("{}/{}/{}", number_, sha256_hex(bytes), decode_index(bytes, path).num_shards);
      for (const std::string& name : save_.names)
        line += fmt::format("/{}/{}", name, std::filesystem::file_size(folder_of(prefix) / name));
      lines += line + '\n';
    });
  }
  return lines;
}

/// Adds a row of list_copies(), from one of the ranks.
void add_row(const std::string& prefix, const std::string& row, size_t rank, size_t num_ranks,
             std::map<std::pair<int64_t, std::string>, HostCopies>* found) {
  const std::vector<std::string> words = split(row, '/');
  const int64_t number = std::stoll(words.at(0));
  HostCopies& copies = (*found)[{number, words.at(1)}];
  if (copies.names.empty()) {
    copies.number = number;
    copies.index_sha256 = words[1];
    copies.of_ranks_N.resize(num_ranks);
    const std::string save = numbered(prefix, number);
    const int num_shards = std::stoi(words.at(2));
    for (int shard = 0; shard < num_shards; ++shard)
      copies.names.push_back(name_of(shard_path(save, shard, num_shards)));
    copies.names.push_back(name_of(index_path(save)));
    copies.sizes.resize(copies.names.size());
  }
  for (size_t i = 3; i + 1 < words.size(); i += 2) {
    copies.of_ranks_N[rank].insert(words[i]);
    const auto place = std::ranges::find(copies.names, words[i]) - copies.names.begin();
    if (place < std::ssize(copies.names))
      copies.sizes[static_cast<size_t>(place)] = std::stoll(words[i + 1]);
  }
  const std::string mark = numbered(prefix, number) + std::string(kRecordSuffix);
  copies.is_stored = copies.is_stored || copies.of_ranks_N[rank].contains(name_of(mark));
}

bool is_complete(const HostCopies& copies) {
  return std::ranges::all_of(copies.names, [&](const std::string& name) {
    return std::ranges::any_of(copies.of_ranks_N,
                               [&](const auto& names) { return names.contains(name); });
  });
}

/// Copies one file from rank `holder` to the ranks for which `receives` is true. Collective.
std::optional<Error> send_file(const std::filesystem::path& path, int holder, bool receives,
                               dist::Communicator& comm) {
  std::optional<files::Reader> from;
  std::optional<files::WholeFile> to;
  std::optional<Error> fault = fault_of([&] {
    if (comm.rank() == holder) from.emplace(path);
    if (receives) to.emplace(path);
  });
  const at::Tensor num_bytes = at::full({1}, from ? from->num_bytes() : 0, at::kLong);
  comm.broadcast(num_bytes, holder);
  constexpr int64_t kMessageBytes = int64_t{8} << 20;
  const at::Tensor buffer = at::empty({kMessageBytes}, at::kByte);
  const auto end = num_bytes.item<int64_t>();
  // A rank with a fault still takes part, since the others wait for it.
  for (int64_t at = 0; at < end; at += kMessageBytes) {
    const at::Tensor piece = buffer.narrow(0, 0, std::min(kMessageBytes, end - at));
    const std::span<char> bytes(static_cast<char*>(piece.mutable_data_ptr()),
                                static_cast<size_t>(piece.numel()));
    if (from && !fault) fault = fault_of([&] { from->read_at(at, bytes); });
    comm.broadcast(piece, holder);
    if (to && !fault) fault = fault_of([&] { to->append({bytes.data(), bytes.size()}); });
  }
  if (auto shared = shared_fault(comm, fault)) return shared;
  return shared_fault(comm, fault_of([&] {
                        if (to) to->publish(/*durably=*/true);
                      }));
}

}  // namespace

HostCopy::HostCopy(std::string prefix, int rank, int num_ranks, StagedShard* staged)
    : prefix_(std::move(prefix)),
      shard_(shard_path(prefix_, rank, num_ranks)),
      num_bytes_(staged->num_bytes()) {
  files::make_folders(folder_of(prefix_));
  writer_.emplace(file_sink(temporary(shard_), staged->num_bytes()), staged);
}

HostCopy::~HostCopy() {
  writer_.reset();
  if (is_published_) return;
  for (const std::string& path : {temporary(shard_), entries_path(shard_)})
    (void)fault_of([&] { files::remove_file(path); });
  // Otherwise a shard of this name belongs to an older copy.
  if (is_renamed_) (void)fault_of([&] { files::remove_file(shard_); });
}

void HostCopy::finish() {
  writer_->finish();
  writer_.reset();
  // All ranks of this host have reserved their space by now. Logs and exports need some too.
  std::error_code unknown;
  const std::filesystem::space_info space = std::filesystem::space(folder_of(prefix_), unknown);
  if (!unknown && space.capacity > 0 && space.available < static_cast<std::uintmax_t>(num_bytes_))
    throw Error(
        ExitCode::kIo, "checkpoint",
        fmt::format("{}: {} bytes would be left free, fewer than this rank's copy takes ({})",
                    folder_of(prefix_).string(), space.available, num_bytes_));
}

bool HostCopy::is_there(const std::string& index) const {
  return files::exists(shard_) && files::exists(index_path(prefix_)) &&
         files::read(index_path(prefix_)) == index;
}

void HostCopy::remove_older() const { CheckpointFolder(folder_of(prefix_)).remove(prefix_); }

void HostCopy::publish_shard() {
  files::rename_file(temporary(shard_), shard_);
  is_renamed_ = true;
}

void HostCopy::publish_index(const std::string& index) {
  // Each rank has its own temporary file; the last rename replaces equal bytes.
  files::Writer file(entries_path(shard_));
  file.append(index);
  file.sync();
  file.close();
  files::rename_file(entries_path(shard_), index_path(prefix_));
  is_published_ = true;
}

void HostCopy::remove_others() const {
  const std::filesystem::path dir = folder_of(prefix_);
  const std::string name = parse_save_name(prefix_).value().prefix;
  const CheckpointFolder folder(dir);
  if (const auto own = folder.saves().find(name); own != folder.saves().end())
    for (const auto& [number, save] : own->second)
      if (const std::string other = numbered((dir / name).string(), number); other != prefix_)
        folder.remove(other);
  // No rank is writing here any more.
  for (const std::string& file : folder.temporary_files())
    if (file.starts_with(name + "-")) files::remove_file(dir / file);
}

void mark_stored(const std::string& prefix) {
  (void)fault_of([&] {
    if (files::exists(index_path(prefix)))
      files::Writer(prefix + std::string(kRecordSuffix)).close();
  });
}

std::vector<HostCopies> find_host_copies(const std::string& prefix, dist::Communicator& comm) {
  std::string lines;
  (void)fault_of([&] {
    files::make_folders(folder_of(prefix));  // by which ranks of a host know each other
    lines = list_copies(prefix);             // what cannot be read is no copy
  });
  const std::vector<std::string> of_ranks =
      dist::gather_texts(comm, identity_of(folder_of(prefix)) + '\n' + lines);
  std::vector<int> first_of_hosts_N;
  std::vector<std::string> folders;
  std::map<std::pair<int64_t, std::string>, HostCopies> found;  // by number and digest
  for (size_t rank = 0; rank < of_ranks.size(); ++rank) {
    const std::vector<std::string> rows = split(of_ranks[rank]);
    // A rank without a folder is a host of its own.
    folders.push_back(rows.at(0).empty() ? fmt::format("rank {}", rank) : rows[0]);
    first_of_hosts_N.push_back(
        static_cast<int>(std::ranges::find(folders, folders.back()) - folders.begin()));
    for (size_t i = 1; i < rows.size(); ++i)
      if (!rows[i].empty()) add_row(prefix, rows[i], rank, of_ranks.size(), &found);
  }
  std::vector<HostCopies> complete;
  for (auto& [key, copies] : found) {
    copies.first_of_hosts_N = first_of_hosts_N;
    if (is_complete(copies)) complete.push_back(std::move(copies));
  }
  return complete;
}

std::optional<Error> complete_on_each_host(const std::string& prefix, const HostCopies& copies,
                                           dist::Communicator& comm) {
  const std::filesystem::path dir = folder_of(prefix);
  const auto rank = static_cast<size_t>(comm.rank());
  const std::set<std::string>& here = copies.of_ranks_N.at(rank);
  const bool writes = copies.first_of_hosts_N.at(rank) == comm.rank();
  const std::string save = numbered(prefix, copies.number);
  const auto own = fault_of([&] {
    if (!writes) return;
    int64_t num_bytes = 0;
    for (size_t i = 0; i < copies.names.size(); ++i)
      if (!here.contains(copies.names[i])) num_bytes += copies.sizes[i];
    if (num_bytes > 0) require_space(dir, num_bytes, std::filesystem::space(dir));
    // Files of another save of this number must not mix with these.
    if (here.empty() && files::exists(index_path(save)) &&
        sha256_hex(files::read(index_path(save))) != copies.index_sha256)
      CheckpointFolder(dir).remove(save);
  });
  if (auto fault = shared_fault(comm, own)) return fault;
  for (const std::string& name : copies.names) {
    const auto has = [&](const std::set<std::string>& names) { return names.contains(name); };
    if (std::ranges::all_of(copies.of_ranks_N, has)) continue;
    const auto holder = std::ranges::find_if(copies.of_ranks_N, has) - copies.of_ranks_N.begin();
    if (auto fault = send_file(dir / name, static_cast<int>(holder), writes && !has(here), comm))
      return fault;
  }
  return std::nullopt;
}

}  // namespace lockstep::checkpoint
