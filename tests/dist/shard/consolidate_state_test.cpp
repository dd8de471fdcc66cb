#include "dist/communicator.h"

#include <limits>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "tests/support/thread_world.h"

namespace lockstep::dist {
namespace consolidate_state_test {

bool same_bits(const at::Tensor& a, const at::Tensor& b) {
  return a.contiguous().view(-1).view(at::kByte).equal(b.contiguous().view(-1).view(at::kByte));
}

/// Values whose bits a sum of floats would not keep.
at::Tensor odd_values(at::ScalarType dtype) {
  at::Tensor values = at::sin(at::arange(60, at::kDouble)).to(dtype).view({12, 5}).clone();
  values[0][0] = -0.0;
  values[3][1] = std::numeric_limits<double>::quiet_NaN();
  values[7][2] = -std::numeric_limits<double>::infinity();
  values[11][4] = 1e-40;
  return values;
}

TEST(CompleteState, IsTheBitsOfTheOwners) {
  for (const auto dtype : {at::kFloat, at::kDouble, at::kBFloat16, at::kHalf})
    for (const int num_ranks : {1, 2, 3, 4})
      tests::run_ranks(num_ranks, [&](Communicator& comm) {
        const at::Tensor whole = odd_values(dtype);
        at::Tensor mine = at::zeros_like(whole);
        const int64_t begin = 12 * comm.rank() / comm.world_size();
        const int64_t end = 12 * (comm.rank() + 1) / comm.world_size();
        mine.slice(0, begin, end).copy_(whole.slice(0, begin, end));
        at::Tensor everywhere = whole.clone(), empty = at::empty({0}, dtype);
        int64_t num_updates = 123456789;
        std::string text = "stays";
        consolidate_state(comm, {{.key = "slot", .tensor = mine},
                                 {.key = "whole already", .tensor = everywhere},
                                 {.key = "count", .tensor = view_of(&num_updates)},
                                 {.key = "text", .tensor = {}, .text = &text},
                                 {.key = "empty", .tensor = empty}});
        EXPECT_TRUE(same_bits(mine, whole)) << mine;
        EXPECT_TRUE(same_bits(everywhere, whole)) << everywhere;
        EXPECT_EQ(num_updates, 123456789);
        EXPECT_EQ(text, "stays");
      });
}

TEST(CompleteState, NeedsOneRunOfMemory) {
  tests::run_ranks(2, [](Communicator& comm) {
    EXPECT_THROW(consolidate_state(comm, {{.key = "turned", .tensor = at::zeros({3, 2}).t()}}),
                 Error);
  });
}

}  // namespace consolidate_state_test
}  // namespace lockstep::dist
