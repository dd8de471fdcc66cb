#include "dist/mean_over_ranks.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "support/thread_world.h"

namespace lockstep::dist {
namespace mean_over_ranks_test {

/// Tensors of several sizes and types, one of them empty, as rank `rank` has them.
std::vector<at::Tensor> tensors_of(int rank) {
  std::vector<at::Tensor> all;
  for (const int64_t num : {1, 5, 0, 40, 3, 1000})
    all.push_back(at::arange(num, at::kFloat) * (rank + 1) + 0.25);
  all.push_back(at::full({2, 3}, rank, at::kDouble));
  all.push_back(at::full({}, 2 * rank, at::kFloat));
  return all;
}

TEST(MeanOverRanks, EveryRankHasTheMeanWhateverTravelsTogether) {
  for (const int world_size : {1, 2, 3, 4})
    tests::run_ranks(world_size, [&](Communicator& comm) {
      const std::vector<at::Tensor> whole = tensors_of(comm.rank());
      const std::vector<at::Tensor> apart = tensors_of(comm.rank());
      mean_over_ranks(comm, whole, int64_t{1} << 20);
      mean_over_ranks(comm, apart, 1);
      for (size_t i = 0; i < whole.size(); ++i) {
        at::Tensor sum = at::zeros(whole[i].sizes(), at::kDouble);
        for (int rank = 0; rank < world_size; ++rank) sum += tensors_of(rank)[i];
        EXPECT_TRUE(at::allclose(whole[i].to(at::kDouble), sum / world_size, 1e-6, 1e-6)) << i;
        EXPECT_TRUE(at::equal(whole[i], apart[i])) << i;
      }
    });
}

TEST(MeanOverRanks, SmallOnesTravelTogether) {
  tests::run_ranks(2, [](Communicator& comm) {
    const std::vector<at::Tensor> tensors = tensors_of(comm.rank());
    int64_t num_bytes = 0;
    for (const at::Tensor& tensor : tensors) num_bytes += static_cast<int64_t>(tensor.nbytes());
    const int64_t before = comm.bytes_reduced();
    mean_over_ranks(comm, tensors, 400);
    EXPECT_EQ(comm.bytes_reduced() - before, num_bytes);
  });
}

}  // namespace mean_over_ranks_test
}  // namespace lockstep::dist
