#include "checkpoint/verify.h"

#include <algorithm>
#include <filesystem>
#include <map>

#include <fmt/format.h>

#include "base/digest.h"
#include "base/error.h"
#include "base/files.h"
#include "checkpoint/bundle_reader.h"
#include "checkpoint/index_table.h"
#include "checkpoint/rank_faults.h"
#include "checkpoint/save_files.h"
#include "checkpoint/tensor_type.h"

namespace lockstep::checkpoint {
namespace {

/// What lies in one shard, in order of offsets. Empty tensors take no place.
using Extents = std::multimap<int64_t, std::string>;

std::vector<Extents> extents_of(const BundleIndex& index) {
  std::vector<Extents> shards(static_cast<size_t>(index.num_shards));
  for (const auto& [name, entry] : index.entries)
    if (!entry.sliced && entry.num_bytes > 0)
      shards[static_cast<size_t>(entry.shard)].emplace(entry.offset, name);
  return shards;
}

int64_t expected_bytes(const BundleIndex& index, const Extents& extents) {
  int64_t end = 0;
  for (const auto& [offset, name] : extents) end = std::max(end, index.entries.at(name).end());
  return end;
}

/// A defect in words, or nothing if the size is right. Throws what opening the shard throws.
std::optional<std::string> size_defect(BundleReader* reader, int32_t shard,
                                       const Extents& extents) {
  const int64_t expected = expected_bytes(reader->index(), extents);
  const int64_t found = reader->shard_bytes(shard);
  if (found == expected) return std::nullopt;
  return fmt::format("{}: has {} bytes, its index needs {} ({})",
                     shard_path(reader->prefix(), shard, reader->index().num_shards), found,
                     expected, found < expected ? "truncated" : "bytes after the last tensor");
}

/// Collects defects of one save.
class Verification {
 public:
  explicit Verification(const std::string& prefix) : prefix_(prefix) {}

  std::vector<std::string> run() {
    guarded([&] { reader_.emplace(prefix_); });
    if (!reader_) return std::move(defects_);
    check_frame();
    check_extra_files();
    const std::vector<Extents> shards = extents_of(reader_->index());
    for (int32_t shard = 0; shard < reader_->index().num_shards; ++shard)
      guarded([&] { check_shard(shard, shards[static_cast<size_t>(shard)]); });
    for (const auto& item : reader_->index().entries)
      if (item.second.num_bytes == 0 || item.second.sliced)
        guarded([&] { check_values(item.first); });
    return std::move(defects_);
  }

 private:
  /// A file that is missing or bad is a defect; a fault of the machine is not.
  template <typename Body>
  void guarded(Body body) {
    try {
      body();
    } catch (const Error& fault) {
      if (fault.code() != ExitCode::kBadData && fault.code() != ExitCode::kInputMissing) throw;
      defects_.push_back(plain_text(fault));
    }
  }

  /// Block checksums leave the footer and the metaindex block's place open, so the whole file must
  /// come out again.
  void check_frame() {
    const std::string bytes = files::read(index_path(prefix_));
    if (encode_table(decode_table(bytes)) != bytes)
      defects_.push_back(fmt::format("{}: bytes outside the checked blocks are not as written",
                                     index_path(prefix_)));
  }

  void check_extra_files() {
    const std::filesystem::path path(prefix_);
    const int32_t num_shards = reader_->index().num_shards;
    for (const std::string& name :
         files::list(path.parent_path().empty() ? "." : path.parent_path())) {
      if (!name.starts_with(path.filename().string() + ".data-")) continue;
      bool expected = false;
      for (int32_t shard = 0; shard < num_shards && !expected; ++shard)
        expected = name == std::filesystem::path(shard_path(prefix_, shard, num_shards)).filename();
      if (!expected)
        defects_.push_back(
            fmt::format("{}: does not belong to this save", (path.parent_path() / name).string()));
    }
  }

  void check_shard(int32_t shard, const Extents& extents) {
    const auto wrong_size = size_defect(&*reader_, shard, extents);
    if (wrong_size) defects_.push_back(*wrong_size);
    int64_t at = 0;
    for (const auto& [offset, name] : extents) {
      if (offset < at)
        defects_.push_back(
            fmt::format("{}: tensor '{}' overlaps the one before", shard_name(shard), name));
      else
        check_gap(shard, at, std::min(offset, reader_->shard_bytes(shard)));
      at = std::max(at, reader_->index().entries.at(name).end());
      guarded([&, tensor = name] { check_values(tensor); });
    }
  }

  void check_gap(int32_t shard, int64_t begin, int64_t end) {
    bool zero = true;
    reader_->for_each_piece(shard, begin, end, [&](std::string_view piece) {
      zero = zero && piece.find_first_not_of('\0') == std::string_view::npos;
    });
    if (!zero)
      defects_.push_back(fmt::format("{}: bytes {} to {} between tensors are not zero",
                                     shard_name(shard), begin, end));
  }

  void check_values(const std::string& name) {
    const BundleEntry& entry = *reader_->find(name);
    if (entry.dtype == kStringType || entry.sliced || scalar_type(entry.dtype) == at::kBool) {
      entry.dtype == kStringType ? void(reader_->read_strings(name)) : void(reader_->read(name));
      return;
    }
    if (entry.end() > reader_->shard_bytes(entry.shard))
      reader_->refuse(name, "lies beyond the end of the file");
    uint32_t crc = 0;
    reader_->for_each_piece(name, [&](std::string_view piece) { crc = crc32c(piece, crc); });
    if (masked_crc32c(crc) != entry.masked_crc) reader_->refuse(name, "wrong crc32c (damaged)");
  }

  std::string shard_name(int32_t shard) const {
    return shard_path(prefix_, shard, reader_->index().num_shards);
  }

  const std::string prefix_;
  std::optional<BundleReader> reader_;
  std::vector<std::string> defects_;
};

}  // namespace

std::vector<std::string> verify(const std::string& prefix) { return Verification(prefix).run(); }

std::optional<std::string> quick_defect(const std::string& prefix) {
  try {
    BundleReader reader(prefix);
    const std::vector<Extents> shards = extents_of(reader.index());
    for (int32_t shard = 0; shard < reader.index().num_shards; ++shard)
      if (auto defect = size_defect(&reader, shard, shards[static_cast<size_t>(shard)]))
        return defect;
    return std::nullopt;
  } catch (const Error& fault) {
    return plain_text(fault);
  }
}

}  // namespace lockstep::checkpoint
