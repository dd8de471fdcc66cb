#pragma once

#include <cstdint>
#include <cstring>
#include <map>
#include <string>

#include <ATen/ops/empty.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "base/files/files.h"

namespace lockstep::tests {

/// A safetensors file as its description says it is read.
struct SafetensorsFile {
  explicit SafetensorsFile(const std::string& path) : bytes(files::read(path)) {
    uint64_t header_bytes = 0;
    std::memcpy(&header_bytes, bytes.data(), sizeof header_bytes);
    data_begin = sizeof header_bytes + header_bytes;
    header = nlohmann::ordered_json::parse(bytes.substr(sizeof header_bytes, header_bytes));
  }

  at::Tensor tensor(const std::string& name) const {
    static const std::map<std::string, at::ScalarType> kTypes = {
        {"F32", at::kFloat}, {"F64", at::kDouble}, {"I8", at::kChar},  {"U8", at::kByte},
        {"I32", at::kInt},   {"I64", at::kLong},   {"F16", at::kHalf}, {"BF16", at::kBFloat16},
        {"BOOL", at::kBool}, {"I16", at::kShort}};
    const auto& entry = header.at(name);
    at::Tensor values =
        at::empty(entry.at("shape").get<std::vector<int64_t>>(), kTypes.at(entry.at("dtype")));
    const size_t begin = entry.at("data_offsets").at(0), end = entry.at("data_offsets").at(1);
    EXPECT_EQ(end - begin, values.nbytes()) << name;
    if (values.nbytes() > 0)
      std::memcpy(values.mutable_data_ptr(), bytes.data() + data_begin + begin, values.nbytes());
    return values;
  }

  std::string bytes;
  size_t data_begin = 0;
  nlohmann::ordered_json header;
};

}  // namespace lockstep::tests
