#include "coord/callbacks_handler.h"

#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "coord/recording_callback.h"

namespace lockstep::coord {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;
using tests::fault_of;
using tests::recording;
using Options = std::vector<tests::RecordingCallback::Options>;

std::string fault_of_graph(const Options& options, const std::vector<std::string>& sources = {}) {
  return fault_of([&] { sorted_callbacks(recording(options), sources); });
}

std::vector<std::string> order_of(const Options& options) {
  std::vector<std::string> names;
  for (const CallbackNode& node : sorted_callbacks(recording(options), {"x"}))
    names.push_back(node.name);
  return names;
}

TEST(CallbackGraph, N55_sorts_by_what_is_passed_and_ties_by_name) {
  const Options options = {{.name = "a", .incoming = {"of_c"}},
                           {.name = "d"},
                           {.name = "c", .incoming = {"x"}, .generated = {"of_c"}},
                           {.name = "b", .incoming = {"_of_c"}}};
  EXPECT_THAT(order_of(options), ElementsAre("c", "a", "b", "d"));
  EXPECT_THAT(order_of({options.rbegin(), options.rend()}), ElementsAre("c", "a", "b", "d"));
  EXPECT_THAT(order_of({}), ElementsAre());
}

TEST(CallbackGraph, N55_a_cycle_is_refused_with_its_chain) {
  EXPECT_EQ(fault_of_graph({{.name = "b", .incoming = {"of_a"}, .generated = {"of_b"}},
                            {.name = "c", .incoming = {"of_b"}, .generated = {"of_c"}},
                            {.name = "a", .incoming = {"of_c"}, .generated = {"of_a"}},
                            {.name = "aa", .incoming = {"of_c"}}}),
            "78 [callbacks] callbacks wait for each other: 'a' -> 'b' -> 'c' -> 'a'; one of them "
            "must not read a key of the previous one");
  EXPECT_THAT(fault_of_graph({{.name = "a", .incoming = {"x"}, .generated = {"x"}}}),
              HasSubstr("'a' -> 'a'"));
}

TEST(CallbackGraph, N5_a_key_that_nobody_makes_is_refused_with_the_chain) {
  EXPECT_EQ(fault_of_graph({{.name = "a", .incoming = {"logit"}, .generated = {"p"}},
                            {.name = "b", .incoming = {"p"}}},
                           {"logits", "_mask"}),
            "78 [callbacks] callback 'a' reads 'logit', which no callback generates (did you mean "
            "'logits'?); the chain is 'logit' -> 'a' -> 'b'; available: logits, mask, p");
}

TEST(CallbackGraph, N6_an_optional_key_may_have_no_maker) {
  EXPECT_EQ(fault_of_graph({{.name = "a", .incoming = {"_x"}}}), "");
}

TEST(CallbackGraph, N8_a_key_made_twice_is_refused) {
  EXPECT_THAT(
      fault_of_graph({{.name = "a", .generated = {"p"}}, {.name = "b", .generated = {"_p"}}}),
      StartsWith("78 [callbacks] key 'p' is generated twice: by callback 'a' and by callback 'b'"));
  EXPECT_THAT(fault_of_graph({{.name = "a", .generated = {"p"}}}, {"p"}),
              HasSubstr("by the iteration itself and by callback 'a'"));
}

TEST(CallbackGraph, N2_all_ranks_cannot_read_what_rank_0_alone_makes) {
  const Options options = {{.name = "a", .generated = {"p"}},
                           {.name = "b", .incoming = {"p"}, .run_on = RunOn::kAll}};
  EXPECT_THAT(fault_of_graph(options),
              StartsWith("78 [callbacks] callback 'b' runs on all ranks and reads 'p', which 'a' "
                         "generates only on rank 0"));
}

TEST(CallbackGraph, Two_of_one_name_are_refused) {
  EXPECT_THAT(fault_of_graph({{.name = "a"}, {.name = "a"}}), HasSubstr("two callbacks"));
}

}  // namespace
}  // namespace lockstep::coord
