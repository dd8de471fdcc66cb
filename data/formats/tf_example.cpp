#include "data/formats/parsers.h"

#include <utility>

#include "data/formats/tf_example.pb.h"

namespace lockstep::data {
namespace {

[[noreturn]] void refuse_example(const char* what) {
  throw Error(ExitCode::kBadData, "data", std::string("its tf.train.Example ") + what);
}

}  // namespace

pb::Example parse_example(std::string_view bytes) {
  pb::Example example;
  if (bytes.size() > INT32_MAX) refuse_example("has more than 2 GiB");
  if (!example.ParseFromArray(bytes.data(), static_cast<int>(bytes.size())))
    refuse_example("is truncated, damaged or invalid");
  return example;
}

pb::Feature* find_feature(std::string_view name, pb::Example* example) {
  pb::Feature* found = nullptr;
  // A later entry of a map replaces an earlier one, as protobuf requires.
  for (pb::Features::Entry& entry : *example->mutable_features()->mutable_feature())
    if (entry.key() == name) found = entry.mutable_value();
  return found != nullptr && found->kind_case() != pb::Feature::KIND_NOT_SET ? found : nullptr;
}

std::string only_bytes(pb::Feature* feature) {
  pb::BytesList& list = *feature->mutable_bytes_list();
  if (list.value_size() > 1) refuse_example("has several values, expected one");
  if (list.value_size() == 0) refuse_example("has an empty list, expected one value");
  return std::move(*list.mutable_value(0));
}

}  // namespace lockstep::data
