// Verification for `lockstep ckpt verify`, and the quick check by sizes. verify() covers all bytes:
// blocks and frame of the index, tensors, and the gaps between them.
#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "base/error.h"
#include "checkpoint/format/bundle_encoding.h"
#include "checkpoint/format/bundle_reader.h"
#include "checkpoint/format/checkpoint_files.h"
#include "checkpoint/format/rank_faults.h"
#include "checkpoint/format/saved_values.h"
#include "checkpoint/restore.h"

namespace lockstep::checkpoint {

namespace {

/// A tensor or slice in a shard.
struct Extent {
  const std::string* name = nullptr;
  size_t slice = 0;
  int64_t end = 0;
};

/// Extents of one shard by offset. Empty tensors have none.
using Extents = std::multimap<int64_t, Extent>;

/// Returns the extents of all shards by offset.
std::vector<Extents> extents_of(const BundleIndex& index) {
  std::vector<Extents> shards(static_cast<size_t>(index.num_shards));
  const auto add = [&](const BundlePlace& place, const Extent& extent) {
    if (place.num_bytes > 0) shards[static_cast<size_t>(place.shard)].emplace(place.offset, extent);
  };
  for (const auto& [name, entry] : index.entries) {
    if (!entry.is_sliced()) add(entry, {&name, 0, entry.end()});
    for (size_t i = 0; i < entry.slices.size(); ++i)
      add(entry.slices[i], {&name, i, entry.slices[i].end()});
  }
  return shards;
}

/// Returns the defect as text; nullopt if the size is right. Throws what opening the shard throws.
std::optional<std::string> size_defect(BundleReader* reader, int32_t shard,
                                       const Extents& extents) {
  int64_t expected = 0;  // the end of the last extent
  for (const auto& [offset, extent] : extents) expected = std::max(expected, extent.end);
  const int64_t found = reader->shard_bytes(shard);
  if (found == expected) return std::nullopt;
  return fmt::format("{}: has {} bytes, its index needs {} ({})",
                     shard_path(reader->prefix(), shard, reader->index().num_shards), found,
                     expected, found < expected ? "truncated" : "bytes after the last tensor");
}

/// Collector of one checkpoint's defects.
class Verification {
 public:
  explicit Verification(const std::string& prefix) : prefix_(prefix) {}

  std::vector<std::string> run() {
    guarded([&] { reader_.emplace(prefix_); });
    if (!reader_) return all();
    check_frame();
    check_extra_files();
    const std::vector<Extents> shards = extents_of(reader_->index());
    for (int32_t shard = 0; shard < reader_->index().num_shards; ++shard)
      guarded([&] { check_shard(shard, shards[static_cast<size_t>(shard)]); });
    // Tensors without bytes are in no shard's list, but their crc must be right too.
    for (const auto& item : reader_->index().entries)
      if (!item.second.is_sliced() && item.second.num_bytes == 0)
        guarded([&] { reader_->check_place(item.first); });
    guarded([&] { check_sparse(); });
    return all();
  }

 private:
  /// Runs `body`. A missing or bad file counts as a defect; a fault of the machine is thrown on.
  template <typename Body>
  void guarded(Body body) {
    try {
      body();
    } catch (const Error& fault) {
      if (fault.code() != ExitCode::kBadData && fault.code() != ExitCode::kInputMissing) throw;
      add(plain_text(fault));
    }
  }

  /// Adds a defect once, since two checks may find the same damage. Only the first 1000 are named.
  void add(std::string defect) {
    constexpr size_t kMaxDefects = 1000;
    if (known_.size() < kMaxDefects && known_.insert(defect).second)
      defects_.push_back(std::move(defect));
    else if (known_.size() == kMaxDefects)
      ++num_unnamed_;
  }

  std::vector<std::string> all() {
    if (num_unnamed_ > 0) defects_.push_back(fmt::format("{}: and {} more", prefix_, num_unnamed_));
    return std::move(defects_);
  }

  /// Encodes the index again and compares. Block checksums cover neither the footer nor the
  /// metaindex block's place.
  void check_frame() {
    const std::string bytes = files::read(index_path(prefix_));
    if (!is_as_encoded(bytes))
      add(fmt::format("{}: bytes outside the checked blocks differ from those written",
                      index_path(prefix_)));
  }

  void check_extra_files() {
    // Shards of an earlier save with another number of ranks may be left over.
    const std::filesystem::path path(prefix_);
    const int32_t num_shards = reader_->index().num_shards;
    for (const std::string& name : files::list(folder_of(path))) {
      if (!name.starts_with(path.filename().string() + ".data-")) continue;
      bool expected = false;
      for (int32_t shard = 0; shard < num_shards && !expected; ++shard)
        expected = name == std::filesystem::path(shard_path(prefix_, shard, num_shards)).filename();
      if (!expected)
        add(fmt::format("{}: does not belong to this checkpoint",
                        (path.parent_path() / name).string()));
    }
  }

  void check_shard(int32_t shard, const Extents& extents) {
    const auto wrong_size = size_defect(&*reader_, shard, extents);
    if (wrong_size) add(*wrong_size);
    int64_t at = 0;
    for (const auto& [offset, extent] : extents) {
      // Sorted by offset, so overlaps and gaps show between neighbours.
      if (offset < at)
        add(fmt::format("{}: tensor '{}' overlaps the one before", shard_name(shard),
                        *extent.name));
      else
        check_gap(shard, at, std::min(offset, reader_->shard_bytes(shard)));
      at = std::max(at, extent.end);
      guarded([&, place = extent] { reader_->check_place(*place.name, place.slice); });
    }
  }

  void check_gap(int32_t shard, int64_t begin, int64_t end) {
    bool zero = true;
    reader_->for_each_piece(shard, begin, end, [&](std::string_view piece) {
      zero = zero && piece.find_first_not_of('\0') == std::string_view::npos;
    });
    if (!zero)
      add(fmt::format("{}: bytes {} to {} between tensors are not zero", shard_name(shard), begin,
                      end));
  }

  /// Checks that the parts of sparse tensors fit each other.
  void check_sparse() {
    DenseView view(&*reader_);
    for (const std::string& name : view.names())
      if (view.is_sparse(name)) guarded([&] { view.check_mask(name); });
  }

  std::string shard_name(int32_t shard) const {
    return shard_path(prefix_, shard, reader_->index().num_shards);
  }

  const std::string prefix_;
  std::optional<BundleReader> reader_;
  std::vector<std::string> defects_;
  std::set<std::string> known_;
  int64_t num_unnamed_ = 0;
};

}  // namespace

std::vector<std::string> verify(const std::string& prefix) { return Verification(prefix).run(); }

std::optional<std::string> quick_check(const std::string& prefix) {
  try {
    BundleReader reader(prefix);
    const std::vector<Extents> shards = extents_of(reader.index());
    for (int32_t shard = 0; shard < reader.index().num_shards; ++shard)
      if (auto defect = size_defect(&reader, shard, shards[static_cast<size_t>(shard)]))
        return defect;
    return std::nullopt;
  } catch (const Error& fault) {
    if (fault.code() != ExitCode::kBadData && fault.code() != ExitCode::kInputMissing) throw;
    return plain_text(fault);
  }
}

}  // namespace lockstep::checkpoint
