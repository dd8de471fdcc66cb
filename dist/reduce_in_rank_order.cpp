#include "dist/reduce_in_rank_order.h"

#include <algorithm>
#include <array>
#include <type_traits>

#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

#include "base/error.h"

namespace lockstep::dist {
namespace {

constexpr int64_t kBlockItems = 1024;  // of accumulators: stays in the first-level cache

/// Sums of unsigned integers may wrap, of signed ones they may not.
template <typename T>
using Addend = std::conditional_t<std::is_same_v<T, int64_t>, uint64_t, T>;

template <ReduceOp op, typename A>
A combine(A a, A b) {
  if constexpr (op == ReduceOp::kSum) {
    return static_cast<A>(static_cast<Addend<A>>(a) + static_cast<Addend<A>>(b));
  } else if constexpr (op == ReduceOp::kMin) {
    return b < a || b != b ? b : a;  // b != b: a NaN
  } else {
    return b > a || b != b ? b : a;
  }
}

/// Items of type T, accumulated as A.
template <ReduceOp op, typename T, typename A>
void reduce(std::span<const std::byte* const> values_by_rank, std::byte* out, int64_t num_items) {
  std::array<A, kBlockItems> sums{};
  for (int64_t begin = 0; begin < num_items; begin += kBlockItems) {
    const int64_t num_here = std::min(kBlockItems, num_items - begin);
    const auto input = [&](size_t rank) {
      return reinterpret_cast<const T*>(values_by_rank[rank]) + begin;
    };
    std::copy_n(input(0), num_here, sums.begin());
    for (size_t rank = 1; rank < values_by_rank.size(); ++rank) {
      const T* values = input(rank);
      for (int64_t i = 0; i < num_here; ++i)
        sums[i] = combine<op>(sums[i], static_cast<A>(values[i]));
    }
    T* results = reinterpret_cast<T*>(out) + begin;
    for (int64_t i = 0; i < num_here; ++i) results[i] = static_cast<T>(sums[i]);
  }
}

template <ReduceOp op>
void reduce_dtype(std::span<const std::byte* const> values_by_rank, std::byte* out,
                  int64_t num_items, at::ScalarType dtype) {
  switch (dtype) {
    case at::kFloat:
      return reduce<op, float, float>(values_by_rank, out, num_items);
    case at::kDouble:
      return reduce<op, double, double>(values_by_rank, out, num_items);
    case at::kBFloat16:
      return reduce<op, c10::BFloat16, float>(values_by_rank, out, num_items);
    case at::kHalf:
      return reduce<op, c10::Half, float>(values_by_rank, out, num_items);
    case at::kLong:
      return reduce<op, int64_t, int64_t>(values_by_rank, out, num_items);
    case at::kByte:
      return reduce<op, uint8_t, uint8_t>(values_by_rank, out, num_items);
    default:
      check(false, "no reduction for this dtype");
  }
}

}  // namespace

void reduce_in_rank_order(std::span<const std::byte* const> values_by_rank, std::byte* out,
                          int64_t num_items, at::ScalarType dtype, ReduceOp op) {
  check(!values_by_rank.empty(), "a reduction over no ranks");
  switch (op) {
    case ReduceOp::kSum:
      return reduce_dtype<ReduceOp::kSum>(values_by_rank, out, num_items, dtype);
    case ReduceOp::kMin:
      return reduce_dtype<ReduceOp::kMin>(values_by_rank, out, num_items, dtype);
    case ReduceOp::kMax:
      return reduce_dtype<ReduceOp::kMax>(values_by_rank, out, num_items, dtype);
  }
}

}  // namespace lockstep::dist
