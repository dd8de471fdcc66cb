#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <ATen/core/Tensor.h>

#include "base/files/file_mapping.h"
#include "base/files/files.h"
#include "base/tensors/state_list.h"
#include "checkpoint/bundle/bundle_index.h"
#include "checkpoint/reader/place_read.h"

namespace lockstep::checkpoint {

/// One tensor of read_all().
struct TensorRead {
  std::string name;
  at::Tensor live;
  /// Only these elements are wanted; nothing: all.
  std::optional<std::vector<ElementRange>> held = std::nullopt;
};

/// Calls use(target) with memory that is row-major on the CPU: `live` itself, or a copy that
/// becomes its values afterwards. With `keep`, the copy begins with the values of `live`, for a use
/// that writes only some.
void with_plain_copy(const at::Tensor& live, bool keep,
                     const std::function<void(const at::Tensor& target)>& use);

/// Reads one save, ours or TensorFlow's; whether a tensor is saved whole or in slices makes no
/// difference to the caller. The constructor reads and checks the index; shards are opened when
/// needed. Every read checks that the bytes lie inside their shard before memory is taken, and the
/// crc of each place that it reads. Errors: Error(kBadData) naming file, tensor, slice and offset;
/// kInputMissing where a file is not there; kIo where it cannot or may not be read. One thread at a
/// time (it starts others itself).
class BundleReader {
 public:
  /// `prefix` with its number: DIR/model.ckpt-1200. What is no save's name is refused with a hint,
  /// as require_save() of save_prefix.h does. `num_threads` read large tensors; 0: as
  /// work_threads.h has it.
  explicit BundleReader(const std::string& prefix, int num_threads = 0);

  const std::string& prefix() const { return prefix_; }
  const BundleIndex& index() const { return index_; }
  /// Null if the save has no tensor of that name.
  const BundleEntry* find(const std::string& name) const;

  /// A new CPU tensor. Throws Error(kBadData) for strings and for types that are not read here.
  at::Tensor read(const std::string& name);
  /// Into live memory on any device, of any strides; dtype and shape must be equal. Live memory is
  /// written once all of the tensor that is wanted has been read and its checksums are right, and
  /// not before: an error leaves it as it was.
  void read_into(const std::string& name, const at::Tensor& live);
  /// The same for the elements of these ranges alone (row-major order; ascending, apart); the
  /// others keep their values. Slices without any such element are not read.
  void read_into(const std::string& name, const at::Tensor& live,
                 const std::vector<ElementRange>& held);
  /// The same for many tensors, faster than one by one: groups of them share the threads. An error
  /// leaves each tensor wholly old or wholly new.
  void read_all(const std::vector<TensorRead>& reads);
  /// In row-major order.
  std::vector<std::string> read_strings(const std::string& name);
  /// Of a scalar. What unfolds to many strings is refused before memory is taken for them.
  std::string read_text(const std::string& name);

  /// Reads one place of a tensor (of slice number `slice`, if it has any) for nothing but the
  /// checks, without taking memory for it.
  void check_place(const std::string& name, size_t slice = 0);
  /// Bytes of a shard in pieces of at most 1 MiB: use(std::string_view).
  template <typename Use>
  void for_each_piece(int32_t shard, int64_t begin, int64_t end, Use use);
  /// Opens all shards, which can then still be read when the save is removed.
  void open_shards();
  /// Size of a shard file, which need not be opened for it.
  int64_t shard_bytes(int32_t shard);

  /// Throws Error(kBadData) about one tensor, with file and offset if it has them.
  [[noreturn]] void refuse(const std::string& name, const std::string& what) const;

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
  int64_t add_places(const TensorRead& read, std::vector<PlaceRead>* places,
                     std::vector<const std::string*>* names);
  void run(const std::vector<PlaceRead>& places, const std::vector<const std::string*>& names);

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

}  // namespace lockstep::checkpoint
