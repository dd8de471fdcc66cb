#include "dist/reducer/buckets.h"

#include <functional>
#include <map>
#include <utility>

#include <fmt/format.h>

#include "base/error.h"
#include "base/tensors/square_sums.h"

namespace lockstep::dist {

std::vector<std::vector<int64_t>> plan_buffers(
    const std::vector<PlannedParam>& params_in_model_order, int64_t bucket_bytes) {
  check(bucket_bytes > 0, "bucket_bytes must be positive");
  struct OpenBucket {  // of one group; still takes parameters
    std::vector<int64_t> params;
    int64_t num_bytes = 0;
  };
  std::vector<std::vector<int64_t>> buckets;
  // From the last parameter to the first: the order in which backward produces gradients.
  std::map<int64_t, OpenBucket> open_by_group;
  for (auto i = static_cast<int64_t>(params_in_model_order.size()) - 1; i >= 0; --i) {
    const PlannedParam& param = params_in_model_order[i];
    OpenBucket& open = open_by_group[param.group];
    if (!open.params.empty() && open.num_bytes + param.num_bytes > bucket_bytes) {
      buckets.push_back(std::move(open.params));
      open = {};
    }
    open.params.push_back(i);
    open.num_bytes += param.num_bytes;
  }
  for (auto& [group, open] : open_by_group) buckets.push_back(std::move(open.params));
  // A bucket is complete with its last parameter, which only it holds.
  std::ranges::sort(buckets, [](const auto& a, const auto& b) { return a.back() > b.back(); });
  return buckets;
}

/// Returns the nearer of two multiples of `unit` around `at`. The upper one is limited to `end`.
static int64_t nearer(int64_t at, int64_t unit, int64_t end) {
  const int64_t below = at / unit * unit;
  const int64_t above = std::min(below + unit, end);
  return at - below <= above - at ? below : above;
}

int64_t RowBorders::nearest(int64_t at_E, int64_t num_rows) const {
  return nearer(at_E, row_E * num_rows, num_elements);
}

int64_t RowBorders::nearest_cut(int64_t at_E) const {
  const int64_t row_begin = std::min(at_E, num_elements - 1) / row_E * row_E;
  const int64_t row_end = std::min(row_begin + row_E, num_elements);
  return row_begin + nearer(at_E - row_begin, kCutElements, row_end - row_begin);
}

// cut_into_buckets(): cuts buffers front to back, then sorts the buckets by the order in which
// backward completes them.

namespace {

/// Limits for the cuts.
struct Limits {
  int64_t bucket_bytes;
  const std::vector<int64_t>* row_E_by_param = nullptr;  ///< null: a cut may be anywhere
  int num_pieces = 1;
};

/// Returns the border for a cut near element at_E of a slice that is longer than a bucket.
int64_t border_near(const FlatSlice& slice, int64_t at_E, int64_t limit_E, const Limits& limits) {
  if (limits.row_E_by_param == nullptr || slice.param < 0) return at_E;
  const RowBorders rows{slice.num_elements,
                        limits.row_E_by_param->at(static_cast<size_t>(slice.param))};
  // A row that exceeds a bucket is cut inside. Otherwise prefer multiples of num_pieces rows, which
  // give equal pieces, if that many rows fit in a bucket.
  if (rows.row_E > limit_E) return rows.nearest_cut(at_E);
  return rows.nearest(at_E, rows.row_E * limits.num_pieces <= limit_E ? limits.num_pieces : 1);
}

/// Cuts one buffer, front to back.
struct BufferCut {
  size_t buffer;
  int64_t limit_E, limit_now_E;
  const Limits& limits;
  std::vector<Bucket>& out;
  int64_t begin_E = 0, end_E = 0;
  std::vector<int64_t> params = {};

  void add(const FlatSlice& slice) {
    if (slice.num_elements == 0) return;
    if (end_E > begin_E && end_E - begin_E + slice.num_elements > limit_now_E) close();
    params.push_back(slice.param);
    end_E += slice.num_elements;
    if (end_E - begin_E > limit_E) close_in_pieces(slice);
  }

