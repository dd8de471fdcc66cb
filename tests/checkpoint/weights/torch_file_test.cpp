#include <filesystem>
#include <fstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ATen/ATen.h>

#include "base/error.h"
#include "checkpoint/weights/weights_file.h"
#include "tests/checkpoint/save_fixture.h"
#include "tests/checkpoint/weights/torch_archive.h"

namespace lockstep::checkpoint {
namespace torch_file_test {

using lockstep::tests::le;
using lockstep::tests::p_dict;
using lockstep::tests::p_global;
using lockstep::tests::p_int;
using lockstep::tests::p_text;
using lockstep::tests::p_tuple;
using lockstep::tests::pickle_of;
using lockstep::tests::PickledTensor;
using lockstep::tests::torch_archive;
using lockstep::tests::zip_of;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using tests::TemporaryFolder;

std::string floats(std::initializer_list<float> values) {
  return {reinterpret_cast<const char*>(std::data(values)), values.size() * sizeof(float)};
}

class TorchFiles : public ::testing::Test {
 protected:
  std::unique_ptr<WeightsFile> open(const std::string& bytes, const std::string& name = "w.pt") {
    std::ofstream(folder_ / name, std::ios::binary) << bytes;
    return open_weights(folder_ / name);
  }
  /// Why the file is refused, with 65.
  std::string refusal(const std::string& bytes, const std::string& name = "w.pt") {
    try {
      (void)open(bytes, name);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::kBadData);
      return error.what();
    }
    return "";
  }
  std::string refusal_of_value(const std::string& value) {
    return refusal(torch_archive(pickle_of(value), {{"0", floats({1, 2, 3, 4, 5, 6})}}));
  }

