// Sums in a fixed tree over the ranks, block by block, so that intermediate results stay in L1.
#include "dist/reduce_in_rank_order.h"

#include <algorithm>
#include <array>
#include <bit>
#include <numeric>
#include <type_traits>
#include <vector>

#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

#include "base/error.h"

// Tells the compiler that iterations are independent, so that it vectorises the loop.
#ifdef __clang__
#define LOCKSTEP_INDEPENDENT_ITEMS _Pragma("clang loop vectorize(assume_safety)")
#else
#define LOCKSTEP_INDEPENDENT_ITEMS _Pragma("GCC ivdep")
#endif

namespace lockstep::dist {
namespace {

constexpr int64_t kBlockItems = 1024;  // a few blocks of accumulators fit in L1

/// Unsigned type for sums of int64: signed overflow would be undefined.
template <typename T>
using Addend = std::conditional_t<std::is_same_v<T, int64_t>, uint64_t, T>;

template <ReduceOp op, typename A>
A combine(A a, A b) {
  if constexpr (op == ReduceOp::kSum) {
    return static_cast<A>(static_cast<Addend<A>>(a) + static_cast<Addend<A>>(b));
  } else if constexpr (op == ReduceOp::kMin) {
    return b < a || b != b ? b : a;  // b != b: b is NaN
  } else {
    return b > a || b != b ? b : a;
  }
}

/// Items [begin, begin + num_items) of the inputs.
struct Block {
  const PartialInputs& inputs;
  int64_t begin;
  int64_t num_items;  ///< at most kBlockItems

  template <typename In>
  const In* input(size_t i) const {
    return reinterpret_cast<const In*>(inputs.values[i]) + begin;
  }

