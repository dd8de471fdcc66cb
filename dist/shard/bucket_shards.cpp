#include "dist/shard/bucket_shards.h"

#include <utility>

#include "base/error.h"
#include "dist/bucket/shard_alignment.h"

namespace lockstep::dist {
namespace {

/// Returns the slice around element `at_E` of the buffer; null without slices.
const FlatSlice* slice_around(const FlatBuffer& buffer, int64_t at_E) {
  const auto behind = std::upper_bound(
      buffer.slices.begin(), buffer.slices.end(), at_E,
      [](int64_t place_E, const FlatSlice& slice) { return place_E < slice.offset_E; });
  return behind == buffer.slices.begin() ? nullptr : &*std::prev(behind);
}

/// Returns the border nearest to element `at_E` of the buffer. even_E: size of an even shard.
int64_t border_near(const FlatBuffer& buffer, int64_t at_E, int64_t even_E,
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

}  // namespace

BucketShards::BucketShards(std::vector<int64_t> borders_E) : borders_E_(std::move(borders_E)) {
  check(borders_E_.size() >= 2 && borders_E_.front() == 0 &&
            std::is_sorted(borders_E_.begin(), borders_E_.end()),
        "the borders of a bucket's pieces ascend from 0");
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

}  // namespace lockstep::dist
