#include "tests/dist/communicator_contract.h"

#include <array>
#include <cstring>
#include <map>
#include <mutex>
#include <tuple>
#include <vector>

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "dist/communicator.h"

namespace lockstep::tests {
namespace {

using dist::Communicator;
using dist::ReduceOp;

constexpr std::array kDtypes{at::kFloat, at::kDouble, at::kBFloat16,
                             at::kHalf,  at::kLong,   at::kByte};
constexpr std::array<int64_t, 5> kSizes{0, 1, 7, 1000, 100'003};

std::mutex known_lock;  // of what is kept below: ranks may be threads

/// k mod 11 at place k, to be read only. Kept, as divisions would take most of a test's time.
at::Tensor places(int64_t num_items, at::ScalarType dtype) {
  static auto& known = *new std::map<at::ScalarType, at::Tensor>;
  const std::scoped_lock lock(known_lock);
  at::Tensor& longest = known[dtype];
  if (!longest.defined() || longest.numel() < num_items)
    longest = (at::arange(num_items, at::kLong) % 11).to(dtype);
  return longest.narrow(0, 0, num_items);
}

/// Small whole numbers, different over ranks and places: item k of rank r is (k mod 11) + 3 r +
/// salt. Exact in every dtype, also summed over a few ranks.
at::Tensor ramp(int64_t num_items, int rank, int64_t salt, at::ScalarType dtype) {
  return places(num_items, dtype) + (3 * rank + salt);
}

/// The sum of ramp over N ranks.
at::Tensor ramp_sum(int64_t num_items, int num_ranks, int64_t salt, at::ScalarType dtype) {
  const int64_t ranks = num_ranks;
  return (places(num_items, dtype) * ranks).add_(3 * ranks * (ranks - 1) / 2 + ranks * salt);
}

class Contract {
 public:
  explicit Contract(Communicator& comm)
      : comm_(comm), rank_(comm.rank()), num_ranks_(comm.world_size()) {}

  void check_sums(at::ScalarType dtype, int64_t num_items) {
    SCOPED_TRACE(place(dtype, num_items));
    const at::Tensor values_K = there(ramp(num_items, rank_, 1, dtype));
    comm_.all_reduce(values_K, ReduceOp::kSum)->wait();
    expect_equal(values_K, ramp_sum(num_items, num_ranks_, 1, dtype));
  }

  /// Ranks of even number begin their all_reduce before they wait for others; the rest need not.
  void check_begun_sums(at::ScalarType dtype, int64_t num_items) {
    SCOPED_TRACE(place(dtype, num_items));
    const at::Tensor values_K = there(ramp(num_items, rank_, 6, dtype));
    std::unique_ptr<dist::Work> work;
    if (rank_ % 2 == 0) work = comm_.begin_all_reduce(values_K, ReduceOp::kSum);
    if (work != nullptr) static_cast<void>(work->wait_briefly());
    if (work == nullptr) work = comm_.all_reduce(values_K, ReduceOp::kSum);
    work->wait();
    expect_equal(values_K, ramp_sum(num_items, num_ranks_, 6, dtype));
  }

  void check_extremes(at::ScalarType dtype, int64_t num_items) {
    SCOPED_TRACE(place(dtype, num_items));
    const at::Tensor least_K = there(ramp(num_items, rank_, 1, dtype)), most_K = least_K.clone();
    comm_.all_reduce(least_K, ReduceOp::kMin)->wait();
    comm_.all_reduce(most_K, ReduceOp::kMax)->wait();
    expect_equal(least_K, ramp(num_items, 0, 1, dtype));
    expect_equal(most_K, ramp(num_items, num_ranks_ - 1, 1, dtype));
  }

  void check_reduce_scatter(at::ScalarType dtype, int64_t num_items) {
    SCOPED_TRACE(place(dtype, num_items));
    const at::Tensor values_NK = there(ramp(num_items * num_ranks_, rank_, 2, dtype));
    const at::Tensor piece_K = at::empty({num_items}, values_NK.options());
    comm_.reduce_scatter(piece_K, values_NK)->wait();
    const at::Tensor sum_NK = ramp_sum(num_items * num_ranks_, num_ranks_, 2, dtype);
    expect_equal(piece_K, sum_NK.narrow(0, rank_ * num_items, num_items));
    expect_equal(values_NK, ramp(num_items * num_ranks_, rank_, 2, dtype));
  }

  void check_in_place(int64_t num_items) {
    SCOPED_TRACE(place(at::kFloat, num_items));
    const int64_t begin = rank_ * num_items;
    const at::Tensor values_NK = there(ramp(num_items * num_ranks_, rank_, 2, at::kFloat));
    const at::Tensor own_K = values_NK.narrow(0, begin, num_items);
    at::Tensor expected_NK = values_NK.cpu().clone();
    const at::Tensor sum_NK = ramp_sum(num_items * num_ranks_, num_ranks_, 2, at::kFloat);
    expected_NK.narrow(0, begin, num_items).copy_(sum_NK.narrow(0, begin, num_items));
    comm_.reduce_scatter(own_K, values_NK)->wait();
    expect_equal(values_NK, expected_NK);
    comm_.all_gather(values_NK, own_K)->wait();
    expect_equal(values_NK, sum_NK);
  }

  void check_all_gather(at::ScalarType dtype, int64_t num_items) {
    SCOPED_TRACE(place(dtype, num_items));
    const at::Tensor values_K = there(ramp(num_items, rank_, 4, dtype));
    const at::Tensor all_NK = at::zeros({num_items * num_ranks_}, values_K.options());
    comm_.all_gather(all_NK, values_K)->wait();
    for (int r = 0; r < num_ranks_; ++r)
      expect_equal(all_NK.narrow(0, r * num_items, num_items), ramp(num_items, r, 4, dtype));
  }

  void check_broadcast(at::ScalarType dtype, int64_t num_items) {
    SCOPED_TRACE(place(dtype, num_items));
    for (int root = 0; root < num_ranks_; ++root) {
      const at::Tensor values_K = there(ramp(num_items, rank_, 5, dtype));
      comm_.broadcast(values_K, root);
      expect_equal(values_K, ramp(num_items, root, 5, dtype));
    }
  }

  void check_integer_range() {
    const int64_t highest = std::numeric_limits<int64_t>::max();
    const at::Tensor values_2 = there(at::full({2}, rank_ == 0 ? highest : -highest, at::kLong));
    comm_.all_reduce(values_2, ReduceOp::kMax)->wait();
    expect_equal(values_2, at::full({2}, highest, at::kLong));
  }

  void check_bytes_reduced() {
    const int64_t before = comm_.bytes_reduced();
    comm_.all_reduce(there(at::zeros({10}, at::kFloat)), ReduceOp::kSum)->wait();
    EXPECT_EQ(comm_.bytes_reduced() - before, 40);
    const at::Tensor values_NK = there(at::zeros({3 * num_ranks_}, at::kDouble));
    comm_.reduce_scatter(at::empty({3}, values_NK.options()), values_NK)->wait();
    EXPECT_EQ(comm_.bytes_reduced() - before, 40 + 24 * num_ranks_);
    comm_.all_gather(values_NK, at::empty({3}, values_NK.options()))->wait();
    comm_.broadcast(values_NK, 0);
    EXPECT_EQ(comm_.bytes_reduced() - before, 40 + 24 * num_ranks_) << "only reductions count";
  }

  void check_several_under_way() {
    std::vector<at::Tensor> buckets;
    std::vector<std::unique_ptr<dist::Work>> works;
    for (int64_t i = 0; i < 5; ++i) {
      buckets.push_back(there(ramp(1000 * i, rank_, i, at::kFloat)));
      works.push_back(comm_.all_reduce(buckets.back(), ReduceOp::kSum));
    }
    for (const auto& work : works) work->wait();
    for (int64_t i = 0; i < 5; ++i)
      expect_equal(buckets[i], ramp_sum(1000 * i, num_ranks_, i, at::kFloat));
  }

  /// Checks shared memory, which exists on all ranks or on none: zeros, then the values that each
  /// rank has written for all.
  void check_shared_memory() {
    if (!comm_.device().is_cpu()) return;
    constexpr int64_t kBytesEach = 10'000;
    const dist::SharedMemory memory = comm_.share_memory(kBytesEach * num_ranks_);
    at::Tensor num_there = at::full({1}, memory.begin != nullptr ? 1 : 0, at::kLong);
    comm_.all_reduce(num_there, ReduceOp::kSum)->wait();
    const auto there = num_there.item<int64_t>();
    EXPECT_TRUE(there == 0 || there == num_ranks_) << there;
    EXPECT_EQ(memory.begin == nullptr, !memory.why_not.empty());
    if (memory.begin == nullptr) return;
    std::byte* const bytes = memory.begin.get();
    for (int64_t i = 0; i < kBytesEach * num_ranks_; ++i) ASSERT_EQ(bytes[i], std::byte{0});
    comm_.barrier();
    std::memset(bytes + rank_ * kBytesEach, rank_ + 1, kBytesEach);
    comm_.barrier();
    for (int64_t i = 0; i < kBytesEach * num_ranks_; ++i)
      ASSERT_EQ(bytes[i], static_cast<std::byte>(i / kBytesEach + 1));
  }

  /// Two halves, ranked backwards; then both worlds are used in turn.
  void check_split() {
    const auto part = comm_.split(rank_ % 2, -rank_);
    const int part_ranks = (num_ranks_ + 1 - rank_ % 2) / 2;
    ASSERT_EQ(part->world_size(), part_ranks);
    EXPECT_EQ(part->rank(), part_ranks - 1 - rank_ / 2);
    EXPECT_EQ(part->device(), comm_.device());
    EXPECT_EQ(part->bytes_reduced(), 0);
    EXPECT_EQ(dist::sum_of(*part, rank_), (part_ranks - 1) * part_ranks + part_ranks * (rank_ % 2));
    EXPECT_EQ(dist::sum_of(comm_, rank_), num_ranks_ * (num_ranks_ - 1) / 2);
    const auto alone = part->split(rank_, 0);
    EXPECT_EQ(alone->world_size(), 1);
    EXPECT_EQ(dist::sum_of(*alone, rank_), rank_);
  }

  void check_misuse_is_refused() {
    const at::Tensor matrix_44 = there(at::zeros({4, 4}, at::kFloat));
    EXPECT_THROW(static_cast<void>(comm_.all_reduce(matrix_44.t().narrow(0, 0, 2), ReduceOp::kSum)),
                 Error);
    EXPECT_THROW(
        static_cast<void>(comm_.all_reduce(there(at::zeros({2}, at::kShort)), ReduceOp::kSum)),
        Error);
    EXPECT_THROW(static_cast<void>(
                     comm_.all_gather(matrix_44.view(-1), matrix_44.view(-1).narrow(0, 0, 15))),
                 Error);
    EXPECT_THROW(comm_.broadcast(matrix_44, num_ranks_), Error);
    comm_.barrier();
  }

  void check_rank_order(at::ScalarType dtype, int64_t num_items) {
    SCOPED_TRACE(place(dtype, num_items));
    const at::Tensor values_K = rough(num_items, rank_, dtype),
                     expected_K = sum_in_rank_order(num_items, dtype);
    const at::Tensor whole_K = values_K.clone();
    comm_.all_reduce(whole_K, ReduceOp::kSum)->wait();
    expect_same_bits(whole_K, expected_K);

    const int64_t cut =
        num_items / 3;  // the same values in two calls, cut elsewhere than any piece or chunk
    const at::Tensor parts_K = values_K.clone();
    comm_.all_reduce(parts_K.narrow(0, 0, cut), ReduceOp::kSum)->wait();
    comm_.all_reduce(parts_K.narrow(0, cut, num_items - cut), ReduceOp::kSum)->wait();
    expect_same_bits(parts_K, expected_K);

    const int64_t piece = num_items / num_ranks_;
    const at::Tensor piece_K = at::empty({piece}, values_K.options());
    comm_.reduce_scatter(piece_K, values_K.narrow(0, 0, piece * num_ranks_).contiguous())->wait();
    expect_same_bits(piece_K, expected_K.narrow(0, rank_ * piece, piece));
  }

  void check_nan_reaches_all() {
    const at::Tensor values_3 = there(at::full({3}, rank_, at::kFloat));
    if (rank_ == num_ranks_ - 1) values_3[1] = std::numeric_limits<double>::quiet_NaN();
    for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kMin, ReduceOp::kMax}) {
      const at::Tensor copy_3 = values_3.clone();
      comm_.all_reduce(copy_3, op)->wait();
      EXPECT_TRUE(copy_3.isnan().equal(there(at::tensor({0, 1, 0}, at::kLong).to(at::kBool))));
    }
  }