  void close() {
    if (end_E == begin_E) return;
    out.push_back({buffer, begin_E, end_E, params});
    begin_E = end_E;
    params.clear();
    limit_now_E = limit_E;
  }

  /// Cuts the only open slice, which is longer than a bucket, into near-equal buckets.
  void close_in_pieces(const FlatSlice& slice) {
    const std::vector<int64_t> members = params;
    const int64_t first_E = begin_E;
    const int64_t early_E = limit_now_E < limit_E ? limit_now_E : 0;  // the step's first bucket
    const int64_t rest_E = slice.num_elements - early_E;
    const int64_t num_pieces = (rest_E + limit_E - 1) / limit_E;
    const int64_t piece_E = (rest_E + num_pieces - 1) / num_pieces;
    for (int64_t piece = early_E > 0 ? 0 : 1; piece <= num_pieces; ++piece) {
      const int64_t at_E = std::min(early_E + piece * piece_E, slice.num_elements);
      params = members;
      end_E =
          first_E + (at_E == slice.num_elements ? at_E : border_near(slice, at_E, limit_E, limits));
      close();
    }
    params.clear();
  }
};

/// Returns the parameter of the bucket that backward reaches last; -1 if there is none.
int64_t last_to_come(const Bucket& bucket) {
  return bucket.params.empty() ? -1 : *std::min_element(bucket.params.begin(), bucket.params.end());
}

void cut(size_t index, const FlatBuffer& buffer, const Limits& limits, bool begins_small,
         std::vector<Bucket>* out) {
  if (buffer.is_matrix) {
    out->push_back({index, 0, buffer.grads_E.numel(), {buffer.slices.front().param}});
    return;
  }
  const auto as_elements = [&](int64_t bytes) {
    return std::max<int64_t>(1, bytes / static_cast<int64_t>(buffer.grads_E.itemsize()));
  };
  const int64_t bucket_bytes = limits.bucket_bytes;
  const int64_t first_bytes =
      begins_small ? std::min(bucket_bytes, kFirstBucketBytes) : bucket_bytes;
  BufferCut pieces{.buffer = index,
                   .limit_E = as_elements(bucket_bytes),
                   .limit_now_E = as_elements(first_bytes),
                   .limits = limits,
                   .out = *out};
  if (buffer.slices.empty()) {
    const size_t begin = out->size();
    pieces.add({.param = -1, .num_elements = buffer.grads_E.numel()});
    pieces.close();
    for (size_t i = begin; i < out->size(); ++i) (*out)[i].params.clear();
  }
  for (const FlatSlice& slice : buffer.slices) pieces.add(slice);
  pieces.close();
}

/// The first bucket of buffers small_begin to small_end is small.
std::vector<Bucket> cut_all(const std::vector<FlatBuffer>& buffers, const Limits& limits,
                            size_t small_begin, size_t small_end) {
  std::vector<Bucket> buckets;
  for (size_t i = 0; i < buffers.size(); ++i)
    if (!buffers[i].frozen) cut(i, buffers[i], limits, i >= small_begin && i < small_end, &buckets);
  std::ranges::stable_sort(buckets, std::greater(), last_to_come);
  return buckets;
}

}  // namespace

size_t num_before_last_to_come(const std::vector<Bucket>& buckets) {
  size_t first = buckets.size();
  while (first > 0 && last_to_come(buckets[first - 1]) == last_to_come(buckets.back())) --first;
  return first;
}

std::vector<Bucket> cut_into_buckets(const std::vector<FlatBuffer>& buffers, int64_t bucket_bytes,
                                     const std::vector<int64_t>& row_E_by_param, int num_pieces) {
  check(bucket_bytes > 0, "bucket_bytes must be positive");
  const Limits limits{.bucket_bytes = bucket_bytes,
                      .row_E_by_param = row_E_by_param.empty() ? nullptr : &row_E_by_param,
                      .num_pieces = num_pieces};
  if (bucket_bytes == kUnlimitedBytes) return cut_all(buffers, limits, 0, 0);
  // Only the step's first bucket may be small. The first pass finds its buffer, the second one
  // cuts.
  const std::vector<Bucket> all_small = cut_all(buffers, limits, 0, buffers.size());
  if (all_small.empty()) return {};
  const size_t first = all_small.front().buffer;
  return cut_all(buffers, limits, first, first + 1);
}

/// Returns the slice around element `at_E` of the buffer; null without slices.
static const FlatSlice* slice_around(const FlatBuffer& buffer, int64_t at_E) {
  const auto behind = std::ranges::upper_bound(buffer.slices, at_E, {}, &FlatSlice::offset_E);
  return behind == buffer.slices.begin() ? nullptr : &*std::prev(behind);
}

/// Returns the border nearest to element `at_E` of the buffer. even_E: size of an even shard.
static int64_t border_near(const FlatBuffer& buffer, int64_t at_E, int64_t even_E,
                           const std::vector<int64_t>& row_E_by_param) {
  const FlatSlice* slice = slice_around(buffer, at_E);
  if (slice == nullptr) return at_E;
  const RowBorders rows{slice->num_elements, row_E_by_param.at(static_cast<size_t>(slice->param))};
  const int64_t in_slice_E = at_E - slice->offset_E;
  // at_E is outside of every slice.
  if (in_slice_E >= rows.num_elements) return at_E;
  return slice->offset_E +
         (rows.row_E <= even_E ? rows.nearest(in_slice_E) : rows.nearest_cut(in_slice_E));
}

BucketShards::BucketShards(std::vector<int64_t> borders_E) : borders_E_(std::move(borders_E)) {
  check(borders_E_.size() >= 2 && borders_E_.front() == 0 &&
            std::is_sorted(borders_E_.begin(), borders_E_.end()),
        "the bounds of a bucket's pieces ascend from 0");
  for (int piece = 0; piece < num_pieces(); ++piece) largest_ = std::max(largest_, size(piece));
}

BucketShards cut_into_pieces(const Bucket& bucket, const FlatBuffer& buffer,
                             const std::vector<int64_t>& row_E_by_param, int num_pieces) {
  check(num_pieces > 0, "a bucket is divided into one piece at least");
  const int64_t num_elements = bucket.num_elements();
  std::vector<int64_t> borders_E{0};
  for (int piece = 1; piece < num_pieces; ++piece) {
    // An even border, moved to a row border. Borders stay ascending, since border_near() is
    // monotonic.
    const int64_t at_E = bucket.begin_E + num_elements * piece / num_pieces;
    const int64_t border_E = border_near(buffer, at_E, num_elements / num_pieces, row_E_by_param);
    borders_E.push_back(std::clamp<int64_t>(border_E - bucket.begin_E, 0, num_elements));
  }
  borders_E.push_back(num_elements);
  return BucketShards(std::move(borders_E));
}

/// Returns the owner of each matrix, by bucket; others have -1. The cost of its update is that of a
/// product of the matrix with its transpose. The most expensive one is assigned first, each to the
/// rank with the least so far.
static std::vector<int> owners_of_matrices(const std::vector<Bucket>& buckets,
                                           const std::vector<FlatBuffer>& buffers,
                                           const std::vector<int64_t>& row_E_by_param,
                                           int num_pieces) {
  std::vector<std::pair<double, size_t>> costs;  // with the bucket
  for (size_t i = 0; i < buckets.size(); ++i) {
    if (!buffers[buckets[i].buffer].is_matrix) continue;
    const int64_t row_E = row_E_by_param.at(static_cast<size_t>(buckets[i].params.front()));
    const int64_t num_rows = buckets[i].num_elements() / std::max<int64_t>(row_E, 1);
    costs.emplace_back(static_cast<double>(buckets[i].num_elements()) *
                           static_cast<double>(std::min(row_E, num_rows)),
                       i);
  }
  std::ranges::stable_sort(costs, std::greater(), &std::pair<double, size_t>::first);
  std::vector<double> load_N(static_cast<size_t>(num_pieces));
  std::vector<int> owners(buckets.size(), -1);
  for (const auto& [cost, bucket] : costs) {
    const auto least = std::ranges::min_element(load_N);
    *least += cost;
    owners[bucket] = static_cast<int>(least - load_N.begin());
  }
  return owners;
}

/// Returns shards of which one is the whole bucket.
static BucketShards owned_by(int owner, const Bucket& bucket, int num_pieces) {
  std::vector<int64_t> borders_E(static_cast<size_t>(num_pieces) + 1);
  std::fill(borders_E.begin() + owner + 1, borders_E.end(), bucket.num_elements());
  return BucketShards(std::move(borders_E));
}

// BucketAssignment: computes buckets and shards from the buffers alone, so that all ranks compute
// the same ones.

/// True if the gradients of all ranks are shared; that holds for all buffers or for none.
static bool are_shared(const std::vector<FlatBuffer>& buffers) {
  return std::ranges::any_of(
      buffers, [](const FlatBuffer& buffer) { return !buffer.grads_by_rank.empty(); });
}

/// Sorts by buffer and position, and merges adjacent regions.
static std::vector<ParamShard> joined(std::vector<ParamShard> regions) {
  std::ranges::sort(regions, {}, [](const ParamShard& region) {
    return std::pair(region.buffer, region.begin_E);
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

at::Tensor part_of(const at::Tensor& flat_E, const Bucket& bucket) {
  return flat_E.narrow(0, bucket.begin_E, bucket.num_elements());
}

BucketAssignment::BucketAssignment(const ParamTable& params, const SyncOptions& options, int rank,
                                   int world_size)
    : params_(params),
      options_(options),
      rank_(rank),
      world_size_(world_size),
      row_E_by_param_(row_elements(params)) {
  for (size_t i = 0; i < params.size(); ++i)
    shard_unit_E_by_param_.push_back(whole_rows(row_E_by_param_[i], params[i].block_E));
}

bool BucketAssignment::rebuild(const std::vector<FlatBuffer>& buffers) {
  const auto is_same = [](const FlatBuffer& now, const at::Tensor& before) {
    return now.grads_E.is_same(before);
  };
  // A layout change creates new tensors, so identity tells whether buckets still fit.
  if (has_any_ && std::equal(buffers.begin(), buffers.end(), grads_by_buffer_.begin(),
                             grads_by_buffer_.end(), is_same))
    return false;
  has_any_ = true;
  grads_by_buffer_.clear();
  for (const FlatBuffer& buffer : buffers) grads_by_buffer_.push_back(buffer.grads_E);
  kind_ = reduction_kind(options_, world_size_, are_shared(buffers));
  shards_.clear();
  if (!is_sharded()) {
    buckets_ = cut_into_buckets(buffers, options_.bucket_bytes);
    return true;
  }
  // Shared buckets send nothing, so few large pieces are best.
  const int64_t bucket_bytes = is_shared() ? kUnlimitedBytes : options_.bucket_bytes;
  buckets_ = cut_into_buckets(buffers, bucket_bytes, shard_unit_E_by_param_, world_size_);
  const std::vector<int> owners =
      owners_of_matrices(buckets_, buffers, row_E_by_param_, world_size_);
  for (size_t i = 0; i < buckets_.size(); ++i)
    shards_.push_back(owners[i] >= 0 ? owned_by(owners[i], buckets_[i], world_size_)
                                     : cut_into_pieces(buckets_[i], buffers[buckets_[i].buffer],
                                                       shard_unit_E_by_param_, world_size_));
  return true;
}

bool BucketAssignment::are_cpu_floats() const {
  return std::ranges::all_of(grads_by_buffer_, [](const at::Tensor& grads_E) {
    return !grads_E.defined() || (grads_E.is_cpu() && grads_E.scalar_type() == at::kFloat);
  });
}

at::Tensor BucketAssignment::grads_E(size_t bucket) const {
  return part_of(grads_by_buffer_[buckets_[bucket].buffer], buckets_[bucket]);
}

std::vector<ParamShard> BucketAssignment::local_shards() const {
  std::vector<ParamShard> regions;
  for (size_t i = 0; i < buckets_.size(); ++i) {
    const Bucket& bucket = buckets_[i];
    ParamShard own{bucket.buffer, bucket.begin_E, bucket.end_E};
    if (is_sharded()) {
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
