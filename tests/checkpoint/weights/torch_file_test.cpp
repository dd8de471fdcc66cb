#include <filesystem>
#include <fstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ATen/ATen.h>

#include "base/error.h"
#include "checkpoint/import/load_weights.h"
#include "tests/checkpoint/save_fixture.h"
#include "tests/checkpoint/weights/torch_archive.h"

namespace lockstep::checkpoint {
namespace torch_file_test {

using lockstep::tests::le;
using lockstep::tests::p_dict;
using lockstep::tests::p_global;
using lockstep::tests::p_int;
using lockstep::tests::p_ints;
using lockstep::tests::p_text;
using lockstep::tests::p_tuple;
using lockstep::tests::pickle_of;
using lockstep::tests::PickledTensor;
using lockstep::tests::torch_archive;
using lockstep::tests::zip_of;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
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
              AllOf(HasSubstr("it needs Python's 'posix.system'"),
                    HasSubstr("torch.save(model.state_dict(), ...)")));
  EXPECT_THAT(refusal_of_value(p_text("builtins") + p_text("eval") + "\x93)R"),
              HasSubstr("'builtins.eval'"));
  for (const char* allowed : {"_rebuild_tensor_v2", "_rebuild_parameter"})
    EXPECT_THAT(refusal_of_value(p_dict({{"a", p_global("torch._utils", allowed) + ")R"}})),
                HasSubstr("tensor 'a'"));
  EXPECT_THAT(refusal_of_value(p_global("collections", "OrderedDict") + "(tR" + p_int(1) + "o"),
              HasSubstr("opcode 0x6f is not supported"));
  EXPECT_FALSE(std::filesystem::exists("ran"));
}

TEST_F(TorchFiles, PlainValuesBesideTensorsArePassedOver) {
  const auto call = [](const std::string& module, const std::string& name,
                       const std::string& arguments) {
    return p_global(module, name) + arguments + "R";
  };
  const std::string numbers = "](" + p_int(1) + p_int(2) + "e";
  const std::string dict =
      p_dict({{"size", call("torch", "Size", p_tuple({p_ints({2, 3})}))},
              {"device", call("torch", "device", p_tuple({p_text("cuda"), p_int(0)}))},
              {"dtype", p_global("torch", "bfloat16")},
              {"set", call("__builtin__", "set", p_tuple({numbers}))},
              {"frozenset", call("builtins", "frozenset", p_tuple({numbers}))},
              {"set of protocol 4", "\x8f(" + p_int(1) + "\x90"},
              {"frozenset of protocol 4", "(" + p_int(1) + "\x91"},
              {"bytes", call("_codecs", "encode", p_tuple({p_text("x"), p_text("latin1")}))},
              {"counter", call("collections", "Counter", p_tuple({"}"}))},
              {"dict", call("collections", "defaultdict", p_tuple({p_global("builtins", "list")})) +
                           "(" + p_text("inside") + six().bytes() + "u"},
              {"a", six().bytes()}});
  const auto file = open(torch_archive(pickle_of(dict), {{"0", floats({1, 2, 3, 4, 5, 6})}}));
  EXPECT_THAT(file->names(), ElementsAre("a", "dict.inside"));
  EXPECT_THAT(refusal_of_value(p_global("builtins", "getattr")), HasSubstr("builtins.getattr"));
  EXPECT_THAT(refusal_of_value(p_global("torch", "load")), HasSubstr("torch.load"));
}

TEST_F(TorchFiles, ValuesThatAreNotThoseStoredAreRefused) {
  for (const std::string bit : {"neg", "conj"}) {
    PickledTensor tensor = six();
    tensor.bits = "}" + p_text(bit) + "\x88s";
    EXPECT_THAT(refusal_of_value(p_dict({{"a", tensor.bytes()}})),
                AllOf(HasSubstr("tensor 'a': its " + bit + " bit is set"),
                      HasSubstr("tensor.resolve_" + bit + "()"), Not(HasSubstr("may call"))));
    tensor.bits = "}" + p_text(bit) + "\x89s";
    EXPECT_EQ(refusal_of_value(p_dict({{"a", tensor.bytes()}})), "");
  }
  PickledTensor complex = six();
  complex.type = "ComplexFloatStorage";
  complex.storage_elements = 3, complex.shape = {3}, complex.strides = {1};
  const auto file = open(torch_archive(pickle_of(p_dict({{"a", complex.bytes()}})),
                                       {{"0", floats({1, 2, 3, 4, 5, 6})}}));
  EXPECT_TRUE(at::view_as_real(file->read("a")).equal(at::arange(1, 7, at::kFloat).view({3, 2})));
}

