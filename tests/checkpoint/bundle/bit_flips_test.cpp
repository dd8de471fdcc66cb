// Random single-bit flips over all files of a save that holds everything a save can hold, and cuts
// at the edges of everything in it. LOCKSTEP_FLIPS and LOCKSTEP_SEED: how many, and which.
#include <algorithm>
#include <cstdlib>
#include <random>
#include <set>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "base/simd/bit_mask.h"
#include "checkpoint/format/bundle_index.h"
#include "checkpoint/format/checkpoint_files.h"
#include "checkpoint/format/saved_values.h"
#include "checkpoint/restore.h"
#include "tests/checkpoint/bundle/file_damage.h"

namespace lockstep::checkpoint {
namespace bit_flips_test {

using ::testing::IsEmpty;
using tests::FileDamage;
using tests::TemporaryFolder;

int64_t setting(const char* name, int64_t otherwise) {
  const char* text = std::getenv(name);
  return text == nullptr ? otherwise : std::strtoll(text, nullptr, 10);
}

/// Numbers whole and in slices, a pruned tensor with a divided moment, bools, texts; gaps between.
struct Everything {
  explicit Everything(int rank = 0) : bits(at::zeros({num_mask_bytes(600)}, at::kByte)) {
    auto* byte = bits.mutable_data_ptr<uint8_t>();
    for (int64_t i = 0; i < 600; i += 4)
      byte[i / 8] = static_cast<uint8_t>(byte[i / 8] | 1U << (i % 8));
    zero_pruned(weight.mutable_data_ptr(), byte, 600, 4);
    zero_pruned(moment.mutable_data_ptr(), byte, 600, 4);
    if (rank >= 0)
      held =
          rank == 0 ? std::vector<ElementRange>{{0, 250}} : std::vector<ElementRange>{{250, 600}};
  }

  StateList list() {
    StateList list = {{"model/weight", weight},
                      {"optimizer/m/weight", moment},
                      {"model/table", table},
                      {"model/half", at::ones({33}, at::kHalf)},
                      {"_lockstep/flags", at::ones({77}, at::kBool)},
                      {"_lockstep/masks/weight", bits},
                      {"_lockstep/config", {}, &text},
                      {"_lockstep/empty", {}, &nothing}};
    list[0].kept_bits = list[1].kept_bits = bits;
    list[0].kept_key = list[1].kept_key = "_lockstep/masks/weight";
    list[1].held = held;
    return list;
  }

