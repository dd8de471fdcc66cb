#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "base/files.h"
#include "checkpoint/bundle_index.h"

namespace lockstep::checkpoint {

/// Reads one save, ours or TensorFlow's. The constructor reads and checks the index; shards are
/// opened when needed. Every read checks that the bytes lie inside the shard before memory is
/// taken, and their crc after. Errors: Error(kBadData) naming file, tensor and offset;
/// kInputMissing where a file is not there. One thread at a time.
class BundleReader {
 public:
  /// `prefix` with its number: DIR/model.ckpt-1200. A prefix that ends in .index is refused with a
  /// hint (kUsage).
  explicit BundleReader(std::string prefix);

  const std::string& prefix() const { return prefix_; }
  const BundleIndex& index() const { return index_; }
  /// Null if the save has no tensor of that name.
  const BundleEntry* find(const std::string& name) const;

  /// A new CPU tensor. Not for strings.
  at::Tensor read(const std::string& name);
  /// Into live memory on any device, of any strides; dtype and shape must be equal. Nothing is
  /// written unless the crc of a tensor that is not contiguous on the CPU is right; contiguous CPU
  /// memory is read in place.
  void read_into(const std::string& name, const at::Tensor& live);
  /// In row-major order.
  std::vector<std::string> read_strings(const std::string& name);

  /// The entry's bytes in pieces of at most 1 MiB, without taking memory for the whole. The crc is
  /// the caller's affair.
  template <typename Use>
  void for_each_piece(const std::string& name, Use use) {
    for_each_piece(entry(name).shard, entry(name).offset, entry(name).end(), use);
  }
  template <typename Use>
  void for_each_piece(int32_t shard, int64_t begin, int64_t end, Use use);

  /// Size of a shard file.
  int64_t shard_bytes(int32_t shard) { return this->shard(shard).num_bytes(); }

  /// Throws Error(kBadData) about one tensor, with file and offset.
  [[noreturn]] void refuse(const std::string& name, const std::string& what) const;

 private:
  const BundleEntry& entry(const std::string& name) const;
  const files::Reader& shard(int32_t number);
  void require_inside(const std::string& name, const BundleEntry& entry);
  void read_checked(const std::string& name, const BundleEntry& entry, std::span<char> bytes);

  std::string prefix_;
  BundleIndex index_;
  std::map<int32_t, std::unique_ptr<files::Reader>> shards_;
};

template <typename Use>
void BundleReader::for_each_piece(int32_t shard_number, int64_t begin, int64_t end, Use use) {
  constexpr int64_t kPieceBytes = int64_t{1} << 20;
  std::string piece;
  for (int64_t at = begin; at < end; at += kPieceBytes) {
    piece.resize(static_cast<size_t>(std::min(kPieceBytes, end - at)));
    shard(shard_number).read_at(at, piece);
    use(std::string_view(piece));
  }
}

}  // namespace lockstep::checkpoint