 private:
  at::Tensor there(const at::Tensor& host) const { return host.to(comm_.device()); }

  std::string place(at::ScalarType dtype, int64_t num_items) const {
    return fmt::format("rank {} of {}, {} items of {}", rank_, num_ranks_, num_items,
                       c10::toString(dtype));
  }

  static void expect_equal(const at::Tensor& actual, const at::Tensor& expected) {
    EXPECT_TRUE(actual.cpu().equal(expected))
        << "got " << actual.cpu().flatten().narrow(0, 0, std::min<int64_t>(8, actual.numel()));
  }

  static void expect_same_bits(const at::Tensor& actual, const at::Tensor& expected) {
    ASSERT_EQ(actual.nbytes(), expected.nbytes());
    EXPECT_TRUE(actual.numel() == 0 || std::memcmp(actual.const_data_ptr(),
                                                   expected.const_data_ptr(), actual.nbytes()) == 0)
        << "the bits are not those of the sum in rank order";
  }

  /// Values of very different magnitude, so that almost every other order of addition gives other
  /// bits.
  static at::Tensor rough(int64_t num_items, int rank, at::ScalarType dtype) {
    const at::Tensor k = at::arange(num_items, at::kDouble) + 1000.0 * rank;
    return ((k * 0.7310).sin() * (k * 1.37).cos().mul(6).exp2()).to(dtype);
  }

