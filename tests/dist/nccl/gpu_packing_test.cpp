// Packed gradients on a device: what each thread of the kernels does, over all items, against the
// CPU's functions; and packing between steps whose work comes late by chance.
#include "dist/nccl/gpu_backend.h"

#include <cstdlib>
#include <cstring>
#include <future>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/simd/bit_mask.h"
#include "dist/nccl/nccl_communicator.h"
#include "tests/support/fake_gpu.h"
#include "tests/support/thread_world.h"

namespace lockstep::dist::nccl {
namespace gpu_packing_test {

using ::testing::IsEmpty;

const WatchLimits kLimits{.timeout_s = 60, .grace_s = 4};

int num_schedules() { return std::getenv("LOCKSTEP_SOAK") != nullptr ? 10'000 : 100; }

std::vector<uint8_t> random_bits(int64_t num_items, double kept, std::mt19937* random) {
  std::vector<uint8_t> bits(static_cast<size_t>(num_mask_bytes(num_items)));
  keep_all(bits.data(), num_items);
  std::uniform_real_distribution<double> chance(0, 1);
  for (int64_t i = 0; i < num_items; ++i)
    if (chance(*random) >= kept) drop(bits.data(), i);
  return bits;
}

/// Any bits: NaN with their payload, -0, infinities.
at::Tensor random_items(int64_t num_items, at::ScalarType dtype, std::mt19937* random) {
  const at::Tensor items = at::empty({num_items}, dtype);
  auto* bytes = static_cast<uint8_t*>(items.mutable_data_ptr());
  for (size_t i = 0; i < items.nbytes(); ++i) bytes[i] = static_cast<uint8_t>((*random)());
  return items;
}

std::string bytes_of(const at::Tensor& items) {
  return {static_cast<const char*>(items.const_data_ptr()), items.nbytes()};
}

/// The kernels' threads on the host, one after the other, and the CPU's functions.
void expect_the_cpus_bits(int64_t num_items, at::ScalarType dtype, double kept,
                          const DevicePacking& packing, std::mt19937* random) {
  const std::vector<uint8_t> bits = random_bits(num_items, kept, random);
  const at::Tensor items_E = random_items(num_items, dtype, random);
  const auto width = static_cast<int>(items_E.element_size());
  const int64_t num_kept = count_kept(bits.data(), num_items);
  const std::string told = fmt::format("{} of {} items of {} bytes", num_kept, num_items, width);

  const DeviceMask mask = packing.to_device(bits.data(), num_items);
  ASSERT_EQ(mask.num_kept, num_kept) << told;
  const at::Tensor expected_K = at::empty({num_kept}, dtype);
  pack_kept(items_E.const_data_ptr(), bits.data(), num_items, width, expected_K.mutable_data_ptr());
  const at::Tensor packed_K = random_items(num_kept, dtype, random);
  packing.pack_kept(mask, items_E, packed_K);
  EXPECT_TRUE(bytes_of(packed_K) == bytes_of(expected_K)) << told;

  const at::Tensor expected_E = at::empty({num_items}, dtype);
  unpack_kept(packed_K.const_data_ptr(), bits.data(), num_items, width,
              expected_E.mutable_data_ptr());
  const at::Tensor unpacked_E = random_items(num_items, dtype, random);
  packing.unpack_kept(mask, packed_K, unpacked_E);
  EXPECT_TRUE(bytes_of(unpacked_E) == bytes_of(expected_E)) << told;
}

TEST(GpuPacking, EachItemHasTheCpusBits) {
  tests::FakeCluster cluster(1);
  const GpuPacking packing(cluster.gpu(0));
  std::mt19937 random(7);
  for (const at::ScalarType dtype : {at::kHalf, at::kBFloat16, at::kFloat, at::kDouble})
    for (const int64_t num_items : {0, 1, 7, 8, 63, 64, 65, 127, 128, 1000, 100'003})
      for (const double kept : {0.0, 0.03, 0.5, 0.97, 1.0})
        expect_the_cpus_bits(num_items, dtype, kept, packing, &random);
  EXPECT_THAT(cluster.breaches(), IsEmpty());
}

TEST(GpuPacking, RefusesWhatDoesNotFitItsMask) {
  tests::FakeCluster cluster(1);
  const GpuPacking packing(cluster.gpu(0));
  const uint8_t bits = 0b101;
  const DeviceMask mask = packing.to_device(&bits, 3);
  const at::Tensor items_3 = at::ones({3}), packed_2 = at::ones({2});
  EXPECT_NO_THROW(packing.pack_kept(mask, items_3, packed_2));
  EXPECT_ANY_THROW(packing.pack_kept(mask, at::ones({4}), packed_2));
  EXPECT_ANY_THROW(packing.pack_kept(mask, items_3, at::ones({3})));
  EXPECT_ANY_THROW(packing.pack_kept(mask, items_3, packed_2.to(at::kDouble)));
  EXPECT_ANY_THROW(packing.unpack_kept(mask, packed_2.to(at::kByte), items_3.to(at::kByte)));
  EXPECT_ANY_THROW(packing.unpack_kept(mask, at::ones({4}).slice(0, 0, 4, 2), items_3));
}

/// Steps as a bucket makes them: backward writes all gradients, kept ones are packed and travel,
/// the sums are unpacked for the update. The packed memory is used again.
TEST(PackingSchedules, NoneReadsBeforeItWasWritten) {
  for (int seed = 0; seed < num_schedules(); ++seed) {
    tests::FakeCluster cluster(2, {.has_async_callers = true,
                                   .most_delay_us = seed % 5 == 0 ? 2000 : 200,
                                   .seed = static_cast<uint64_t>(seed)});
    tests::run_ranks(2, [&](Communicator& control) {
      const auto comm = start_communicator(control, cluster.gpu(control.rank()), kLimits);
      const auto packing = comm->make_packing();
      std::mt19937 random(static_cast<uint32_t>(seed));
      const auto num_items = static_cast<int64_t>(1 + random() % 300);
      const std::vector<uint8_t> bits = random_bits(num_items, 0.3, &random);
      const DeviceMask mask = packing->to_device(bits.data(), num_items);
      const at::Tensor grads_E = at::zeros({num_items});
      const at::Tensor packed_K = at::zeros({mask.num_kept});
      std::vector<std::string> faults;
      for (int step = 0; step < 3; ++step) {
        const int rank = comm->rank();
        cluster.enqueue(rank, [&, rank, step] { grads_E.fill_(10 * step + rank + 1); });
        packing->pack_kept(mask, grads_E, packed_K);
        comm->all_reduce(packed_K, ReduceOp::kSum)->wait();
        packing->unpack_kept(mask, packed_K, grads_E);
        cluster.enqueue(rank, [&, step] {
          for (int64_t i = 0; i < num_items; ++i) {
            const float expected = is_kept(bits.data(), i) ? static_cast<float>(20 * step + 3) : 0;
            const float found = grads_E.const_data_ptr<float>()[i];
            if (found != expected)
              faults.push_back(fmt::format("step {}, item {}: {}", step, i, found));
          }
        });
      }
      comm->settle();
      std::promise<void> done;
      cluster.enqueue(comm->rank(), [&] { done.set_value(); });
      done.get_future().wait();
      EXPECT_THAT(faults, IsEmpty()) << "schedule " << seed;
    });
    EXPECT_THAT(cluster.breaches(), IsEmpty()) << "schedule " << seed;
    if (::testing::Test::HasFailure()) return;
  }
}

}  // namespace gpu_packing_test
}  // namespace lockstep::dist::nccl
