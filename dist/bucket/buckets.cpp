// Cuts buffers front to back, then sorts the buckets by the order in which backward completes them.
#include "dist/bucket/buckets.h"

#include <algorithm>
#include <functional>

#include "base/error.h"
#include "dist/bucket/shard_alignment.h"

namespace lockstep::dist {
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
class BufferCut {
 public:
  BufferCut(size_t buffer, int64_t limit_E, int64_t first_limit_E, const Limits& limits,
            std::vector<Bucket>* out)
      : buffer_(buffer),
        limit_E_(limit_E),
        limit_now_E_(first_limit_E),
        limits_(limits),
        out_(*out) {}

  void add(const FlatSlice& slice) {
    if (slice.num_elements == 0) return;
    if (end_E_ > begin_E_ && end_E_ - begin_E_ + slice.num_elements > limit_now_E_) close();
    params_.push_back(slice.param);
    end_E_ += slice.num_elements;
    if (end_E_ - begin_E_ > limit_E_) close_in_pieces(slice);
  }

  void close() {
    if (end_E_ == begin_E_) return;
    out_.push_back({buffer_, begin_E_, end_E_, params_});
    begin_E_ = end_E_;
    params_.clear();
    limit_now_E_ = limit_E_;
  }

 private:
  /// Cuts the only open slice, which is longer than a bucket, into near-equal buckets.
  void close_in_pieces(const FlatSlice& slice) {
    const std::vector<int64_t> params = params_;
    const int64_t first_E = begin_E_;
    const int64_t early_E = limit_now_E_ < limit_E_ ? limit_now_E_ : 0;  // the step's first bucket
    const int64_t rest_E = slice.num_elements - early_E;
    const int64_t num_pieces = (rest_E + limit_E_ - 1) / limit_E_;
    const int64_t piece_E = (rest_E + num_pieces - 1) / num_pieces;
    for (int64_t piece = early_E > 0 ? 0 : 1; piece <= num_pieces; ++piece) {
      const int64_t at_E = std::min(early_E + piece * piece_E, slice.num_elements);
      params_ = params;
      end_E_ = first_E +
               (at_E == slice.num_elements ? at_E : border_near(slice, at_E, limit_E_, limits_));
      close();
    }
    params_.clear();
  }

  size_t buffer_;
  int64_t limit_E_, limit_now_E_;
  const Limits& limits_;
  std::vector<Bucket>& out_;
  int64_t begin_E_ = 0, end_E_ = 0;
  std::vector<int64_t> params_;
};

/// Returns the parameter of the bucket that backward reaches last; -1 if there is none.
int64_t last_to_come(const Bucket& bucket) {
  return bucket.params.empty() ? -1 : *std::min_element(bucket.params.begin(), bucket.params.end());
}

void cut(size_t index, const FlatBuffer& buffer, const Limits& limits, bool begins_small,
         std::vector<Bucket>* out) {
  const auto as_elements = [&](int64_t bytes) {
    return std::max<int64_t>(1, bytes / static_cast<int64_t>(buffer.grads_E.itemsize()));
  };
  const int64_t bucket_bytes = limits.bucket_bytes;
  const int64_t first_bytes =
      begins_small ? std::min(bucket_bytes, kFirstBucketBytes) : bucket_bytes;
  BufferCut pieces(index, as_elements(bucket_bytes), as_elements(first_bytes), limits, out);
  if (buffer.slices.empty()) {
    const size_t begin = out->size();
    pieces.add({.param = -1, .num_elements = buffer.grads_E.numel()});
    pieces.close();
    for (size_t i = begin; i < out->size(); ++i) (*out)[i].params.clear();
  }
  for (const FlatSlice& slice : buffer.slices) pieces.add(slice);
  pieces.close();
}

/// begins_small: true if the first bucket of this buffer must be small.
std::vector<Bucket> cut_all(const std::vector<FlatBuffer>& buffers, const Limits& limits,
                            const std::function<bool(size_t buffer)>& begins_small) {
  std::vector<Bucket> buckets;
  for (size_t i = 0; i < buffers.size(); ++i)
    if (!buffers[i].frozen) cut(i, buffers[i], limits, begins_small(i), &buckets);
  std::stable_sort(buckets.begin(), buckets.end(), [](const Bucket& a, const Bucket& b) {
    return last_to_come(a) > last_to_come(b);
  });
  return buckets;
}

std::vector<Bucket> cut_all(const std::vector<FlatBuffer>& buffers, const Limits& limits) {
  check(limits.bucket_bytes > 0, "bucket_bytes must be positive");
  const auto none = [](size_t) { return false; };
  if (limits.bucket_bytes == kUnlimitedBytes) return cut_all(buffers, limits, none);
  // Only the step's first bucket may be small. The first pass finds its buffer, the second one
  // cuts.
  const std::vector<Bucket> all_small = cut_all(buffers, limits, [](size_t) { return true; });
  if (all_small.empty()) return {};
  const size_t first = all_small.front().buffer;
  return cut_all(buffers, limits, [first](size_t buffer) { return buffer == first; });
}

}  // namespace

size_t num_before_last_to_come(const std::vector<Bucket>& buckets) {
  size_t first = buckets.size();
  while (first > 0 && last_to_come(buckets[first - 1]) == last_to_come(buckets.back())) --first;
  return first;
}

std::vector<Bucket> cut_into_buckets(const std::vector<FlatBuffer>& buffers, int64_t bucket_bytes) {
  return cut_all(buffers, {.bucket_bytes = bucket_bytes});
}

std::vector<Bucket> cut_into_buckets(const std::vector<FlatBuffer>& buffers, int64_t bucket_bytes,
                                     const std::vector<int64_t>& row_E_by_param, int num_pieces) {
  return cut_all(
      buffers,
      {.bucket_bytes = bucket_bytes, .row_E_by_param = &row_E_by_param, .num_pieces = num_pieces});
}

}  // namespace lockstep::dist
