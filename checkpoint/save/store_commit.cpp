#include "checkpoint/save/store_commit.h"

#include <algorithm>
#include <ctime>
#include <exception>
#include <mutex>
#include <random>
#include <set>
#include <utility>

#include <fmt/format.h>

#include "base/error.h"
#include "base/files/files.h"
#include "base/log.h"
#include "checkpoint/format/checkpoint_files.h"
#include "checkpoint/format/rank_faults.h"
#include "checkpoint/proto/store_commit.pb.h"

namespace lockstep::checkpoint {
namespace {

std::string record_path(const std::string& prefix) { return prefix + std::string(kRecordSuffix); }

/// Returns a name that no other process has.
std::string random_name() {
  std::random_device source;
  return fmt::format("{:08x}{:08x}", source(), source());
}

/// Completes a shard's upload. True if the shard is there with its size afterwards.
bool complete_shard(files::WritableStore& store, const std::string& path,
                    const pb::StoreCommit::Shard& shard) {
  std::vector<files::SentPart> parts;
  for (int i = 0; i < shard.part_tags_size(); ++i)
    parts.push_back({shard.part_tags(i), shard.part_crcs(i)});
  if (store.complete({.path = path, .id = shard.upload_id()}, parts)) return true;
  // Unknown to the store: completed before, here or by another program.
  const std::optional<files::FileFacts> facts = store.look_at(path);
  return facts && facts->num_bytes == shard.num_bytes();
}

/// Completes a commit whose record is there. False if its parts are gone.
bool finish_commit(files::WritableStore& store, const std::string& prefix) {
  const auto record = store.read_now(record_path(prefix));
  pb::StoreCommit commit;
  if (!record || !commit.ParseFromString(record->bytes)) return false;
  for (int i = 0; i < commit.shards_size(); ++i)
    if (!complete_shard(store, shard_path(prefix, i, commit.shards_size()), commit.shards(i)))
      return false;
  (void)store.put(index_path(prefix), commit.index(), "");
  return true;
}

}  // namespace

/// Object that is sent in parts.
class StoreCommit::PartSink final : public ShardSink {
 public:
  PartSink(StoreCommit* save, int64_t num_bytes) : save_(*save), num_bytes_(num_bytes) {
    // At least the 5 MiB that stores require, and at most 10,000 parts.
    constexpr int64_t kChunk = StagingBuffer::kChunkBytes, kMostParts = 9'999;
    stride_ = std::max<int64_t>(2, num_bytes / (kMostParts * kChunk) + 1) * kChunk;
    save_.parts_.resize(
        static_cast<size_t>(std::max<int64_t>(1, (num_bytes + stride_ - 1) / stride_)));
  }

  int64_t stride() const override { return stride_; }
  // While the store checks a part, other connections fill the link: 4 took 0.88 of 1 Gbit/s, 8 took
  // 0.95.
  int num_threads() const override { return 8; }

  void write(int64_t offset, const std::vector<std::span<const char>>& chunks) override {
    std::vector<std::string_view> texts;
    int64_t at = offset;
    for (const std::span<const char>& chunk : chunks) {  // without the padding
      const int64_t size = std::min<int64_t>(static_cast<int64_t>(chunk.size()), num_bytes_ - at);
      texts.emplace_back(chunk.data(), static_cast<size_t>(size));
      at += size;
    }
    begin_once();
    const int64_t number = offset / stride_;
    save_.parts_.at(static_cast<size_t>(number)) =
        save_.store_.send_part(*save_.upload_, number + 1, texts);
  }

  void finish() override {
    begin_once();
    // A shard without a byte is one empty part.
    if (num_bytes_ == 0) save_.parts_.at(0) = save_.store_.send_part(*save_.upload_, 1, {});
  }

 private:
  void begin_once() {
    // Each try takes the store's whole time limit, so a fault counts for all threads.
    std::call_once(begun_, [&] {
      try {
        save_.upload_ = save_.store_.begin_upload(save_.shard_);
      } catch (...) {
        not_begun_ = std::current_exception();
      }
    });
    if (not_begun_) std::rethrow_exception(not_begun_);
  }