  /// Returns the first input of the right subtree of inputs [first, last).
  size_t split(size_t first, size_t last) const {
    const auto ranks = inputs.first_ranks.begin();
    const int middle = ranks[first] + left_ranks(ranks[last] - ranks[first]);
    return static_cast<size_t>(std::lower_bound(ranks + first, ranks + last, middle) - ranks);
  }
};

/// Computes into = left op right, item by item, and stores it in `also` too, if given.
template <ReduceOp op, typename A, typename L, typename R, typename Out>
void combine_runs(const L* left, const R* right, Out* into, Out* also, int64_t num_items) {
  const auto item = [&](int64_t i) {
    return static_cast<Out>(combine<op>(static_cast<A>(left[i]), static_cast<A>(right[i])));
  };
  // `into` may be `left` or `right` itself, from which g++ would conclude a dependency of items.
  if (also == nullptr) {
    LOCKSTEP_INDEPENDENT_ITEMS
    for (int64_t i = 0; i < num_items; ++i) into[i] = item(i);
  } else {
    LOCKSTEP_INDEPENDENT_ITEMS
    for (int64_t i = 0; i < num_items; ++i) also[i] = into[i] = item(i);
  }
}

/// Reduces inputs [first, last) of the block with accumulators A.
template <ReduceOp op, typename In, typename A, typename Out>
void reduce_range(const Block& block, size_t first, size_t last, Out* into, Out* also) {
  if (last - first == 1) {
    std::copy_n(block.input<In>(first), block.num_items, into);
    if (also != nullptr) std::copy_n(into, block.num_items, also);
    return;
  }
  const size_t middle = block.split(first, last);
  std::array<A, kBlockItems> left, right;  // uninitialised: written before it is read
  // Inner nodes stay in the accumulator type; only the root rounds to Out.
  const bool left_is_input = middle - first == 1, right_is_input = last - middle == 1;
  if (!left_is_input) reduce_range<op, In, A, A>(block, first, middle, left.data(), nullptr);
  if (!right_is_input) reduce_range<op, In, A, A>(block, middle, last, right.data(), nullptr);
  const auto combined = [&](const auto* a, const auto* b) {
    combine_runs<op, A>(a, b, into, also, block.num_items);
  };
  if (left_is_input && right_is_input)
    combined(block.input<In>(first), block.input<In>(middle));
  else if (left_is_input)
    combined(block.input<In>(first), right.data());
  else if (right_is_input)
    combined(left.data(), block.input<In>(middle));
  else
    combined(left.data(), right.data());
}

struct Job {
  const PartialInputs& inputs;
  std::byte* out;
  std::byte* also_out;
  int64_t num_items;
};

template <ReduceOp op, typename In, typename A, typename Out>
void reduce(const Job& job) {
  for (int64_t begin = 0; begin < job.num_items; begin += kBlockItems) {
    const Block block{job.inputs, begin, std::min(kBlockItems, job.num_items - begin)};
    Out* out = reinterpret_cast<Out*>(job.out) + begin;
    Out* also = job.also_out ? reinterpret_cast<Out*>(job.also_out) + begin : nullptr;
    reduce_range<op, In, A, Out>(block, 0, job.inputs.values.size(), out, also);
  }
}

/// Reduces 16-bit floats T with float32 accumulators.
template <ReduceOp op, typename T>
void reduce_short(const Job& job, bool short_in, bool short_out) {
  if (short_in && short_out) return reduce<op, T, float, T>(job);
  if (short_in) return reduce<op, T, float, float>(job);
  return reduce<op, float, float, T>(job);
}

template <ReduceOp op>
void reduce_dtypes(const Job& job, at::ScalarType in, at::ScalarType out) {
  const at::ScalarType dtype = in == at::kFloat ? out : in;
  check(accumulator_of(in) == accumulator_of(out), "a reduction between unlike dtypes");
  switch (dtype) {
    case at::kFloat:
      return reduce<op, float, float, float>(job);
    case at::kDouble:
      return reduce<op, double, double, double>(job);
    case at::kBFloat16:
      return reduce_short<op, c10::BFloat16>(job, in == dtype, out == dtype);
    case at::kHalf:
      return reduce_short<op, c10::Half>(job, in == dtype, out == dtype);
    case at::kLong:
      return reduce<op, int64_t, int64_t, int64_t>(job);
    case at::kByte:
      return reduce<op, uint8_t, uint8_t, uint8_t>(job);
    default:
      check(false, "no reduction for this dtype");
  }
}

}  // namespace

int left_ranks(int count) {
  // The largest power of two below count.
  return static_cast<int>(std::bit_floor(static_cast<unsigned>(count - 1)));
}

at::ScalarType accumulator_of(at::ScalarType dtype) {
  return dtype == at::kBFloat16 || dtype == at::kHalf ? at::kFloat : dtype;
}

void reduce_parts(const PartialInputs& inputs, std::byte* out, int64_t num_items,
                  at::ScalarType in_dtype, at::ScalarType out_dtype, ReduceOp op,
                  std::byte* also_out) {
  check(!inputs.values.empty(), "a reduction over no ranks");
  check(inputs.first_ranks.size() == inputs.values.size() + 1, "inputs without their ranks");
  const Job job{inputs, out, also_out, num_items};
  switch (op) {
    case ReduceOp::kSum:
      return reduce_dtypes<ReduceOp::kSum>(job, in_dtype, out_dtype);
    case ReduceOp::kMin:
      return reduce_dtypes<ReduceOp::kMin>(job, in_dtype, out_dtype);
    case ReduceOp::kMax:
      return reduce_dtypes<ReduceOp::kMax>(job, in_dtype, out_dtype);
  }
}

void reduce_in_rank_order(std::span<const std::byte* const> values_by_rank, std::byte* out,
                          int64_t num_items, at::ScalarType dtype, ReduceOp op,
                          std::byte* also_out) {
  // 0, 1, ... N; kept, so that a steady step allocates nothing.
  thread_local std::vector<int> ranks;
  if (ranks.size() != values_by_rank.size() + 1) {
    ranks.resize(values_by_rank.size() + 1);
    std::iota(ranks.begin(), ranks.end(), 0);
  }
  reduce_parts({values_by_rank, ranks}, out, num_items, dtype, dtype, op, also_out);
}

}  // namespace lockstep::dist
