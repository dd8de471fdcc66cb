// Every byte of a save, changed or cut: verify finds it, and a restore never takes wrong values for
// right.
#include <map>
#include <stdexcept>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "checkpoint/format/bundle_index.h"
#include "checkpoint/format/bundle_reader.h"
#include "checkpoint/format/checkpoint_files.h"
#include "checkpoint/restore.h"
#include "checkpoint/save/saver.h"
#include "dist/communicator.h"
#include "tests/checkpoint/bundle/file_damage.h"

namespace lockstep::checkpoint {
namespace damage_test {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using tests::FileDamage;
using tests::TemporaryFolder;

/// Few bytes, so that each can be tried: numbers, a text, two shards, and the gap between them.
std::string tiny_save(const TemporaryFolder& folder) {
  lockstep::tests::run_ranks(2, [&](dist::Communicator& control) {
    std::string text = "recipe";
    const StateList state = {{"model/w", at::arange(3, at::kFloat)},
                             {"model/flag", at::ones({2}, at::kBool)},
                             {"_lockstep/text", {}, &text}};
    ASSERT_TRUE(Saver({.prefix = folder.prefix()}, control).save(state, 1).ok);
  });
  return folder.prefix() + "-1";
}

std::vector<std::string> data_files(const TemporaryFolder& folder) {
  std::vector<std::string> paths;
  for (const std::string& name : files::list(folder.path()))
    if (name != "checkpoint") paths.push_back(folder / name);
  return paths;
}

TEST(Damage, EveryFlippedByteIsFound) {
  TemporaryFolder folder;
  const std::string prefix = tiny_save(folder);
  ASSERT_THAT(verify(prefix), IsEmpty());
  int64_t num_flips = 0;
  for (const std::string& path : data_files(folder)) {
    FileDamage damage(path);
    const size_t n = damage.num_bytes();
    for (size_t i = 0; i < n; ++i) {
      damage.flip_bit(8 * i + i % 8);
      ASSERT_THAT(verify(prefix), Not(IsEmpty())) << path << " byte " << i;
      damage.mend_bit(8 * i + i % 8);
      ++num_flips;
    }
  }
  EXPECT_GT(num_flips, 4096) << "the gap between two tensors too";
  EXPECT_THAT(verify(prefix), IsEmpty());
}

TEST(Damage, EveryBitOfTheIndexIsCovered) {
  TemporaryFolder folder;
  const std::string prefix = tiny_save(folder);
  FileDamage damage(prefix + ".index");
  for (uint64_t bit = 0; bit < damage.num_bytes() * 8; ++bit) {
    damage.flip_bit(bit);
    ASSERT_THAT(verify(prefix), Not(IsEmpty())) << "bit " << bit;
    damage.mend_bit(bit);
  }
}

TEST(Damage, EveryCutIsFoundByVerifyAndByTheQuickLook) {
  TemporaryFolder folder;
  const std::string prefix = tiny_save(folder);
  for (const std::string& path : data_files(folder)) {
    FileDamage damage(path);
    const size_t n = damage.num_bytes();
    for (size_t size = 0; size < n; ++size) {
      damage.cut(size);
      ASSERT_THAT(verify(prefix), Not(IsEmpty())) << path << " cut to " << size;
      ASSERT_TRUE(quick_check(prefix)) << path << " cut to " << size;
      damage.mend_cut(size);
    }
    damage.cut(n + 1);
    EXPECT_THAT(verify(prefix), Not(IsEmpty())) << "a byte more";
    damage.mend_cut(n);
  }
}

TEST(Damage, MissingAndForeignFilesAreNamed) {
  TemporaryFolder folder;
  const std::string prefix = tiny_save(folder);
  std::filesystem::copy_file(prefix + ".data-00000-of-00002", prefix + ".data-00000-of-00003");
  EXPECT_THAT(verify(prefix), ElementsAre(HasSubstr("data-00000-of-00003: does not belong")));
  std::filesystem::remove(prefix + ".data-00000-of-00003");
  std::filesystem::remove(prefix + ".data-00001-of-00002");
  EXPECT_THAT(verify(prefix), ElementsAre(HasSubstr("data-00001-of-00002: no such file")));
  std::filesystem::remove(prefix + ".index");
  EXPECT_THAT(verify(prefix), ElementsAre(HasSubstr("not found")));
}

/// Rewrites the index, checksums right, with one entry changed.
void falsify(const std::string& prefix, const std::function<void(BundleEntry&)>& change) {
  BundleIndex index = decode_index(tests::bytes_of(prefix + ".index"), "");
  change(index.entries.at("model/w/.ATTRIBUTES/VARIABLE_VALUE"));
  tests::put_bytes(prefix + ".index", encode_index(index));
}

TEST(Damage, AnIndexThatLiesWithRightChecksumsIsFound) {
  const std::vector<std::function<void(BundleEntry&)>> lies = {
      [](BundleEntry& e) { e.offset += 4; },
      [](BundleEntry& e) { e.offset = int64_t{1} << 50; },
      [](BundleEntry& e) { e.shard = 1 - e.shard; },
      [](BundleEntry& e) { e.masked_crc += 1; },
      [](BundleEntry& e) {
        e.shape = {2};
        e.num_bytes = 8;
      },
      [](BundleEntry& e) {
        e.shape = {int64_t{1} << 40};
        e.num_bytes = int64_t{1} << 42;
      },  // 4 TiB: no memory may be taken
      [](BundleEntry& e) {
        e.dtype = 10;
        e.shape = {12};
      },  // bools that are no bools
  };
  for (size_t i = 0; i < lies.size(); ++i) {
    TemporaryFolder folder;
    const std::string prefix = tiny_save(folder);
    falsify(prefix, lies[i]);
    EXPECT_THAT(verify(prefix), Not(IsEmpty())) << "lie " << i;
    const at::Tensor live = at::zeros({3});
    EXPECT_THROW(restore(prefix, {{"model/w", live}}), Error) << "lie " << i;
  }
}

TEST(Damage, ATensorBeyondTheFileIsRefusedBeforeMemoryIsTaken) {
  const std::vector<std::function<void(BundleEntry&)>> lies = {
      [](BundleEntry& e) { e.offset += 4; },
      [](BundleEntry& e) { e.offset = int64_t{1} << 50; },
      [](BundleEntry& e) {
        e.shape = {int64_t{1} << 40};
        e.num_bytes = int64_t{1} << 42;
      },
      [](BundleEntry& e) {
        e.shape = {int64_t{1} << 60};
        e.num_bytes = int64_t{1} << 62;
      },
      [](BundleEntry& e) {
        e.dtype = 7;
        e.shape = {int64_t{1} << 40};
        e.num_bytes = int64_t{1} << 42;
      },
  };
  for (size_t i = 0; i < lies.size(); ++i) {
    TemporaryFolder folder;
    const std::string prefix = tiny_save(folder);
    falsify(prefix, lies[i]);
    BundleReader reader(prefix);
    const std::string name = "model/w/.ATTRIBUTES/VARIABLE_VALUE";
    try {  // an allocation that fails would throw something else, and a short read is kIo
      reader.find(name)->dtype == 7 ? void(reader.read_strings(name)) : void(reader.read(name));
      ADD_FAILURE() << "lie " << i << " was believed";
    } catch (const Error& fault) {
      EXPECT_EQ(fault.code(), ExitCode::kBadData) << "lie " << i;
      for (const char* expected : {"model.ckpt-1.data-0000", "model/w", "the file ends at byte",
                                   "restore another checkpoint"})
        EXPECT_THAT(fault.what(), HasSubstr(expected)) << "lie " << i;
    }
  }
}

/// The first gap between two tensors of shard 0: its first and last byte, end exclusive.
std::pair<int64_t, int64_t> first_gap(const std::string& prefix) {
  const BundleIndex index = decode_index(tests::bytes_of(index_path(prefix)), prefix);
  std::map<int64_t, int64_t> ends;  // by offset
  for (const auto& [name, entry] : index.entries)
    if (entry.shard == 0 && entry.num_bytes > 0) ends[entry.offset] = entry.end();
  int64_t end = 0;
  for (const auto& [offset, next_end] : ends) {
    if (offset > end) return {end, offset};
    end = next_end;
  }
  throw std::runtime_error("no gap in " + prefix);
}

TEST(Damage, BytesInAGapAreFound) {
  TemporaryFolder folder;
  dist::SelfCommunicator alone;
  const StateList state = {{"model/a", at::ones({1})}, {"model/b", at::ones({1})}};
  ASSERT_TRUE(Saver({.prefix = folder.prefix()}, alone).save(state, 1).ok);
  const std::string prefix = folder.prefix() + "-1", path = shard_path(prefix, 0, 1);
  const auto [begin, end] = first_gap(prefix);
  ASSERT_THAT(verify(prefix), IsEmpty());
  for (const int64_t at : {begin, (begin + end) / 2, end - 1}) {
    const std::string sound = tests::bytes_of(path);
    std::string bytes = sound;
    bytes[static_cast<size_t>(at)] = 1;
    tests::put_bytes(path, bytes);
    EXPECT_THAT(verify(prefix), ElementsAre(HasSubstr(fmt::format(
                                    "bytes {} to {} between tensors are not zero", begin, end))));
    tests::put_bytes(path, sound);
  }
}

}  // namespace damage_test
}  // namespace lockstep::checkpoint
