// Two threads write 4 MiB chunks of the staged image with direct I/O as soon as the watermark
// passes them.
#include "checkpoint/save/shard_file.h"

#include <algorithm>
#include <string>
#include <system_error>

#include <fmt/format.h>

#include "base/digest.h"
#include "base/error.h"
#include "base/files/files.h"

namespace lockstep::checkpoint {
namespace {

constexpr int64_t kChunkBytes = int64_t{4} << 20;
constexpr int kNumThreads = 2;  // one prepares its next write while the disk works on the other's

}  // namespace

ShardFile::ShardFile(const std::filesystem::path& path, StagedShard* staged)
    : staged_(staged), file_(path, staged->num_bytes()) {
  const auto num_chunks =
      (static_cast<int64_t>(staged->padded_bytes().size()) + kChunkBytes - 1) / kChunkBytes;
  try {
    for (int64_t i = 0; i < std::min<int64_t>(kNumThreads, num_chunks); ++i)
      threads_.emplace_back([this] { write_chunks(); });
  } catch (const std::system_error&) {
  }  // thread limit reached: the existing threads write, and finish() does
}

ShardFile::~ShardFile() {
  stopped_ = true;
  // Wakes writers that wait for bytes which will never come.
  staged_->level().give_up();
  join();
}

void ShardFile::join() {
  for (std::thread& thread : threads_) thread.join();
  threads_.clear();
}

void ShardFile::write_chunks() {
  const std::span<const char> bytes = staged_->padded_bytes();
  const auto num_bytes = static_cast<int64_t>(bytes.size());
  try {
    while (!stopped_) {
      // Each chunk is claimed by exactly one thread.
      const int64_t begin = next_.fetch_add(kChunkBytes);
      if (begin >= num_bytes) return;
      const int64_t end = std::min(begin + kChunkBytes, num_bytes);
      if (!staged_->level().wait_for(end)) return;
      file_.write(begin,
                  bytes.subspan(static_cast<size_t>(begin), static_cast<size_t>(end - begin)));
    }
  } catch (...) {
    const std::lock_guard lock(mutex_);
    if (!fault_) fault_ = std::current_exception();
    // The other threads stop too; finish() throws the first fault.
    stopped_ = true;
  }
}

void ShardFile::finish() {
  write_chunks();  // chunks that no thread has claimed
  join();
  if (fault_) std::rethrow_exception(fault_);
  file_.finish();
}

void require_written(const std::filesystem::path& path,
                     const std::vector<StagedShard::Slot>& slots) {
  const files::Reader file(path);
  std::string bytes;
  for (const StagedShard::Slot& slot : slots) {
    const int64_t end = slot.slice.end();
    uint32_t crc = 0;
    bool same_text = true;
    for (int64_t at = slot.slice.offset; at < end; at += kChunkBytes) {
      bytes.resize(static_cast<size_t>(std::min(kChunkBytes, end - at)));
      file.read_at(at, bytes);
      crc = crc32c(bytes, crc);
      // A text's crc is not that of its bytes (see string_tensor.h), so texts are compared byte by
      // byte.
      if (slot.piece->is_text())
        same_text = same_text && slot.text.compare(static_cast<size_t>(at - slot.slice.offset),
                                                   bytes.size(), bytes) == 0;
    }
    if (slot.piece->is_text() ? same_text : masked_crc32c(crc) == slot.slice.masked_crc) continue;
    throw Error(ExitCode::kBadData, "checkpoint",
                fmt::format("{}: '{}' at byte {} does not read back as it was written; the disk or "
                            "its path is not to be trusted",
                            path.string(), slot.piece->name, slot.slice.offset));
  }
}

}  // namespace lockstep::checkpoint
