// Numbers that reach the disk, checked against values worked out elsewhere.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/digest.h"
#include "base/error.h"
#include "checkpoint/format/bundle_encoding.h"
#include "checkpoint/format/bundle_index.h"
#include "checkpoint/format/checkpoint_files.h"
#include "checkpoint/format/object_graph.h"
#include "checkpoint/format/tensor_type.h"
#include "checkpoint/proto/bundle.pb.h"
#include "checkpoint/proto/object_graph.pb.h"
#include "tests/checkpoint/bundle/table_rows.h"
#include "tests/checkpoint/save_fixture.h"

namespace lockstep::checkpoint {
namespace format_test {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string from_hex(std::string_view hex) {
  std::string bytes;
  for (size_t i = 0; i + 1 < hex.size(); i += 2)
    bytes.push_back(static_cast<char>(std::stoi(std::string(hex.substr(i, 2)), nullptr, 16)));
  return bytes;
}

std::string text_of_fault(const TableRows& rows) {
  try {
    decode_index(encode_table(rows), "x.index");
  } catch (const Error& fault) {
    EXPECT_EQ(fault.code(), ExitCode::kBadData);
    return fault.what();
  }
  return "no fault";
}

pb::BundleEntryProto sound_entry() {
  pb::BundleEntryProto entry;
  entry.set_dtype(1);
  entry.mutable_shape()->add_dim()->set_size(2);
  entry.set_size(8);
  return entry;
}

TableRows rows_with(const pb::BundleEntryProto& entry, int num_shards = 1) {
  pb::BundleHeaderProto header;
  header.set_num_shards(num_shards);
  return {{"", header.SerializeAsString()}, {"w", entry.SerializeAsString()}};
}

// The bytes and the crc that TensorFlow 2.21 wrote for tf.Variable(["ab", "", "x" * 200]).
TEST(StringTensor, HasTensorFlowsBytes) {
  const std::string x200(200, 'x');
  const EncodedStrings encoded = encode_strings({"ab", "", x200});
  EXPECT_EQ(encoded.bytes, from_hex("0200c8015b788972") + "ab" + x200);
  EXPECT_EQ(encoded.masked_crc, 0x34264a1bU);
  const DecodedStrings decoded = decode_strings(encoded.bytes, 3);
  EXPECT_THAT(decoded.texts, ElementsAre("ab", "", x200));
  EXPECT_EQ(decoded.masked_crc, encoded.masked_crc);
}

TEST(StringTensor, RefusesWhatIsNoStringTensor) {
  const std::string good = encode_strings({"ab", "c"}).bytes;
  EXPECT_THROW(decode_strings(good, 1), std::runtime_error);
  EXPECT_THROW(decode_strings(good, 3), std::runtime_error);
  for (size_t size = 0; size < good.size(); ++size)
    EXPECT_THROW(decode_strings(good.substr(0, size), 2), std::runtime_error);
  EXPECT_THROW(decode_strings(good + "x", 2), std::runtime_error);
  std::string wrong_lengths = good;  // the sum stays 3, so only the crc of the lengths tells
  wrong_lengths[0] = 1;
  wrong_lengths[1] = 2;
  EXPECT_THROW(decode_strings(wrong_lengths, 2), std::runtime_error);
  EXPECT_THROW(decode_strings(from_hex("ffffffffffffffffff01") + "abcd", 1), std::runtime_error);
}

// The example of docs/design/checkpoint_format.md, as TensorFlow 2.21 wrote it.
TEST(BundleIndex, HasTensorFlowsBytes) {
  const std::string bytes = from_hex(
                                "000006"
                                "08011a020801"
                                "00010f77"
                                "0801120412020802"
                                "28083559"
                                "3ce535"
                                "0000000001000000"
                                "000921adc3"
                                "0000000001000000"
                                "00c0f2a1b0"
                                "000102780024"
                                "0000000001000000"
                                "00ab30707f"
                                "2908360e") +
                            std::string(36, '\0') + from_hex("57fb808b247547db");
  ASSERT_EQ(bytes.size(), 121U);
  const BundleIndex index = decode_index(bytes, "example");
  ASSERT_EQ(index.entries.size(), 1U);
  const BundleEntry& w = index.entries.at("w");
  EXPECT_EQ(w.dtype, 1);
  EXPECT_EQ(w.shape, (std::vector<int64_t>{2}));
  EXPECT_EQ(w.num_bytes, 8);
  EXPECT_EQ(w.masked_crc, 0x35e53c59U);
  EXPECT_EQ(encode_index(index), bytes);
}

TEST(IndexTable, ComesBackAndIsWrittenTheSameWay) {
  TableRows rows;
  for (int i = 0; i < 3000; ++i)
    rows[fmt::format("model/layer/{:05}", i)] = std::string(static_cast<size_t>(i % 300), 'v');
  const std::string bytes = encode_table(rows);  // more than one block
  EXPECT_GT(bytes.size(), 300'000U);
  EXPECT_EQ(decode_table(bytes), rows);
  EXPECT_EQ(encode_table(rows), bytes);
  EXPECT_EQ(decode_table(encode_table({})), TableRows());
}

TEST(IndexTable, EveryCutIsRefused) {
  const std::string bytes = encode_table({{"a", "1"}, {"b", "2"}});
  for (size_t size = 0; size < bytes.size(); ++size)
    EXPECT_THROW(decode_table(bytes.substr(0, size)), std::runtime_error) << size;
}

TEST(BundleIndex, RefusesFalseEntriesAlthoughTheirChecksumsAreRight) {
  const std::vector<std::pair<std::function<void(pb::BundleEntryProto&)>, std::string>> cases = {
      {[](auto& e) { e.set_dtype(0); }, "element type 0"},
      {[](auto& e) { e.set_dtype(-5); }, "element type -5"},
      {[](auto& e) { e.mutable_shape()->mutable_dim(0)->set_size(-1); }, "negative"},
      {[](auto& e) { e.mutable_shape()->set_unknown_rank(true); }, "unknown"},
      {[](auto& e) { e.mutable_shape()->mutable_dim(0)->set_size(int64_t{1} << 62); }, "63 bits"},
      {[](auto& e) {
         e.mutable_shape()->mutable_dim(0)->set_size(0);  // first, so that a plain product stays 0
         e.mutable_shape()->add_dim()->set_size(int64_t{1} << 40);
         e.mutable_shape()->add_dim()->set_size(int64_t{1} << 40);
         e.set_size(0);
       },
       "63 bits"},
      {[](auto& e) {
         for (int i = 0; i < 100; ++i) e.mutable_shape()->add_dim()->set_size(1);
       },
       "101 dimensions"},
      {[](auto& e) { e.set_size(9); }, "need 8"},
      {[](auto& e) { e.set_size(-8); }, "impossible"},
      {[](auto& e) { e.set_offset(-1); }, "impossible"},
      {[](auto& e) { e.set_offset(INT64_MAX - 2); }, "impossible"},
      {[](auto& e) { e.set_shard_id(1); }, "shard 1 of 1"},
      {[](auto& e) { e.set_shard_id(-1); }, "shard -1 of 1"},
      {[](auto& e) {
         e.set_dtype(kStringType);
         e.mutable_shape()->mutable_dim(0)->set_size(5);
       },
       "cannot hold 5 strings"},
  };
  EXPECT_EQ(text_of_fault(rows_with(sound_entry())), "no fault");
  for (const auto& [spoil, expected] : cases) {
    pb::BundleEntryProto entry = sound_entry();
    spoil(entry);
    EXPECT_THAT(text_of_fault(rows_with(entry)), HasSubstr(expected));
    EXPECT_THAT(text_of_fault(rows_with(entry)), HasSubstr("x.index: tensor 'w'"));
  }
}

TEST(BundleIndex, RefusesFalseHeaders) {
  TableRows rows = rows_with(sound_entry());
  rows.erase("");
  EXPECT_THAT(text_of_fault(rows), HasSubstr("no header"));
  EXPECT_THAT(text_of_fault(rows_with(sound_entry(), 0)), HasSubstr("number of shards"));
  EXPECT_THAT(text_of_fault(rows_with(sound_entry(), 100'000)), HasSubstr("number of shards"));
  rows[""] = from_hex("08011001");
  EXPECT_THAT(text_of_fault(rows), HasSubstr("little-endian"));
  rows = rows_with(sound_entry());
  rows["w"] = "\xff\xff";
  EXPECT_THAT(text_of_fault(rows), HasSubstr("cannot be parsed"));
}

/// A block of a table as in a file; every key is the previous one with another end.
std::string block_of(const std::vector<std::pair<std::string, std::string>>& rows) {
  std::string block, last;
  for (const auto& [key, value] : rows) {
    size_t shared = 0;
    while (shared < std::min(last.size(), key.size()) && last[shared] == key[shared]) ++shared;
    put_varint(&block, shared);
    put_varint(&block, key.size() - shared);
    put_varint(&block, value.size());
    block += key.substr(shared) + value;
    last = key;
  }
  block += fixed32(0) + fixed32(1);  // one restart point alone, at the beginning
  block += '\0';                     // not compressed
  return block + fixed32(masked_crc32c(crc32c(block)));
}

std::string place(size_t offset, const std::string& block) {
  std::string bytes;
  put_varint(&bytes, offset);
  put_varint(&bytes, block.size() - 5);
  return bytes;
}

TEST(BundleIndex, KeysThatUnfoldToMuchMoreThanTheirFileAreRefused) {
  // 60,000 keys that share 5,000 bytes: 0.5 MB in the file, 300 MB in memory
  std::vector<std::pair<std::string, std::string>> rows;
  const std::string start(5000, 'k');
  for (int i = 0; i < 60'000; ++i) rows.emplace_back(start + fmt::format("{:05}", i), "");
  const std::string data = block_of(rows), meta = block_of({});
  const std::string index = block_of({{"z", place(0, data)}});
  std::string footer = place(data.size(), meta) + place(data.size() + meta.size(), index);
  footer.resize(40);
  const std::string bytes =
      data + meta + index + footer + std::string("\x57\xfb\x80\x8b\x24\x75\x47\xdb", 8);
  ASSERT_LT(bytes.size(), 1'000'000U);
  rows.clear();
  try {
    decode_table(bytes);
    FAIL() << "it was unfolded";
  } catch (const std::runtime_error& fault) {
    EXPECT_THAT(fault.what(), HasSubstr("need more memory than a valid index"));
  }
}

TEST(BundleIndex, KeysThatShareMostOfTheirBytesAreReadAsTensorFlowWritesThem) {
  TableRows rows;  // 9 MB in the file, since each sixteenth key stands whole; 100 MB in memory
  const std::string start(5000, 'k');
  for (int i = 0; i < 20'000; ++i)
    rows.emplace_hint(rows.end(), start + fmt::format("{:05}", i), "");
  EXPECT_EQ(decode_table(encode_table(rows)), rows);
}

TEST(StateNames, GoThereAndBack) {
  EXPECT_EQ(index_name("model/w"), "model/w/.ATTRIBUTES/VARIABLE_VALUE");
  EXPECT_EQ(index_name("a.b/w"), "a..b/w/.ATTRIBUTES/VARIABLE_VALUE");
  EXPECT_EQ(index_name("_lockstep/mask/a.b"), "_lockstep/mask/a.b");
  for (const std::string key : {"model/w", "a.b./w", "..", "_lockstep/x.y"})
    EXPECT_EQ(state_key(index_name(key)), key);
  EXPECT_FALSE(state_key("_CHECKPOINTABLE_OBJECT_GRAPH"));
  EXPECT_FALSE(state_key("a.b/.ATTRIBUTES/VARIABLE_VALUE"));
}

TEST(ObjectGraph, IsATreeOfTheKeysParts) {
  pb::TrackableObjectGraph graph;
  ASSERT_TRUE(graph.ParseFromString(object_graph({"model/b/w", "model/a", "_lockstep/step"})));
  ASSERT_EQ(graph.nodes_size(), 6);  // root, model, a, b, w, save_counter
  const auto child = [&](int node, int i) { return graph.nodes(node).children(i); };
  EXPECT_EQ(child(0, 0).local_name(), "model");
  EXPECT_EQ(child(0, 1).local_name(), "save_counter");
  const int model = child(0, 0).node_id();
  EXPECT_EQ(child(model, 0).local_name(), "a");
  const int w = child(child(model, 1).node_id(), 0).node_id();
  EXPECT_EQ(graph.nodes(w).attributes(0).checkpoint_key(), "model/b/w/.ATTRIBUTES/VARIABLE_VALUE");
  EXPECT_EQ(object_graph({"b/x", "a"}), object_graph({"a", "b/x"}));
}

TEST(ObjectGraph, RefusesBadKeys) {
  for (const std::vector<std::string>& keys : std::vector<std::vector<std::string>>{
           {""}, {"a//b"}, {"/a"}, {"a/"}, {"a", "a"}, {"save_counter"}})
    EXPECT_THROW(object_graph(keys), Error) << keys[0];
}

TEST(SaveFiles, AreFoundInNumericOrder) {
  tests::TemporaryFolder folder;
  for (const char* name : {"m-10.index", "m-9.index", "m-2.index", "m-3.index.tmp", "m-04.index",
                           "m-x.index", "m-5.data-00000-of-00001", "other-7.index", "checkpoint"})
    tests::put_bytes(folder / name, "");
  std::vector<int64_t> numbers;
  for (const SaveName& save : find_saves(folder.path(), "m")) numbers.push_back(save.number);
  EXPECT_THAT(numbers, ElementsAre(2, 9, 10));
  EXPECT_EQ(find_saves(folder.path()).size(), 4U);
  EXPECT_TRUE(find_saves(folder / "none").empty());
  EXPECT_EQ(shard_path("d/m-5", 1, 12), "d/m-5.data-00001-of-00012");
}

TEST(StateFile, ComesBackAndDamageIsNamed) {
  tests::TemporaryFolder folder;
  EXPECT_FALSE(read_state_file(folder.path()));
  write_state_file(folder.path(), {.newest = "m \"q\"-2", .all = {"m-1", "m \"q\"-2"}});
  EXPECT_THAT(tests::bytes_of(folder / "checkpoint"),
              HasSubstr("model_checkpoint_path: \"m \\\"q\\\"-2\"\n"));
  EXPECT_THAT(read_state_file(folder.path())->all, ElementsAre("m-1", "m \"q\"-2"));
  tests::put_bytes(folder / "checkpoint", "model_checkpoint_path: \"m");
  EXPECT_THROW(read_state_file(folder.path()), Error);
}

}  // namespace format_test
}  // namespace lockstep::checkpoint
