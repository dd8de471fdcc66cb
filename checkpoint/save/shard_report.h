#pragma once

#include <string>
#include <vector>

#include "checkpoint/bundle/bundle_index.h"
#include "checkpoint/save/staged_shard.h"

/// How ranks tell each other what they have written.
namespace lockstep::checkpoint {

/// This rank's slots, filled, as bytes of a message.
std::string shard_report(const StagedShard& staged);

/// Puts the index of all ranks' shards together from their reports, one after the other.
class IndexBuilder {
 public:
  explicit IndexBuilder(int num_shards) { index_.num_shards = num_shards; }

  /// Throws Error(kBug) if it is no report, or a tensor stands in two.
  void add(const std::string& report);
  /// Throws Error(kBug) unless the reports make up every piece, each element once.
  BundleIndex finish(const std::vector<StoredTensor>& pieces);

 private:
  BundleIndex index_;
};

}  // namespace lockstep::checkpoint