/// Such as quantized ones: they are in the way where they are asked for alone.
TEST_F(TorchFiles, TensorsThatAreNotReadStandBesideOthers) {
  PickledTensor strange = six();
  strange.type = "QInt8Storage";
  const std::string made = p_global("torch._utils", "_rebuild_qtensor") + p_tuple({}) + "R";
  const auto file = open(torch_archive(
      pickle_of(p_dict({{"a", six().bytes()}, {"q", strange.bytes()}, {"made", made}})),
      {{"0", floats({1, 2, 3, 4, 5, 6})}}));
  EXPECT_THAT(file->names(), ElementsAre("a", "made", "q"));
  EXPECT_TRUE(file->read("a").equal(at::arange(1, 7, at::kFloat).reshape({2, 3})));
  EXPECT_EQ(file->form("q").text(), "of an unknown type ('QInt8Storage')");
  EXPECT_EQ(file->form("made").text(), "of an unknown type ('_rebuild_qtensor')");
}

TEST_F(TorchFiles, TwoTensorsOfOneNameAreRefused) {
  EXPECT_THAT(
      refusal_of_value(p_dict({{"a.b", six().bytes()}, {"a", p_dict({{"b", six().bytes()}})}})),
      HasSubstr("tensor 'a.b': two tensors have this name"));
}

TEST_F(TorchFiles, ArchivesWithoutChecksumsAreRead) {
  const std::string pickle = pickle_of(p_dict({{"a", six().bytes()}}));
  const lockstep::tests::Members storages = {{"0", floats({1, 2, 3, 4, 5, 6})}};
  const auto file = open(torch_archive(pickle, storages, /*has_checksums=*/false));
  EXPECT_TRUE(file->read("a").equal(at::arange(1, 7, at::kFloat).reshape({2, 3})));
  // One of them alone is a damaged one.
  std::string archive = torch_archive(pickle, storages);
  const size_t entry = archive.rfind("archive/data.pkl") - 46;
  archive.replace(entry + 16, 4, std::string(4, '\0'));
  EXPECT_THAT(refusal(archive), HasSubstr("checksum of 'archive/data.pkl' is wrong"));
}

