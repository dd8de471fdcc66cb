// weights_fuzz FORMAT [--seed S] [--cases N | --seconds T] [--first I]
//
// Reads mutated files of weights: pickle (a state dict's pickle, in an archive with right
// checksums), torch (the whole archive) or safetensors. Built with AddressSanitizer and UBSan, so a
// memory error ends it. A case also fails if it takes more processor time or memory than so small a
// file accounts for, or throws anything but Error(kBadData).
#include <fstream>
#include <map>
#include <memory>
#include <string>

#include <ATen/ATen.h>

#include "base/error.h"
#include "checkpoint/import/load_weights.h"
#include "tests/checkpoint/weights/torch_archive.h"
#include "tests/support/byte_fuzzer.h"
#include "tests/support/temporary_folder.h"

namespace lockstep::fuzz {
namespace {

const tests::Members kStorages = {{"0", std::string(24, 'v')}, {"1", std::string(16, 'w')}};

std::string pickle_seed() {
  const tests::PickledTensor floats{.storage_elements = 6, .shape = {2, 3}, .strides = {3, 1}};
  const tests::PickledTensor counts{.storage = "1",
                                    .type = "LongStorage",
                                    .storage_elements = 2,
                                    .offset = 1,
                                    .shape = {1},
                                    .strides = {1},
                                    .bits = "}" + tests::p_text("neg") + "\x89s"};
  return tests::pickle_of(
      tests::p_dict({{"a.weight", floats.bytes()},
                     {"inner", "}q\x05(" + tests::p_text("n") + counts.bytes() +
                                   tests::p_text("k") + tests::p_ints({1, 2}) + "u"},
                     {"again", "h\x05"},
                     {"size", tests::p_global("torch", "Size") + ")R"},
                     {"set", "\x8f(K\x01\x90"},
                     {"more", tests::p_global("collections", "defaultdict") + ")R"},
                     {"list", "](K\x01M\x02\x03N\x88G12345678\x8c\x01xe"}}));
}

std::string safetensors_seed() {
  const std::string header =
      R"({"__metadata__":{"a":"b"},"x":{"dtype":"F32","shape":[2,2],"data_offsets":[0,16]},)"
      R"("y":{"dtype":"I64","shape":[],"data_offsets":[16,24]}})";
  return tests::le(header.size(), 8) + header + std::string(24, 'v');
}

using Open = std::unique_ptr<checkpoint::WeightsFile> (*)(const std::string& path);

void read_weights(const std::string& bytes, Open open) {
  static const tests::TemporaryFolder folder;
  const std::string path = folder.path() / "case";
  std::ofstream(path, std::ios::binary | std::ios::trunc) << bytes;
  const auto file = open(path);
  for (const std::string& name : file->names()) {
    const checkpoint::ValueForm form = file->form(name);
    check(file->read(name).sizes() == form.shape, "a value has another form than it says");
  }
}

std::map<std::string, Format> formats() {
  const auto in_archive = [](const std::string& bytes) {
    return tests::torch_archive(bytes, kStorages);
  };
  const auto reader = [](Open open) {
    return [open](const std::string& bytes) { read_weights(bytes, open); };
  };
  const auto read_pickle = [in_archive](const std::string& bytes) {
    read_weights(in_archive(bytes), checkpoint::open_torch_file);
  };
  return {{"pickle", {{pickle_seed()}, read_pickle}},
          {"torch", {{in_archive(pickle_seed())}, reader(checkpoint::open_torch_file)}},
          {"safetensors", {{safetensors_seed()}, reader(checkpoint::open_safetensors_file)}}};
}

}  // namespace
}  // namespace lockstep::fuzz

int main(int argc, char** argv) {
  return lockstep::fuzz::fuzz_main(argc, argv, lockstep::fuzz::formats());
}
