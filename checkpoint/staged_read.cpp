#include "checkpoint/staged_read.h"

#include <algorithm>
#include <cstring>

#include "checkpoint/work_threads.h"

namespace lockstep::checkpoint {
namespace {

constexpr int64_t kCopyBytes = int64_t{1} << 20;  // what a thread copies at a time
constexpr int64_t kFewBytes = int64_t{4} << 20;   // below this one thread copies
constexpr int64_t kAlignment = 64;

StagedRead::Tensor staged(const TensorRead& read) {
  StagedRead::Tensor tensor{.read = &read};
  tensor.wanted = read.held.value_or(std::vector<ElementRange>{{0, read.live.numel()}});
  int64_t num_elements = 0;
  for (const ElementRange& range : tensor.wanted) {
    tensor.wanted_at_E.push_back(num_elements);
    num_elements += range.num_elements();
  }
  tensor.num_bytes = num_elements * static_cast<int64_t>(read.live.element_size());
  return tensor;
}

/// Bytes that lie together in the staging buffer and in live memory.
struct Copy {
  const char* from;
  char* to;
  int64_t num_bytes;
};

void add_copies(const StagedRead::Tensor& tensor, const char* buffer, std::vector<Copy>* copies) {
  const auto width = static_cast<int64_t>(tensor.read->live.element_size());
  auto* const live = static_cast<char*>(tensor.read->live.detach().mutable_data_ptr());
  for (size_t i = 0; i < tensor.wanted.size(); ++i) {
    const char* from = buffer + tensor.wanted_at_E[i] * width;
    char* to = live + tensor.wanted[i].begin_E * width;
    const int64_t num_bytes = tensor.wanted[i].num_elements() * width;
    for (int64_t at = 0; at < num_bytes; at += kCopyBytes)
      copies->push_back({from + at, to + at, std::min(kCopyBytes, num_bytes - at)});
  }
}

}  // namespace

StagedRead::StagedRead(std::span<const TensorRead>* reads, KeptMemory* memory) {
  int64_t num_bytes = 0;
  while (!reads->empty()) {
    Tensor tensor = staged(reads->front());
    if (!tensors_.empty() && num_bytes + tensor.num_bytes > kGroupBytes) break;
    tensor.offset = num_bytes;
    num_bytes += (tensor.num_bytes + kAlignment - 1) / kAlignment * kAlignment;
    tensors_.push_back(std::move(tensor));
    *reads = reads->subspan(1);
  }
  bytes_ = memory->take(num_bytes);
}

void StagedRead::copy_out(int num_threads) const {
  std::vector<Copy> copies;
  int64_t num_bytes = 0;
  for (const Tensor& tensor : tensors_) {
    add_copies(tensor, buffer(tensor), &copies);
    num_bytes += tensor.num_bytes;
  }
  if (num_threads == 0) num_threads = default_num_threads();
  for_each_on_threads(
      copies.size(), num_bytes < kFewBytes ? 1 : num_threads, [&](size_t i, size_t /*thread*/) {
        std::memcpy(copies[i].to, copies[i].from, static_cast<size_t>(copies[i].num_bytes));
      });
}

}  // namespace lockstep::checkpoint
