#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>

#include <ATen/core/Tensor.h>

#include "base/files/files.h"
#include "checkpoint/bundle/bundle_index.h"
#include "checkpoint/save/staged_shard.h"

namespace lockstep::checkpoint {

/// Writes one data shard under its temporary name. Order: append()..., finish(), publish(). A
/// writer that is dropped before publish() leaves the temporary file behind. Errors: as
/// base/files/files.h.
class ShardWriter {
 public:
  /// `path` is the final name (shard_path()).
  ShardWriter(std::string path, int32_t shard);

  /// Dense tensors of a type that type_number() knows, on any device, of any strides. Else
  /// Error(kBug).
  void append(const std::string& name, const at::Tensor& tensor);
  /// A scalar string.
  void append(const std::string& name, std::string_view text);

  /// All bytes are on disk when it returns.
  void finish();
  /// Gives the file its final name, durably.
  void publish();

  /// Entries so far, by name.
  const std::map<std::string, BundleEntry>& entries() const { return entries_; }
  int64_t num_bytes() const { return file_.num_bytes(); }

 private:
  void append_bytes(const std::string& name, BundleEntry entry, std::string_view bytes);

  std::string path_;
  int32_t shard_;
  files::Writer file_;
  std::map<std::string, BundleEntry> entries_;
};

/// Writes the index of the save `prefix` (with its number) under its temporary name, on disk when
/// it returns; gives its size in bytes. publish_index() is then the commit.
int64_t stage_index(const std::string& prefix, const BundleIndex& index);
/// The same for encode_index()'s bytes.
int64_t stage_index(const std::string& prefix, std::string_view bytes);
void publish_index(const std::string& prefix);

}  // namespace lockstep::checkpoint
