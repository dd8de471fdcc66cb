// Reports are the protobuf ShardReport; the entries in it have the index's own wire form.
#include "checkpoint/save/shard_report.h"

#include <algorithm>

#include "base/error.h"
#include "checkpoint/bundle/entry_proto.h"
#include "checkpoint/proto/shard_report.pb.h"

namespace lockstep::checkpoint {
namespace {

void add_item(const pb::ShardReport::Item& item, int32_t num_shards, BundleIndex* index) {
  BundleEntry stored = from_proto(item.entry(), num_shards);
  if (!item.has_shape()) {
    check(index->entries.emplace(item.name(), std::move(stored)).second,
          "'" + item.name() + "' was written twice");
    return;
  }
  BundleEntry& entry = index->entries[item.name()];
  entry.dtype = stored.dtype;
  entry.shape.clear();
  for (const auto& dim : item.shape().dim()) entry.shape.push_back(dim.size());
  entry.slices.push_back(
      {stored, {{item.start().begin(), item.start().end()}, std::move(stored.shape)}});
}

void require_complete(const StoredTensor& piece, BundleIndex* index) {
  const auto found = index->entries.find(piece.name);
  check(found != index->entries.end(), "'" + piece.name + "' was written by no rank");
  BundleEntry& entry = found->second;
  if (!entry.is_sliced()) return;
  // Ranks report in their own order; the index lists slices by position.
  std::sort(entry.slices.begin(), entry.slices.end(),
            [](const auto& one, const auto& other) { return one.box.start < other.box.start; });
  int64_t num_elements = 0;
  for (const BundleSlice& slice : entry.slices) num_elements += slice.box.num_elements();
  check(num_elements == piece.num_elements(),
        "the ranks' slices do not make up the whole of '" + piece.name + "'");
}

}  // namespace

std::string shard_report(const StagedShard& staged) {
  pb::ShardReport report;
  for (const StagedShard::Slot& slot : staged.slots()) {
    auto* item = report.add_items();
    item->set_name(slot.piece->name);
    *item->mutable_entry() = to_proto(slot.piece->dtype, slot.slice);
    if (slot.is_whole()) continue;
    item->mutable_start()->Assign(slot.slice.box.start.begin(), slot.slice.box.start.end());
    for (const int64_t dim : slot.piece->shape) item->mutable_shape()->add_dim()->set_size(dim);
  }
  return report.SerializeAsString();
}

void IndexBuilder::add(const std::string& text) {
  pb::ShardReport report;
  check(report.ParseFromString(text), "a rank's list of tensors cannot be read");
  for (const auto& item : report.items()) add_item(item, index_.num_shards, &index_);
}

BundleIndex IndexBuilder::finish(const std::vector<StoredTensor>& pieces) {
  for (const StoredTensor& piece : pieces) require_complete(piece, &index_);
  check(index_.entries.size() == pieces.size(), "a rank wrote what belongs to no save");
  return std::move(index_);
}

}  // namespace lockstep::checkpoint