  StoreCommit& save_;
  const int64_t num_bytes_;
  int64_t stride_;
  std::once_flag begun_;
  std::exception_ptr not_begun_;
};

StoreCommit::StoreCommit(std::string prefix, int rank, int num_ranks)
    : store_(files::writable_store_of(prefix)),
      prefix_(std::move(prefix)),
      shard_(shard_path(prefix_, rank, num_ranks)),
      record_path_(record_path(prefix_)) {}

StoreCommit::~StoreCommit() {
  // Parts that no record names would stay forever.
  if (upload_) (void)fault_of([&] { store_.abort(*upload_); });
}

void StoreCommit::begin() {
  if (const auto record = store_.read_now(record_path_)) replaced_record_ = record->version;
}

std::unique_ptr<ShardSink> StoreCommit::shard_sink(int64_t num_bytes) {
  num_bytes_ = num_bytes;
  return std::make_unique<PartSink>(this, num_bytes);
}

std::string StoreCommit::ticket() const {
  pb::StoreCommit::Shard shard;
  shard.set_upload_id(upload_->id);
  shard.set_num_bytes(num_bytes_);
  for (const files::SentPart& part : parts_) {
    shard.add_part_tags(part.tag);
    shard.add_part_crcs(part.crc32c);
  }
  return shard.SerializeAsString();
}

bool StoreCommit::decide(const std::vector<std::string>& tickets, const std::string& index) {
  pb::StoreCommit commit;
  for (const std::string& ticket : tickets)
    check(commit.add_shards()->ParseFromString(ticket), "a rank's ticket cannot be read");
  commit.set_index(index);
  index_ = index;
  record_ = commit.SerializeAsString();
  try {
    (void)store_.put(record_path_, record_, replaced_record_);
  } catch (const files::WriteConflict&) {
    throw Error(ExitCode::kIo, "checkpoint",
                fmt::format("another program has saved {} meanwhile: give each run its own "
                            "checkpoint.prefix",
                            prefix_));
  }
  store_.forget(prefix_);
  // While shards are replaced, no reader may trust an old index of this number.
  const bool is_replaced = store_.look_at(index_path(prefix_)).has_value();
  if (is_replaced) store_.remove(index_path(prefix_));
  return is_replaced;
}

void StoreCommit::publish_shard() {
  if (!store_.complete(*upload_, parts_)) {
    // Perhaps another program has completed it already, from the record.
    const std::optional<files::FileFacts> facts = store_.look_at(shard_);
    if (!facts || facts->num_bytes != num_bytes_)
      throw Error(ExitCode::kIo, "checkpoint",
                  shard_ + ": the store has lost the parts that it received");
  }
  upload_.reset();
  is_published_ = true;
}

void StoreCommit::publish_index() { (void)store_.put(index_path(prefix_), index_, ""); }

void StoreCommit::take_back_record() {
  if (record_.empty()) return;
  // The record first: without it no program completes this save.
  const auto record = store_.read_now(record_path_);
  if (!record || record->bytes != record_) return;
  store_.remove(record_path_);
  const auto index = store_.read_now(index_path(prefix_));
  if (index && index->bytes == index_) store_.remove(index_path(prefix_));
}

void StoreCommit::take_back_shard() {
  if (is_published_) store_.remove(shard_);
}

/// Tries whether the store takes files of this prefix.
static void try_store(const std::string& prefix, int rank) {
  files::WritableStore& store = files::writable_store_of(prefix);
  const std::string probe = fmt::format("{}.probe-{}", prefix, random_name());
  store.abort(store.begin_upload(probe));
  if (rank > 0) return;
  bool is_refused = false;
  (void)store.put(probe, "1", "");
  try {
    (void)store.put(probe, "2", "");
  } catch (const files::WriteConflict&) {
    is_refused = true;
  }
  store.remove(probe);
  if (!is_refused)
    throw Error(ExitCode::kConfig, "checkpoint",
                fmt::format("{}: this store ignores conditions of writes (If-None-Match), without "
                            "which two runs could destroy each other's checkpoints: use a store or "
                            "a newer version of it that knows them",
                            prefix));
}

void require_store(const std::string& prefix, int rank) {
  try {
    try_store(prefix, rank);
  } catch (const files::NoPermission& fault) {
    throw Error(fault.code(), "checkpoint",
                fmt::format("{}: cannot be written: {}", prefix, plain_text(fault)));
  }
}

void finish_commits(const std::filesystem::path& dir) {
  if (!files::is_remote(dir)) return;
  files::WritableStore& store = files::writable_store_of(dir);
  store.forget((dir / "").string());
  const CheckpointFolder folder(dir);
  for (const std::string& prefix : folder.undone()) {
    bool is_finished = false;
    const auto fault = fault_of([&] { is_finished = finish_commit(store, prefix); });
    if (fault)
      log::warning("checkpoint",
                   fmt::format("{} is being saved, or the save that did it was killed; run this "
                               "again to finish it: {}",
                               prefix, plain_text(*fault)));
    else if (is_finished)
      log::warning("checkpoint",
                   fmt::format("{}: finished the commit that its program had begun", prefix));
  }
}

std::vector<std::string> abort_old_uploads(const std::string& beginning, double min_age_s,
                                           bool dry_run) {
  files::WritableStore& store = files::writable_store_of(beginning);
  const std::vector<files::Upload> uploads = store.uploads(beginning);
  std::set<std::string> named;  // by records
  if (!uploads.empty())
    for (const files::FileFacts& facts : store.list(beginning)) {
      if (!facts.path.ends_with(kRecordSuffix)) continue;
      const auto record = store.read_now(facts.path);
      pb::StoreCommit commit;
      if (!record || !commit.ParseFromString(record->bytes)) continue;
      for (const auto& shard : commit.shards()) named.insert(shard.upload_id());
    }
  std::vector<std::string> aborted;
  const auto now_s = static_cast<double>(std::time(nullptr));
  for (const files::Upload& upload : uploads) {
    // Without a time its age is unknown.
    const bool is_old =
        upload.begun_s > 0 && now_s - static_cast<double>(upload.begun_s) >= min_age_s;
    if (!is_old || named.contains(upload.id)) continue;
    const std::string name = std::filesystem::path(upload.path).filename().string();
    if (!parse_file_name(name)) continue;  // not a checkpoint's
    if (!dry_run) store.abort(upload);
    aborted.push_back(upload.path);
  }
  return aborted;
}

}  // namespace lockstep::checkpoint
