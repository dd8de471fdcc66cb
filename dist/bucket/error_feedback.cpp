#include "dist/bucket/error_feedback.h"

#include <algorithm>
#include <memory>
#include <utility>

#include <ATen/ops/from_blob.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <fmt/format.h>
#include <sys/mman.h>

#include "base/bits/bit_mask.h"
#include "base/bits/kept_bits.h"
#include "base/error.h"

namespace lockstep::dist {
namespace {

constexpr size_t kLineBytes = 64;

size_t rounded_up(size_t num_bytes) {
  return (num_bytes + kLineBytes - 1) / kLineBytes * kLineBytes;
}

/// Zeros, of which only those pages take memory that are written.
std::shared_ptr<std::byte> sparse_memory(size_t num_bytes) {
  void* const begin = ::mmap(nullptr, std::max<size_t>(num_bytes, 1), PROT_READ | PROT_WRITE,
                             MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (begin == MAP_FAILED)
    throw Error(ExitCode::kConfig, "dist",
                fmt::format("{} bytes of addresses for the errors of all ranks' gradients cannot "
                            "be had; set sync.error_feedback to false",
                            num_bytes));
  return {static_cast<std::byte*>(begin),
          [num_bytes](std::byte* at) { ::munmap(at, std::max<size_t>(num_bytes, 1)); }};
}

}  // namespace

ErrorFeedback::ErrorFeedback(const ParamTable& params, int rank, int num_ranks)
    : params_(params), rank_(rank), num_ranks_(num_ranks) {
  const auto bytes_of = [&](const Param& param) {
    return rounded_up(param.tensor.nbytes() * static_cast<size_t>(num_ranks));
  };
  size_t num_bytes = 0;
  for (const Param& param : params) num_bytes += bytes_of(param);
  const std::shared_ptr<std::byte> memory = sparse_memory(num_bytes);
  size_t offset_bytes = 0;
  for (const Param& param : params) {
    std::vector<int64_t> shape = {num_ranks};
    shape.insert(shape.end(), param.tensor.sizes().begin(), param.tensor.sizes().end());
    all_by_param_.push_back(at::from_blob(
        memory.get() + offset_bytes, shape, [memory](void*) {},
        at::TensorOptions(param.tensor.scalar_type())));
    own_by_param_.push_back(all_by_param_.back()[rank].view({-1}));
    offset_bytes += bytes_of(param);
  }
}

void ErrorFeedback::follow(const std::vector<Bucket>& buckets,
                           const std::vector<FlatBuffer>& buffers) {
  segments_by_bucket_.clear();
  made_by_bucket_.clear();
  for (const Bucket& bucket : buckets) {
    const FlatBuffer& buffer = buffers[bucket.buffer];
    std::vector<Segment>& segments = segments_by_bucket_.emplace_back();
    int64_t num_found = 0;
    for (const FlatSlice& slice : buffer.slices) {
      const int64_t begin_E = std::max(bucket.begin_E, slice.offset_E);
      const int64_t end_E = std::min(bucket.end_E, slice.offset_E + slice.num_elements);
      if (begin_E >= end_E) continue;
      segments.push_back(
          {begin_E - bucket.begin_E, own_by_param_[static_cast<size_t>(slice.param)].narrow(
                                         0, begin_E - slice.offset_E, end_E - begin_E)});
      num_found += end_E - begin_E;
    }
    check(num_found == bucket.num_elements(), "errors of gradients belong to parameters");
    made_by_bucket_.push_back(at::zeros({bucket.num_elements()}, buffer.grads_E.options()));
  }
}

void ErrorFeedback::begin_step(int64_t factor) {
  factor_ = static_cast<double>(factor);
  is_added_by_bucket_.assign(segments_by_bucket_.size(), 0);
}

void ErrorFeedback::add_to(size_t bucket, const at::Tensor& grads_E) {
  if (std::exchange(is_added_by_bucket_[bucket], 1) != 0) return;
  for (const Segment& segment : segments_by_bucket_[bucket])
    grads_E.narrow(0, segment.begin_E, segment.own_E.numel()).add_(segment.own_E, factor_);
}

void ErrorFeedback::keep() {
  for (size_t bucket = 0; bucket < made_by_bucket_.size(); ++bucket) {
    if (factor_ != 1) made_by_bucket_[bucket].mul_(1 / factor_);
    for (const Segment& segment : segments_by_bucket_[bucket])
      segment.own_E.copy_(
          made_by_bucket_[bucket].narrow(0, segment.begin_E, segment.own_E.numel()));
  }
}

void ErrorFeedback::zero_dropped(const Bucket& bucket, size_t index, const uint8_t* bits) {
  std::vector<uint8_t> kept(static_cast<size_t>(num_mask_bytes(bucket.num_elements())));
  copy_bits(bits, bucket.begin_E, bucket.num_elements(), kept.data(), 0);
  const at::Tensor errors_E = at::zeros_like(made_by_bucket_[index]);
  for (const Segment& segment : segments_by_bucket_[index])
    errors_E.narrow(0, segment.begin_E, segment.own_E.numel()).copy_(segment.own_E);
  zero_pruned(errors_E.mutable_data_ptr(), kept.data(), errors_E.numel(),
              static_cast<int>(errors_E.itemsize()));
  for (const Segment& segment : segments_by_bucket_[index])
    segment.own_E.copy_(errors_E.narrow(0, segment.begin_E, segment.own_E.numel()));
}

StateList ErrorFeedback::state() const {
  StateList all;
  for (size_t i = 0; i < params_.size(); ++i) {
    const int64_t num_elements = own_by_param_[i].numel(), begin_E = rank_ * num_elements;
    all.push_back({.key = fmt::format("_lockstep/sync/errors_of_{}_ranks/{}", num_ranks_,
                                      slashed(params_[i].name)),
                   .tensor = all_by_param_[i],
                   .value_if_missing = 0,
                   .held = std::vector<ElementRange>{{begin_E, begin_E + num_elements}}});
  }
  return all;
}

}  // namespace lockstep::dist
