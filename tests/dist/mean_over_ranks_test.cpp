#include "dist/communicator.h"

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

TEST(JoinedTensors, ComeApartAsTheyWere) {
  const at::Tensor turned = at::arange(6, at::kFloat).reshape({2, 3}).t();
  const std::vector<at::Tensor> tensors = {turned, at::full({}, 7, at::kLong), at::empty({0, 3})};
  const at::Tensor joined_K = joined(tensors, at::TensorOptions().dtype(at::kDouble));
  EXPECT_TRUE(joined_K.equal(at::tensor({0., 3., 1., 4., 2., 5., 7.}, at::kDouble)));
  take_apart(joined_K.mul_(2), tensors);
  EXPECT_TRUE(turned.equal(at::arange(6, at::kFloat).mul(2).reshape({2, 3}).t()));
  EXPECT_EQ(tensors[1].item<int64_t>(), 14);
  const at::Tensor one = at::ones({2});
  (void)joined(one, one.options()).zero_();
  EXPECT_TRUE(one.equal(at::ones({2}))) << "what is joined is a copy";
}

}  // namespace mean_over_ranks_test
}  // namespace lockstep::dist