  at::Tensor weight = at::arange(1, 601, at::kFloat).reshape({20, 30});
  at::Tensor moment = at::arange(1, 601, at::kFloat).reshape({20, 30}) / 3;
  at::Tensor table = at::arange(1500, at::kDouble).reshape({3, 5, 100});
  at::Tensor bits;
  std::optional<std::vector<ElementRange>> held;
  std::string text = "name: digits\n", nothing;
};

/// Written by two ranks; its prefix.
std::string full_save(const TemporaryFolder& folder) {
  lockstep::tests::run_ranks(2, [&](dist::Communicator& control) {
    Everything state(control.rank());
    Saver saver({.prefix = folder.prefix(), .sparse = true, .min_cut_bytes = 64}, control);
    ASSERT_TRUE(saver.save(state.list(), 3).ok);
  });
  return folder.prefix() + "-3";
}

std::vector<std::string> files_of(const std::string& prefix) {
  return {index_path(prefix), shard_path(prefix, 0, 2), shard_path(prefix, 1, 2)};
}

/// Restoring damaged files throws, or gives the right values (damage in a gap).
bool is_restored_right(const std::string& prefix) {
  Everything live(-1), expected(-1);
  for (const StateEntry& entry : live.list())
    if (entry.tensor.defined()) entry.tensor.fill_(0);
  live.text = "";
  try {
    restore(prefix, live.list());
  } catch (const Error&) {
    return true;
  }
  const StateList a = live.list(), b = expected.list();
  for (size_t i = 0; i < a.size(); ++i)
    if (a[i].text ? *a[i].text != *b[i].text : !a[i].tensor.equal(b[i].tensor)) return false;
  return true;
}

TEST(BitFlips, TheSaveHoldsEverything) {
  TemporaryFolder folder;
  const std::string prefix = full_save(folder);
  ASSERT_THAT(verify(prefix), IsEmpty());
  BundleReader reader(prefix);
  DenseView view(&reader);
  size_t num_sliced = 0, num_sparse = 0;
  for (const std::string& name : view.names()) {
    num_sliced += view.find(name)->entry->is_sliced() ? 1 : 0;
    num_sparse += view.find(name)->is_sparse() ? 1 : 0;
  }
  EXPECT_GE(num_sliced, 2U);
  EXPECT_EQ(num_sparse, 2U);
}

TEST(BitFlips, AllAreFound) {
  TemporaryFolder folder;
  const std::string prefix = full_save(folder);
  const auto num_flips = setting("LOCKSTEP_FLIPS", 600);
  std::mt19937_64 random(static_cast<uint64_t>(setting("LOCKSTEP_SEED", 1)));
  // as many flips in the index as in a shard, although it has fewer bytes
  int64_t num_found = 0, num_restored_wrong = 0;
  std::vector<int64_t> num_by_file;
  for (const std::string& path : files_of(prefix)) {
    FileDamage damage(path);
    num_by_file.push_back(0);
    for (; num_by_file.back() < (num_flips + 2) / 3; ++num_by_file.back()) {
      const uint64_t bit = random() % (8 * damage.num_bytes());
      damage.flip_bit(bit);
      const bool found = !verify(prefix).empty();
      EXPECT_TRUE(found) << path << " byte " << bit / 8 << " bit " << bit % 8;
      num_found += found ? 1 : 0;
      if (num_by_file.back() % 4 == 0 && !is_restored_right(prefix)) {
        ADD_FAILURE() << "restored wrong: " << path << " byte " << bit / 8 << " bit " << bit % 8;
        ++num_restored_wrong;
      }
      damage.mend_bit(bit);
    }
  }
  ASSERT_THAT(verify(prefix), IsEmpty());
  fmt::print("bit flips: {} of {} found ({} index, {} shards), {} restored wrong values\n",
             num_found, num_by_file[0] + num_by_file[1] + num_by_file[2], num_by_file[0],
             num_by_file[1] + num_by_file[2], num_restored_wrong);
}

/// First and last byte of everything that the index places in a shard.
std::set<size_t> edges(const BundleIndex& index, int32_t shard, size_t num_bytes) {
  std::set<size_t> edges = {0, num_bytes};
  const auto add = [&](const BundlePlace& place) {
    if (place.shard != shard) return;
    edges.insert({static_cast<size_t>(place.offset), static_cast<size_t>(place.end())});
  };
  for (const auto& [name, entry] : index.entries) {
    if (!entry.is_sliced()) add(entry);
    for (const BundleSlice& slice : entry.slices) add(slice);
  }
  return edges;
}

TEST(BitFlips, CutsAtEveryEdgeAreFound) {
  TemporaryFolder folder;
  const std::string prefix = full_save(folder);
  const BundleIndex index = decode_index(tests::bytes_of(index_path(prefix)), "");
  int64_t num_cuts = 0;
  for (const std::string& path : files_of(prefix)) {
    FileDamage damage(path);
    std::set<size_t> sizes;
    for (int32_t shard = 0; shard < 2; ++shard)
      if (path == shard_path(prefix, shard, 2))
        for (const size_t edge : edges(index, shard, damage.num_bytes()))
          sizes.insert({edge == 0 ? 0 : edge - 1, edge, edge + 1});
    if (sizes.empty())  // the index, whose records are a few bytes each: every place
      for (size_t size = 0; size < damage.num_bytes(); ++size) sizes.insert(size);
    sizes.erase(damage.num_bytes());
    for (const size_t size : sizes) {
      damage.cut(size);
      EXPECT_FALSE(verify(prefix).empty()) << path << " cut to " << size;
      EXPECT_TRUE(quick_check(prefix)) << path << " cut to " << size;
      damage.mend_cut(std::min(size, damage.num_bytes()));
      ++num_cuts;
    }
  }
  ASSERT_THAT(verify(prefix), IsEmpty());
  fmt::print("cuts: {} of {} found\n", HasFailure() ? -1 : num_cuts, num_cuts);
}

}  // namespace bit_flips_test
}  // namespace lockstep::checkpoint