/// Few bytes that could expand to much data.
TEST_F(TorchFiles, LimitsOfAPickle) {
  const auto of = [&](const std::string& pickle) { return refusal(torch_archive(pickle, {})); };
  const auto times = [](int64_t count, const std::string& text) {
    std::string all;
    for (int64_t i = 0; i < count; ++i) all += text;
    return all;
  };
  EXPECT_THAT(of(std::string(10'001, '(') + "."), HasSubstr("nested deeper than 10000"));
  EXPECT_EQ(of(std::string(10'000, '(') + ".").find("nested deeper"), std::string::npos);
  EXPECT_THAT(of("Nq\x01" + times(1'000'000, "h\x01") + "."), HasSubstr("wait for their"));
  EXPECT_THAT(of("N" + std::string(1'000'001, '\x94') + "."), HasSubstr("keeps more than"));
  EXPECT_THAT(of("]" + times(2'000'000, "Na") + "."), HasSubstr("more than 2000000 values"));
  EXPECT_THAT(of(std::string((int64_t{16} << 20) + 1, 'N')), HasSubstr("at most 16777216"));
  EXPECT_THAT(of("}(" + times(200'000, "K\x01N") + "u."), HasSubstr("more than 200000"));
  const std::string long_name(1001, 'n');
  EXPECT_THAT(refusal_of_value(p_dict({{long_name, six().bytes()}})),
              AllOf(HasSubstr("has more than 1000 bytes"), Not(HasSubstr(long_name))));
  EXPECT_EQ(refusal_of_value(p_dict({{long_name, p_int(1)}, {"a", six().bytes()}})), "");
  // A dict under long names, kept once: 20,000 names of 900 bytes out of a small pickle.
  std::string tensors = "}(";
  for (int i = 0; i < 1000; ++i)
    tensors += p_text(std::to_string(i)) + (i == 0 ? six().bytes() + "q\x01" : "h\x01");
  std::string many = "}(" + p_text(std::string(895, 'n') + "0") + tensors + "uq\x02";
  for (int i = 1; i < 20; ++i) many += p_text(std::string(895, 'n') + std::to_string(i)) + "h\x02";
  EXPECT_THAT(refusal_of_value(many + "u"), HasSubstr("have more than 16777216 bytes"));
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
              HasSubstr("shape is invalid"));
  EXPECT_THAT(refused([](auto* t) { t->strides = {1}; }),
              HasSubstr("does not have one stride per dimension"));
  EXPECT_THAT(refused([](auto* t) { t->storage_elements = 7; }),
              HasSubstr("is missing or truncated"));
  EXPECT_THAT(refused([](auto* t) { t->storage = "1"; }), HasSubstr("is missing or truncated"));
  EXPECT_THAT(refused([](auto* t) { t->type = "DoubleStorage"; }),
              HasSubstr("missing or truncated"));
}

TEST_F(TorchFiles, DictsThatHoldOneAnotherEnd) {
  // Each level holds the one below twenty times: 20^7 names, if all were followed.
  std::string dict = p_dict({{"t", six().bytes()}});
  for (uint64_t level = 0; level < 7; ++level) {
    dict = "}(" + p_text("0") + dict + "q" + le(level, 1);
    for (int i = 1; i < 20; ++i) dict += p_text(std::to_string(i)) + "h" + le(level, 1);
    dict += "u";
  }
  EXPECT_THAT(refusal_of_value(dict), HasSubstr("or are nested in each other too often"));
  EXPECT_THAT(refusal_of_value("}q\x01" + p_text("self") + "h\x01s"), HasSubstr("too deep"));
}

TEST_F(TorchFiles, HeadersOfSafetensorsAreSound) {
  const auto of = [&](const std::string& header) {
    return refusal(le(header.size(), 8) + header + std::string(24, 'v'), "w.safetensors");
  };
  const std::string x = R"("x":{"dtype":"F32","shape":[2,2],"data_offsets":[0,16]})";
  EXPECT_EQ(of("{" + x + R"(,"__metadata__":{"a":"b"}})"), "");
  EXPECT_EQ(of(R"({"x":{"dtype":"U16","shape":[],"data_offsets":[0,2],"note":[[1]]}})"), "");
  EXPECT_THAT(of("{" + x + "," + x + "}"), HasSubstr("tensor 'x' twice"));
  EXPECT_THAT(of("[" + std::string(1000, '[')), HasSubstr("not a JSON object"));
  EXPECT_THAT(of(R"({"__metadata__":{"a":)" + std::string(9, '[')), HasSubstr("deeper than 4"));
  EXPECT_THAT(of("{\"x\":3}"), HasSubstr("'x' in its header is not a JSON object"));
  EXPECT_THAT(of("{\"x\":"), HasSubstr("not JSON at byte"));
  EXPECT_EQ(of(R"({"x":{"dtype":"F8","shape":[],"data_offsets":[0,1]}})"), "");  // may be unused
  EXPECT_THAT(of(R"({"x":{"shape":[],"data_offsets":[0,1]}})"),
              HasSubstr("tensor 'x': its type '' is not supported"));
  EXPECT_THAT(of(R"({"x":{"dtype":"F32","data_offsets":[0,4]}})"), HasSubstr("has no shape"));
  for (const std::string shape : {"[-1]", "[1.5]", "[[2]]", "3", "{}", "[\"2\"]"})
    EXPECT_THAT(of(R"({"x":{"dtype":"F32","shape":)" + shape + R"(,"data_offsets":[0,4]}})"),
                HasSubstr("tensor 'x' has no valid shape"))
        << shape;
  EXPECT_THAT(of(R"({"x":{"dtype":"F32","shape":[7],"data_offsets":[0,28]}})"),
              HasSubstr("the file is truncated"));
  EXPECT_THAT(of("{\"" + std::string(1001, 'n') + "\":{}}"), HasSubstr("longer than 1000 bytes"));
}

TEST_F(TorchFiles, DamagedAndForeignFilesAreTold) {
  const std::string sound =
      torch_archive(pickle_of(p_dict({{"a", six().bytes()}})), {{"0", floats({1, 2, 3, 4, 5, 6})}});
  EXPECT_THAT(refusal(sound.substr(0, sound.size() - 1)), HasSubstr("the file is truncated"));
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
  EXPECT_THAT(refusal(zip_of({{"a", "1"}})), HasSubstr("contains no data.pkl"));
  EXPECT_THAT(refusal(zip_of({{"a/data.pkl", "N."}, {"a/constants.pkl", ""}})),
              HasSubstr("TorchScript"));
  EXPECT_THAT(refusal(zip_of({{"a/data.pkl", "N."}, {"a/byteorder", "big"}})),
              HasSubstr("big-endian"));
  EXPECT_THAT(refusal(torch_archive(pickle_of("N"), {})),
              HasSubstr("not contain a dict of tensors"));
  EXPECT_THAT(refusal(std::string("\x80\x02\x8a\x0a\x6c\xfc\x9c", 7)), HasSubstr("before 1.6"));
  EXPECT_THAT(refusal("\x89HDF\r\n", "w.h5"), HasSubstr("HDF5"));
  EXPECT_THAT(refusal("text", "notes.txt"), HasSubstr("not a supported file of weights"));
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
