// Computes buckets and shards from the buffers alone, so that all ranks compute the same ones.
#include "dist/shard/bucket_assignment.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "dist/bucket/shard_alignment.h"

namespace lockstep::dist {
namespace {

/// True if the gradients of all ranks are shared; that holds for all buffers or for none.
bool are_shared(const std::vector<FlatBuffer>& buffers) {
  return std::any_of(buffers.begin(), buffers.end(),
                     [](const FlatBuffer& buffer) { return !buffer.grads_by_rank.empty(); });
}

/// Sorts by buffer and position, and merges adjacent regions.
std::vector<ParamShard> joined(std::vector<ParamShard> regions) {
  std::sort(regions.begin(), regions.end(), [](const ParamShard& a, const ParamShard& b) {
    return std::pair(a.buffer, a.begin_E) < std::pair(b.buffer, b.begin_E);
  });
  std::vector<ParamShard> all;
  for (const ParamShard& region : regions) {
    if (!all.empty() && all.back().buffer == region.buffer && all.back().end_E == region.begin_E)
      all.back().end_E = region.end_E;
    else
      all.push_back(region);
  }
  return all;
}

}  // namespace

at::Tensor part_of(const at::Tensor& flat_E, const Bucket& bucket) {
  return flat_E.narrow(0, bucket.begin_E, bucket.num_elements());
}

BucketAssignment::BucketAssignment(const ParamTable& params, const SyncOptions& options, int rank,
                                   int world_size)
    : params_(params),
      bucket_bytes_(options.bucket_bytes),
      shards_optimizer_(options.shard_optimizer),
      rank_(rank),
      world_size_(world_size),
      row_E_by_param_(row_elements(params)) {}

bool BucketAssignment::has(const std::vector<FlatBuffer>& buffers) const {
  // A layout change creates new tensors, so identity tells whether buckets still fit.
  return has_any_ &&
         std::equal(buffers.begin(), buffers.end(), grads_by_buffer_.begin(),
                    grads_by_buffer_.end(), [](const FlatBuffer& now, const at::Tensor& before) {
                      return now.grads_E.is_same(before);
                    });
}

std::vector<Bucket> BucketAssignment::cut(const std::vector<FlatBuffer>& buffers) const {
  if (!is_sharded_) return cut_into_buckets(buffers, bucket_bytes_);
  // Shared buckets send nothing, so few large pieces are best.
  return cut_into_buckets(buffers, is_shared_ ? kUnlimitedBytes : bucket_bytes_, row_E_by_param_,
                          world_size_);
}

bool BucketAssignment::rebuild(const std::vector<FlatBuffer>& buffers) {
  if (has(buffers)) return false;
  has_any_ = true;
  grads_by_buffer_.clear();
  for (const FlatBuffer& buffer : buffers) grads_by_buffer_.push_back(buffer.grads_E);
  is_shared_ = are_shared(buffers);
  is_sharded_ = world_size_ > 1 && (shards_optimizer_ || is_shared_);
  buckets_ = cut(buffers);
  shards_.clear();
  if (!is_sharded_) return true;
  for (const Bucket& bucket : buckets_)
    shards_.push_back(
        cut_into_pieces(bucket, buffers[bucket.buffer], row_E_by_param_, world_size_));
  return true;
}

at::Tensor BucketAssignment::grads_E(size_t bucket) const {
  return part_of(grads_by_buffer_[buckets_[bucket].buffer], buckets_[bucket]);
}

std::vector<ParamShard> BucketAssignment::local_shards() const {
  std::vector<ParamShard> regions;
  for (size_t i = 0; i < buckets_.size(); ++i) {
    const Bucket& bucket = buckets_[i];
    ParamShard own{bucket.buffer, bucket.begin_E, bucket.end_E};
    if (is_sharded_) {
      // A shard may be empty: then this rank owns nothing of the bucket.
      own.begin_E = bucket.begin_E + shards_[i].begin(rank_);
      own.end_E = own.begin_E + shards_[i].size(rank_);
    }
    if (own.begin_E < own.end_E) regions.push_back(own);
  }
  return joined(std::move(regions));
}

std::string BucketAssignment::text_of(size_t bucket) const {
  const Bucket& named = buckets_[bucket];
  const std::string first =
      named.params.empty()
          ? fmt::format("elements {} to {} of buffer {}", named.begin_E, named.end_E, named.buffer)
          : params_.at(static_cast<size_t>(named.params.front())).name;
  return fmt::format("bucket {} of {}: {}", bucket + 1, buckets_.size(), first);
}

}  // namespace lockstep::dist