  /// Kept, as every kind of communicator is asked for the same sums. To be read only.
  at::Tensor sum_in_rank_order(int64_t num_items, at::ScalarType dtype) const {
    static auto& known = *new std::map<std::tuple<int64_t, int, at::ScalarType>, at::Tensor>;
    const std::scoped_lock lock(known_lock);
    at::Tensor& sum = known[{num_items, num_ranks_, dtype}];
    if (!sum.defined()) sum = make_sum_in_rank_order(num_items, dtype);
    return sum;
  }

  /// The tree, by doubling: what stands at rank r after round d covers the 2^d ranks from r on.
  at::Tensor make_sum_in_rank_order(int64_t num_items, at::ScalarType dtype) const {
    const at::ScalarType wide = dtype == at::kDouble ? at::kDouble : at::kFloat;
    std::vector<at::Tensor> sums;
    for (int r = 0; r < num_ranks_; ++r) sums.push_back(rough(num_items, r, dtype).to(wide));
    for (int span = 1; span < num_ranks_; span *= 2)
      for (int r = 0; r + span < num_ranks_; r += 2 * span) sums[r] = sums[r] + sums[r + span];
    return sums[0].to(dtype);
  }

  Communicator& comm_;
  const int rank_;
  const int num_ranks_;
};

}  // namespace

