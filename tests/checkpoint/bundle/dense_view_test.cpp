#include "checkpoint/format/saved_values.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "checkpoint/format/object_graph.h"
#include "tests/checkpoint/save_fixture.h"

namespace lockstep::checkpoint {
namespace dense_view_test {

using ::testing::Contains;
using ::testing::Not;
using ::testing::StartsWith;
using tests::TemporaryFolder;

/// A save that holds model/w as what a mask of 3 × 4 keeps: items 0, 5, 10 and 11.
struct SparseSave {
  void write(const TemporaryFolder& folder) {
    lockstep::tests::run_ranks(1, [&](dist::Communicator& control) {
      const StateList state = {{"_lockstep/masks/w", bits},
                               {"_lockstep/sparse/model/w/values", values_K},
                               {"_lockstep/sparse/model/w/form", {}, &form},
                               {"model/b", at::ones({2})}};
      EXPECT_TRUE(Saver({.prefix = folder.prefix()}, control).save(state, 1).ok);
    });
  }

  at::Tensor bits = at::tensor({0x21, 0x0c}, at::kByte);
  at::Tensor values_K = at::tensor({1.0, 2.0, 3.0, 4.0}, at::kFloat);
  std::string form = "[3, 4] _lockstep/masks/w";
};

bool is_refused(SparseSave save) {
  TemporaryFolder folder;
  save.write(folder);
  BundleReader reader(folder.prefix() + "-1");
  try {
    DenseView(&reader).read(index_name("model/w"));
  } catch (const Error& fault) {
    return fault.code() == ExitCode::kBadData;
  }
  return false;
}

TEST(DenseView, ShowsSparseTensorsWholeUnderTheirOwnNames) {
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16, at::kDouble}) {
    TemporaryFolder folder;
    SparseSave save;
    save.values_K = save.values_K.to(type);
    save.write(folder);
    BundleReader reader(folder.prefix() + "-1");
    DenseView view(&reader);
    EXPECT_THAT(view.names(), Contains(index_name("model/w")));
    EXPECT_THAT(view.names(), Not(Contains(StartsWith("_lockstep/sparse/"))));
    EXPECT_EQ(view.names().size(), 5U);  // mask, w, b, counter, graph
    EXPECT_TRUE(view.is_sparse(index_name("model/w")));
    EXPECT_FALSE(view.is_sparse(index_name("model/b")));
    const at::Tensor expected =
        at::tensor({1, 0, 0, 0, 0, 2, 0, 0, 0, 0, 3, 4}, at::kFloat).to(type).reshape({3, 4});
    const at::Tensor dense = view.read(index_name("model/w"));
    EXPECT_EQ(dense.scalar_type(), type);
    EXPECT_TRUE(at::equal(dense, expected));
    EXPECT_TRUE(at::equal(view.read(index_name("model/b")), at::ones({2})));
  }
}

TEST(DenseView, PartsThatDoNotFitAreRefused) {
  EXPECT_FALSE(is_refused({}));
  EXPECT_TRUE(is_refused({.values_K = at::ones({5})}));
  EXPECT_TRUE(is_refused({.values_K = at::ones({4}, at::kChar)})) << "no mask prunes int8";
  EXPECT_TRUE(is_refused({.bits = at::ones({3}, at::kByte)}));
  EXPECT_TRUE(is_refused({.bits = at::ones({2}, at::kFloat)}));
  EXPECT_TRUE(is_refused({.form = "[3, 4] _lockstep/masks/v"})) << "there is no such mask";
  for (const char* form : {"", "3, 4", "[3, 4]", "[3, -4] _lockstep/masks/w", "[3, \"4\"] m",
                           "[281474976710656, 281474976710656] _lockstep/masks/w"})
    EXPECT_TRUE(is_refused({.form = form})) << form;
}

}  // namespace dense_view_test
}  // namespace lockstep::checkpoint
