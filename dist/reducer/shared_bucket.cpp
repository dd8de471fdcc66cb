#include "dist/reducer/shared_bucket.h"

#include <algorithm>

#include "base/bits/bit_mask.h"
#include "base/error.h"
#include "dist/backend_parts.h"
#include "dist/bucket/mean_gradient.h"
#include "dist/bucket/wire_rounding.h"
#include "dist/reduce_in_rank_order.h"
#include "dist/shard/shard_slots.h"

namespace lockstep::dist {
namespace {

/// Of a sum that stays in the second cache until it was masked, divided and looked at. A multiple
/// of 8: blocks of a mask begin with a byte.
constexpr int64_t kBlockElements = 16384;

}  // namespace

SharedBucket::SharedBucket(std::vector<at::Tensor> grads_by_rank, const BucketShards& pieces,
                           int rank)
    : pieces_(pieces), rank_(rank), kept_(pieces), inputs_(grads_by_rank.size()) {
  for (const at::Tensor& grads_E : grads_by_rank) {
    check(grads_E.dim() == 1 && grads_E.is_contiguous() && grads_E.is_cpu(),
          "a bucket is a run of elements on the CPU");
    check(grads_E.numel() == pieces_.num_elements(), "a bucket and its pieces");
    own_by_rank_.push_back(
        static_cast<const std::byte*>(piece_of(grads_E, pieces_, rank_).const_data_ptr()));
  }
  own_E_ = piece_of(grads_by_rank.at(static_cast<size_t>(rank_)), pieces_, rank_);
}

void SharedBucket::set_kept(const uint8_t* bits, int64_t first_item) {
  kept_.keep_all();
  kept_.set(bits, first_item);
}

at::Tensor SharedBucket::pack(bool packed, double /*scale*/, const at::Tensor& /*errors_E*/) {
  check(!packed, "packing where nothing travels");
  return {};
}

at::Tensor SharedBucket::find_largest() { return largest_magnitude(own_E_); }

std::unique_ptr<Work> SharedBucket::launch(Communicator& /*comm*/) {
  return std::make_unique<DoneWork>();
}

bool SharedBucket::unpack(int64_t num_samples, Dropped /*dropped*/) {
  const auto item_bytes = static_cast<int64_t>(own_E_.itemsize());
  const at::ScalarType dtype = own_E_.scalar_type();
  auto* const own = static_cast<std::byte*>(own_E_.mutable_data_ptr());
  bool finite = true;
  for (int64_t begin_E = 0; begin_E < own_E_.numel(); begin_E += kBlockElements) {
    const int64_t num_here = std::min(kBlockElements, own_E_.numel() - begin_E);
    const int64_t begin_bytes = begin_E * item_bytes;
    for (size_t r = 0; r < inputs_.size(); ++r) inputs_[r] = own_by_rank_[r] + begin_bytes;
    reduce_in_rank_order(inputs_, own + begin_bytes, num_here, dtype, ReduceOp::kSum);
    if (!kept_.are_all())
      zero_pruned(own + begin_bytes, kept_.bits(rank_) + begin_E / 8, num_here,
                  static_cast<int>(item_bytes));
    finite = divide_and_check(own + begin_bytes, num_here, dtype, num_samples) && finite;
  }
  return finite;
}

}  // namespace lockstep::dist
