// data_fuzz FORMAT [--seed S] [--cases N | --seconds T] [--first I]
//
// Reads mutated files of a format: example, csv, idx, npy, safetensors, tar, png or jpeg. Built
// with AddressSanitizer and UBSan, so a memory error ends it. A case also fails if it takes more
// processor time than its size accounts for, holds more than 64 MiB, or throws anything but
// Error(kBadData). What failed is written to a file, with the arguments that repeat it.
#include <array>
#include <map>
#include <string>
#include <string_view>

#include "base/error.h"
#include "data/formats/parsers.h"
#include "data/formats/tf_example.pb.h"
#include "data/images/decode.h"
#include "tests/data/image_encoders.h"
#include "tests/data/written_bytes.h"
#include "tests/support/byte_fuzzer.h"
#include "tests/support/tfrecord_writer.h"

namespace lockstep::fuzz {
namespace {

using data::written::jpeg_of;
using data::written::png_of;
using data::written::smooth_pixels;
using data::written::tar_end;
using data::written::tar_member;

void read_example(const std::string& bytes) {
  data::pb::Example example = data::parse_example(bytes);
  for (const char* name : {"raw", "ints", "floats"}) {
    data::pb::Feature* const feature = data::find_feature(name, &example);
    if (feature != nullptr && feature->has_bytes_list()) (void)data::only_bytes(feature);
  }
}

void read_tar(const std::string& bytes) {
  const auto size = static_cast<int64_t>(bytes.size());
  for (const data::TarMember& member : data::list_tar(
           [&](int64_t offset, int64_t num_bytes) {
             check(offset >= 0 && num_bytes >= 0 && offset + num_bytes <= size, "outside the file");
             return std::string_view(bytes).substr(static_cast<size_t>(offset),
                                                   static_cast<size_t>(num_bytes));
           },
           size, "fuzz"))
    check(member.offset + member.num_bytes <= size, "a member lies outside the archive");
}

void read_image(const std::string& bytes) {
  const data::ImageHeader header = data::read_image_header(bytes);
  std::vector<uint8_t> storage;
  const data::Pixels pixels = data::decode_image(bytes, header, bytes.size() % 2 == 0 ? 3 : 1,
                                                 bytes.size() % 3 == 0 ? 2 : 1, &storage);
  check(pixels.height * pixels.width * pixels.channels <= static_cast<int64_t>(storage.size()),
        "fewer pixels than it says");
}

void read_safetensors(const std::string& bytes) {
  const auto size = static_cast<int64_t>(bytes.size());
  const int64_t end = data::safetensors_header_end(bytes, size, "fuzz");
  const data::ArrayHeader header = data::parse_safetensors_header(
      std::string_view(bytes).substr(0, static_cast<size_t>(end)), size, "x", "fuzz");
  check(header.offset + header.num_bytes <= size, "an array lies outside the file");
}

void read_npy(const std::string& bytes) {
  const auto size = static_cast<int64_t>(bytes.size());
  const data::ArrayHeader header = data::parse_npy_header(bytes, size, "fuzz");
  check(header.offset + header.num_bytes <= size, "an array lies outside the file");
}

std::vector<std::string> png_seeds() {
  const std::vector<uint8_t> pixels = smooth_pixels(13, 11, 4);
  std::vector<std::string> seeds;
  constexpr std::array<unsigned, 4> kFormats{PNG_FORMAT_RGB, PNG_FORMAT_RGBA, PNG_FORMAT_GRAY,
                                             PNG_FORMAT_GA};
  for (const unsigned format : kFormats) seeds.push_back(png_of(pixels.data(), 13, 11, format));
  return seeds;
}

std::vector<std::string> jpeg_seeds() {
  const std::vector<uint8_t> pixels = smooth_pixels(23, 19, 4);
  std::vector<std::string> seeds;
  for (const int channels : {1, 3, 4})
    seeds.push_back(jpeg_of(pixels.data(), 23, 19, channels, 60));
  return seeds;
}

std::string safetensors_seed() {
  const std::string header =
      R"({"__metadata__":{"a":"b"},"x":{"dtype":"F32","shape":[2,2],"data_offsets":[0,16]}})";
  return tests::little_endian(header.size(), 8) + header + std::string(16, 'v');
}

std::map<std::string, Format> formats() {
  const auto parsed_csv = [](const std::string& bytes) { (void)data::parse_csv(bytes, "fuzz"); };
  const auto read_idx = [](const std::string& bytes) {
    (void)data::parse_idx_header(std::string_view(bytes).substr(0, data::kMaxIdxHeaderBytes),
                                 static_cast<int64_t>(bytes.size()), "fuzz");
  };
  const std::string example = tests::ExampleText()
                                  .add("raw", tests::bytes_feature("\x89PNG of some kind"))
                                  .add("ints", tests::ints_feature({1, -1, 300}))
                                  .add("floats", tests::floats_feature({1, 2}))
                                  .bytes();
  const std::string tar = tar_member("x", "28 path=a/very/long.one.png\n", 'x') +
                          tar_member("1.png", std::string(700, 'p')) +
                          tar_member("n", "long name", 'L') + tar_member("1.cls", "1") + tar_end();
  return {{"example", {{example}, read_example}},
          {"csv", {{"a.png,1\n\"b, \"\"c\"\"\n.png\",2\r\n\nfile,3\n"}, parsed_csv}},
          {"idx",
           {{data::written::idx_of({2, 3, 2}, "123456789012"), data::written::idx_of({3}, "abc")},
            read_idx}},
          {"npy",
           {{data::written::npy_of("<f4", "(2, 2)", std::string(16, 'v')),
             data::written::npy_of("|u1", "(3,)", "abc")},
            read_npy}},
          {"safetensors", {{safetensors_seed()}, read_safetensors}},
          {"tar", {{tar}, read_tar, mend_tar}},
          {"png", {png_seeds(), read_image, mend_png}},
          {"jpeg", {jpeg_seeds(), read_image}}};
}

}  // namespace
}  // namespace lockstep::fuzz

int main(int argc, char** argv) {
  return lockstep::fuzz::fuzz_main(argc, argv, lockstep::fuzz::formats());
}