  TemporaryFolder folder_;
};

PickledTensor six() { return {.storage_elements = 6, .shape = {2, 3}, .strides = {3, 1}}; }

TEST_F(TorchFiles, TensorsOfNestedDictsWithOffsetsAndStrides) {
  PickledTensor turned = six(), tail = six(), scalar = six();
  turned.shape = {3, 2}, turned.strides = {1, 3};
  tail.offset = 4, tail.shape = {2}, tail.strides = {1};
  scalar.shape = {}, scalar.strides = {};
  const std::string dict =
      p_dict({{"model", p_dict({{"a.weight", six().bytes()}, {"turned", turned.bytes()}})},
              {"tail", tail.bytes()},
              {"scalar", scalar.bytes()},
              {"epoch", p_int(3)},
              {"lists", "](" + p_int(1) + "e"}});
  const auto file = open(torch_archive(pickle_of(dict), {{"0", floats({1, 2, 3, 4, 5, 6})}}));
  EXPECT_THAT(file->names(), ElementsAre("model.a.weight", "model.turned", "scalar", "tail"));
  const at::Tensor whole = at::arange(1, 7, at::kFloat).reshape({2, 3});
  EXPECT_TRUE(file->read("model.a.weight").equal(whole));
  EXPECT_TRUE(file->read("model.turned").equal(whole.t()));
  EXPECT_TRUE(file->read("tail").equal(at::tensor({5.F, 6.F})));
  EXPECT_EQ(file->read("scalar").item<float>(), 1);
  EXPECT_EQ(file->form("tail").text(), "float32 [2]");
}

TEST_F(TorchFiles, WhatWouldRunCodeIsRefusedByItsName) {
  const std::string call = p_global("posix", "system") + p_tuple({p_text("touch ran")}) + "R";
  EXPECT_THAT(refusal_of_value(p_dict({{"a", six().bytes()}, {"b", call}})),
              AllOf(HasSubstr("it wants Python's 'posix.system'"),
                    HasSubstr("torch.save(model.state_dict(), ...)")));
  EXPECT_THAT(refusal_of_value(p_text("builtins") + p_text("eval") + "\x93)R"),
              HasSubstr("'builtins.eval'"));
  for (const char* allowed : {"_rebuild_tensor_v2", "_rebuild_parameter"})
    EXPECT_THAT(refusal_of_value(p_dict({{"a", p_global("torch._utils", allowed) + ")R"}})),
                HasSubstr("tensor 'a'"));
  EXPECT_THAT(refusal_of_value(p_global("collections", "OrderedDict") + "(tR" + p_int(1) + "o"),
              HasSubstr("opcode 0x6f is not read"));
  EXPECT_FALSE(std::filesystem::exists("ran"));
}

TEST_F(TorchFiles, TensorsStayInsideTheirStorage) {
  const auto refused = [&](const std::function<void(PickledTensor*)>& change) {
    PickledTensor tensor = six();
    change(&tensor);
    return refusal_of_value(p_dict({{"a", tensor.bytes()}}));
  };
  EXPECT_THAT(refused([](auto* t) { t->offset = 1; }), HasSubstr("beyond its storage"));
  EXPECT_THAT(refused([](auto* t) { t->strides = {4, 1}; }), HasSubstr("beyond its storage"));
  EXPECT_THAT(refused([](auto* t) {
                t->strides = {0, 0}, t->shape = {1000, 1000};
              }),
              HasSubstr("beyond its storage"));
  EXPECT_THAT(refused([](auto* t) { t->strides = {-1, 1}; }), HasSubstr("out of range"));
  EXPECT_THAT(refused([](auto* t) {
                t->shape = {int64_t{1} << 40, int64_t{1} << 40};
              }),
              HasSubstr("that of no tensor"));
  EXPECT_THAT(refused([](auto* t) { t->strides = {1}; }), HasSubstr("no stride for each size"));
  EXPECT_THAT(refused([](auto* t) { t->storage_elements = 7; }), HasSubstr("is missing or cut"));
  EXPECT_THAT(refused([](auto* t) { t->storage = "1"; }), HasSubstr("is missing or cut"));
  EXPECT_THAT(refused([](auto* t) { t->type = "DoubleStorage"; }), HasSubstr("missing or cut"));
}

TEST_F(TorchFiles, DictsThatHoldOneAnotherEnd) {
  // Each level holds the one below twenty times: 20^7 names, if all were followed.
  std::string dict = p_dict({{"t", six().bytes()}});
  for (uint64_t level = 0; level < 7; ++level) {
    dict = "}(" + p_text("0") + dict + "q" + le(level, 1);
    for (int i = 1; i < 20; ++i) dict += p_text(std::to_string(i)) + "h" + le(level, 1);
    dict += "u";
  }
  EXPECT_THAT(refusal_of_value(dict), HasSubstr("hold one another too often"));
  EXPECT_THAT(refusal_of_value("}q\x01" + p_text("self") + "h\x01s"), HasSubstr("too deep"));
}

TEST_F(TorchFiles, DamagedAndForeignFilesAreTold) {
  const std::string sound =
      torch_archive(pickle_of(p_dict({{"a", six().bytes()}})), {{"0", floats({1, 2, 3, 4, 5, 6})}});
  EXPECT_THAT(refusal(sound.substr(0, sound.size() - 1)), HasSubstr("the file is cut"));
  for (size_t size = 4; size < sound.size(); size += 13)
    EXPECT_NE(refusal(sound.substr(0, size)), "") << size;
  std::string flipped = sound;
  flipped[sound.find(floats({4}))] ^= 1;
  const auto file = open(flipped);
  EXPECT_THROW(file->read("a"), Error);
  flipped = sound;
  flipped[sound.find("_rebuild") + 2] ^= 1;
  EXPECT_THAT(refusal(flipped), HasSubstr("checksum of 'archive/data.pkl' is wrong"));

  EXPECT_THAT(refusal(zip_of({{"archive/data.pkl", "N."}}, /*method=*/8)), HasSubstr("compressed"));
  EXPECT_THAT(refusal(zip_of({{"a", "1"}})), HasSubstr("holds no data.pkl"));
  EXPECT_THAT(refusal(zip_of({{"a/data.pkl", "N."}, {"a/constants.pkl", ""}})),
              HasSubstr("TorchScript"));
  EXPECT_THAT(refusal(zip_of({{"a/data.pkl", "N."}, {"a/byteorder", "big"}})),
              HasSubstr("big endian"));
  EXPECT_THAT(refusal(torch_archive(pickle_of("N"), {})), HasSubstr("holds no dict of tensors"));
  EXPECT_THAT(refusal(std::string("\x80\x02\x8a\x0a\x6c\xfc\x9c", 7)), HasSubstr("before 1.6"));
  EXPECT_THAT(refusal("\x89HDF\r\n", "w.h5"), HasSubstr("HDF5"));
  EXPECT_THAT(refusal("text", "notes.txt"), HasSubstr("no file of weights"));
  EXPECT_THAT(refusal("", "w.safetensors"), HasSubstr("fewer than 8 bytes"));
  try {
    (void)open_weights(folder_ / "nowhere.pt");
    ADD_FAILURE() << "a file that is not there was opened";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::kInputMissing);
  }
}

}  // namespace torch_file_test
}  // namespace lockstep::checkpoint