void check_communicator_contract(Communicator& comm, bool exact_order) {
  Contract contract(comm);
  ASSERT_GE(comm.rank(), 0);
  ASSERT_LT(comm.rank(), comm.world_size());
  for (const at::ScalarType dtype : kDtypes) {
    for (const int64_t num_items : kSizes) {
      contract.check_sums(dtype, num_items);
      contract.check_begun_sums(dtype, num_items);
      contract.check_extremes(dtype, num_items);
      contract.check_reduce_scatter(dtype, num_items);
      contract.check_all_gather(dtype, num_items);
      contract.check_broadcast(dtype, num_items);
      if (exact_order && at::isFloatingType(dtype)) contract.check_rank_order(dtype, num_items);
    }
  }
  for (const int64_t num_items : kSizes) contract.check_in_place(num_items);
  contract.check_integer_range();
  contract.check_bytes_reduced();
  contract.check_several_under_way();
  contract.check_split();
  contract.check_shared_memory();
  contract.check_misuse_is_refused();
  if (exact_order) contract.check_nan_reaches_all();
}

void check_large_tensors(Communicator& comm) {
  Contract contract(comm);
  constexpr int64_t kItems = 1'200'007;  // 9.2 MiB of float64
  contract.check_sums(at::kDouble, kItems);
  contract.check_rank_order(at::kDouble, kItems);
  contract.check_all_gather(at::kDouble, kItems);
  contract.check_reduce_scatter(at::kDouble, kItems);
  contract.check_in_place(kItems);
  contract.check_broadcast(at::kDouble, kItems);
}

}  // namespace lockstep::tests
