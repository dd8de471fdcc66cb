#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include <ATen/core/Tensor.h>

#include "base/files/files.h"
#include "base/files/large_files.h"
#include "base/tensors/state_list.h"
#include "checkpoint/format/bundle_index.h"
#include "checkpoint/format/parallel_read.h"

namespace lockstep::checkpoint {

/// One tensor for read_all().
struct TensorRead {
  std::string name;
  at::Tensor live;
  /// Elements to read; nullopt: all.
  std::optional<std::vector<ElementRange>> held = std::nullopt;
};

/// Calls use(target) with row-major CPU memory: `live` itself, or a copy that is written back to
/// `live` afterwards. With `keep` the copy starts with the values of `live`, for a `use` that
/// writes only some elements.
void with_plain_copy(const at::Tensor& live, bool keep,
                     const std::function<void(const at::Tensor& target)>& use);

/// Reader of one checkpoint, ours or TensorFlow's. The caller sees no difference between whole and
/// sliced tensors.
///
/// The constructor reads and checks the index; shards are opened when needed. Every read checks
/// that the bytes are inside their shard before it allocates memory. It checks the crc of each
/// place.
///
/// Throws Error(kBadData) with file, tensor, slice and offset. Throws kInputMissing for a missing
/// file, kIo for a file that cannot or must not be read. One thread at a time; reads use further
/// threads internally.
class BundleReader {
 public:
  /// Opens a checkpoint. `prefix` includes the number: DIR/model.ckpt-1200. A wrong name is refused
  /// with a hint, as by require_save(). `num_threads` threads read large tensors; 0:
  /// default_num_threads().
  explicit BundleReader(const std::string& prefix, int num_threads = 0);

  const std::string& prefix() const { return prefix_; }
  const BundleIndex& index() const { return index_; }
  /// Returns the entry; null if the checkpoint has no tensor of that name.
  const BundleEntry* find(const std::string& name) const;

  /// Returns a new CPU tensor. Throws Error(kBadData) for strings and for unsupported types.
  at::Tensor read(const std::string& name);
  /// Reads into live memory on any device and with any strides; dtype and shape must be equal. Only
  /// elements of `held` (ascending, disjoint) are written, and only slices with such elements are
  /// read. Many tensors at once are faster, since groups of them share the threads. An error leaves
  /// each tensor entirely old or entirely new.
  void read_all(const std::vector<TensorRead>& reads);
  /// Returns the strings in row-major order.
  std::vector<std::string> read_strings(const std::string& name);
  /// Returns a scalar string. An entry with many strings is refused before memory is allocated.
  std::string read_text(const std::string& name);

  /// Checks one place of a tensor (slice number `slice`, if it has slices) without keeping the
  /// values in memory.
  void check_place(const std::string& name, size_t slice = 0);
  /// Calls use(std::string_view) for a shard's bytes in pieces of at most 1 MiB.
  template <typename Use>
  void for_each_piece(int32_t shard, int64_t begin, int64_t end, Use use);
  /// Opens all shards, so that they stay readable if the checkpoint is removed.
  void open_shards();
  /// Returns the size of a shard in bytes without opening it.
  int64_t shard_bytes(int32_t shard);

  /// Throws Error(kBadData) about one tensor, with file and offset if it has them.
  [[noreturn]] void refuse(const std::string& name, const std::string& what) const;
  /// Returns the result of `decode`. A std::runtime_error that it throws refuses the tensor.
  template <typename Decode>
  auto decoded(const std::string& name, const Decode& decode) const;

 private:
  struct Shard {
    explicit Shard(const std::string& path) : file(path), mapping(file) {}

    files::Reader file;
    files::Mapping mapping;  ///< of `file`
  };

  const BundleEntry& entry(const std::string& name) const;
  Shard& shard(int32_t number);
  [[noreturn]] void refuse_place(const std::string& name, const BundlePlace& place,
                                 const std::string& what) const;
  void require_form(const std::string& name, const at::Tensor& live) const;
  void check_strings(const std::string& name);
  std::string bytes_of(const std::string& name);
  void require_inside(const std::string& name);
  void require_inside(const std::string& name, const BundlePlace& place);
  void read_plain(const std::vector<TensorRead>& reads);
  int64_t add_places(const TensorRead& read, std::vector<PlaceRead>* places);
  void run(const std::vector<PlaceRead>& places);

  std::string prefix_;
  int num_threads_;
  BundleIndex index_;
  std::map<int32_t, std::unique_ptr<Shard>> shards_;
};

template <typename Use>
void BundleReader::for_each_piece(int32_t shard_number, int64_t begin, int64_t end, Use use) {
  constexpr int64_t kPieceBytes = int64_t{1} << 20;
  std::string piece;
  for (int64_t at = begin; at < end; at += kPieceBytes) {
    piece.resize(static_cast<size_t>(std::min(kPieceBytes, end - at)));
    shard(shard_number).file.read_at(at, piece);
    use(std::string_view(piece));
  }
}

template <typename Decode>
auto BundleReader::decoded(const std::string& name, const Decode& decode) const {
  try {
    return decode();
  } catch (const Error&) {
    throw;
  } catch (const std::runtime_error& fault) {
    refuse(name, fault.what());
  }
}

}  // namespace lockstep::checkpoint
