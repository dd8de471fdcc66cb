#pragma once

#include <string>
#include <vector>

#include "checkpoint/bundle/bundle_index.h"
#include "checkpoint/save/staged_shard.h"

/// Reports in which ranks list what they have written.
namespace lockstep::checkpoint {

/// Returns this rank's filled slots as the bytes of a report.
std::string shard_report(const StagedShard& staged);

/// Builds the index of all ranks' shards from their reports, added one after the other.
class IndexBuilder {
 public:
  explicit IndexBuilder(int num_shards) { index_.num_shards = num_shards; }

  /// Adds a report. Throws Error(kBug) if it cannot be read, or if a tensor is in two of them.
  void add(const std::string& report);
  /// Returns the index. Throws Error(kBug) unless the reports cover every piece, each element once.
  BundleIndex finish(const std::vector<StoredTensor>& pieces);

 private:
  BundleIndex index_;
};

}  // namespace lockstep::checkpoint
