// Loops over tensor elements, compiled with -O3 (dist/CMakeLists.txt).
#include "dist/tensor_math.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <type_traits>

#include <ATen/Parallel.h>
#include <ATen/ops/amax.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>
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

// Sums over ranks: a fixed tree, block by block, so that intermediate results stay in L1.

namespace {

constexpr int64_t kBlockItems = 1024;  // a few blocks of accumulators fit in L1
constexpr int64_t kLineBytes = 64;
// Inputs are in memory or in another core's cache. The processor's own prefetch ends with each page
// of 4 KiB; this one takes a seventh off an all-reduce of 64 MiB.
constexpr int64_t kFetchedAheadBytes = 2048;

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

/// Fetches a later line of an input into the caches. Beyond the input's end this has no effect.
template <typename T>
void fetch_ahead(const T* items) {
  __builtin_prefetch(reinterpret_cast<const std::byte*>(items) + kFetchedAheadBytes);
}

/// Computes into = left op right, item by item, and stores it in `also` too, if given.
template <ReduceOp op, typename A, typename L, typename R, typename Out>
void combine_runs(const L* left, const R* right, Out* into, Out* also, int64_t num_items) {
  const auto item = [&](int64_t i) {
    return static_cast<Out>(combine<op>(static_cast<A>(left[i]), static_cast<A>(right[i])));
  };
  // `into` may be `left` or `right` itself, from which g++ would conclude a dependency of items.
  const auto combine_items = [&](int64_t begin, int64_t end) {
    if (also == nullptr) {
      LOCKSTEP_INDEPENDENT_ITEMS
      for (int64_t i = begin; i < end; ++i) into[i] = item(i);
    } else {
      LOCKSTEP_INDEPENDENT_ITEMS
      for (int64_t i = begin; i < end; ++i) also[i] = into[i] = item(i);
    }
  };
  constexpr int64_t kLineItems = kLineBytes / static_cast<int64_t>(sizeof(Out));
  for (int64_t i = 0; i < num_items; i += kLineItems) {
    fetch_ahead(left + i);
    fetch_ahead(right + i);
    combine_items(i, std::min(i + kLineItems, num_items));
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

// Division, checks and magnitudes: loops without branches, so that compilers vectorise them.

constexpr double kInfinity = std::numeric_limits<double>::infinity();

/// True if all items, computed as A, are finite. Reads only.
template <typename T, typename A>
static bool all_finite(const T* values, int64_t num_items) {
  int32_t num_bad = 0;
  for (int64_t i = 0; i < num_items; ++i) {
    const A wide = static_cast<A>(values[i]);
    num_bad |= static_cast<int32_t>(!(wide - wide == A{0}));
  }
  return num_bad == 0;
}

/// Divides items of type T, computed as A, and checks the means. `x - x` is 0 for a finite x and
/// NaN otherwise. Unlike a branch, this vectorises.
template <typename T, typename A>
static bool divide(void* sums_E, int64_t num_items, int64_t num_samples) {
  T* values = static_cast<T*>(sums_E);
  if (num_samples == 1) return all_finite<T, A>(values, num_items);
  const A divisor = static_cast<A>(num_samples);
  int32_t num_bad = 0;
  for (int64_t i = 0; i < num_items; ++i) {
    const T mean = static_cast<T>(static_cast<A>(values[i]) / divisor);
    const A wide = static_cast<A>(mean);
    values[i] = mean;
    num_bad |= static_cast<int32_t>(!(wide - wide == A{0}));
  }
  return num_bad == 0;
}

/// Returns a type in which items of any type are finite if they are in their own.
static at::ScalarType wide_type(const at::Tensor& tensor) {
  return tensor.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
}

bool divide_and_check(void* sums_E, int64_t num_items, at::ScalarType dtype, int64_t num_samples) {
  check(num_samples > 0, "a mean over no samples");
  switch (dtype) {
    case at::kFloat:
      return divide<float, float>(sums_E, num_items, num_samples);
    case at::kDouble:
      return divide<double, double>(sums_E, num_items, num_samples);
    case at::kBFloat16:
      return divide<c10::BFloat16, float>(sums_E, num_items, num_samples);
    case at::kHalf:
      return divide<c10::Half, float>(sums_E, num_items, num_samples);
    default:
      check(false, "gradients are floats");
      return false;
  }
}

bool divide_and_check(const at::Tensor& sums_E, int64_t num_samples) {
  check(num_samples > 0, "a mean over no samples");
  check(sums_E.is_contiguous(), "a flat gradient buffer is contiguous");
  if (!sums_E.is_cpu()) {
    if (num_samples != 1) sums_E.div_(static_cast<double>(num_samples));
    return true;
  }
  return divide_and_check(sums_E.mutable_data_ptr(), sums_E.numel(), sums_E.scalar_type(),
                          num_samples);
}

at::Tensor largest_of_all(at::Device device, const std::vector<at::Tensor>& tensors) {
  std::vector<at::Tensor> largest;
  for (const at::Tensor& tensor : tensors)  // one read-only pass; a maximum keeps a NaN
    if (tensor.defined() && tensor.numel() > 0)
      largest.push_back(at::linalg_vector_norm(tensor, kInfinity, c10::nullopt, /*keepdim=*/false,
                                               wide_type(tensor)));
  if (largest.empty()) return at::zeros({1}, at::TensorOptions(at::kFloat).device(device));
  return at::stack(largest).amax().view({1});
}

/// Compares the bits of the magnitudes as integers: of two finite floats the larger one has the
/// larger bits after the sign. Infinity and NaN have the largest.
double largest_magnitude(const at::Tensor& values_E) {
  check(values_E.is_cpu() && values_E.scalar_type() == at::kFloat && values_E.is_contiguous(),
        "float32 on the CPU");
  const auto* items = static_cast<const int32_t*>(values_E.const_data_ptr());
  const int32_t largest = at::parallel_reduce(
      0, values_E.numel(), int64_t{1} << 18, 0,
      [items](int64_t begin, int64_t end, int32_t found) {
        for (int64_t i = begin; i < end; ++i)
          found = std::max(found, items[i] & std::numeric_limits<int32_t>::max());
        return found;
      },
      [](int32_t one, int32_t other) { return std::max(one, other); });
  const auto value = std::bit_cast<float>(largest);
  return std::isfinite(value) ? static_cast<double>(value) : kInfinity;
}

// Digests: a fast non-cryptographic hash. The result is the same on all hosts, since it uses
// integers only.

constexpr uint64_t kMultiplier =
    0x9fb21c651e98df25;  // odd, so that each step below is a bijection of the word
constexpr uint64_t kFinal = 0xd6e8feb86659fd93;

static uint64_t absorb(uint64_t lane, uint64_t word) {
  return std::rotl(lane ^ word, 29) * kMultiplier;
}

static uint64_t spread(uint64_t x) {
  x = (x ^ (x >> 32)) * kFinal;
  x = (x ^ (x >> 32)) * kFinal;
  return x ^ (x >> 32);
}

static uint64_t word_at(const std::byte* bytes) {
  uint64_t word = 0;
  std::memcpy(&word, bytes, sizeof(word));
  return word;
}

/// Uses four lanes, since each waits for its own multiplication. Then come the remaining words, the
/// last one padded with zeros.
static uint64_t digest_bytes(const std::byte* bytes, int64_t num_bytes, uint64_t seed) {
  std::array<uint64_t, 4> lanes{seed, spread(seed + 1), spread(seed + 2), spread(seed + 3)};
  int64_t i = 0;
  for (; i + 32 <= num_bytes; i += 32)
    for (int lane = 0; lane < 4; ++lane)
      lanes[lane] = absorb(lanes[lane], word_at(bytes + i + 8 * lane));
  uint64_t digest = 0;
  for (const uint64_t lane : lanes) digest = spread(absorb(digest, lane));
  for (; i + 8 <= num_bytes; i += 8) digest = absorb(digest, word_at(bytes + i));
  if (i < num_bytes) {
    uint64_t last = 0;
    std::memcpy(&last, bytes + i, num_bytes - i);
    digest = absorb(digest, last);
  }
  return spread(digest);
}

int64_t tensor_digest(const at::Tensor& tensor) {
  const at::Tensor whole = tensor.detach().cpu().contiguous();
  // Type and shape are part of the digest: the same bytes in another shape must differ.
  uint64_t seed = spread(static_cast<uint64_t>(whole.scalar_type()) + 1);
  for (const int64_t size : whole.sizes()) seed = absorb(seed, spread(static_cast<uint64_t>(size)));
  const auto num_bytes = static_cast<int64_t>(whole.nbytes());
  return static_cast<int64_t>(digest_bytes(static_cast<const std::byte*>(whole.const_data_ptr()),
                                           num_bytes, spread(seed ^ num_bytes)));
}

}  // namespace lockstep::dist
