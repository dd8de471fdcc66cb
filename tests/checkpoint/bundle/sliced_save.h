#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <ATen/ATen.h>

#include "base/digest.h"
#include "checkpoint/format/bundle_encoding.h"
#include "checkpoint/format/bundle_index.h"
#include "checkpoint/format/checkpoint_files.h"
#include "checkpoint/format/tensor_type.h"
#include "tests/checkpoint/save_fixture.h"

namespace lockstep::checkpoint::tests {

/// Makes the files of a save piece by piece, right or wrong: slices wherever a test wants them.
class SaveMaker {
 public:
  explicit SaveMaker(int32_t num_shards = 1) : shards_(static_cast<size_t>(num_shards)) {
    index.num_shards = num_shards;
  }

  void add(const std::string& name, const at::Tensor& tensor, int32_t shard = 0) {
    BundleEntry entry = entry_of(tensor);
    static_cast<BundlePlace&>(entry) = put(tensor, shard);
    index.entries[name] = entry;
  }

  /// Slice i goes to shard i modulo their number.
  void add_sliced(const std::string& name, const at::Tensor& tensor,
                  const std::vector<TensorBox>& boxes) {
    BundleEntry entry = entry_of(tensor);
    for (size_t i = 0; i < boxes.size(); ++i) {
      at::Tensor part = tensor;
      for (size_t d = 0; d < boxes[i].start.size(); ++d)
        part = part.narrow(static_cast<int64_t>(d), boxes[i].start[d], boxes[i].length[d]);
      entry.slices.push_back({put(part, static_cast<int32_t>(i % shards_.size())), boxes[i]});
    }
    index.entries[name] = entry;
  }

  void add_text(const std::string& name, std::string_view text) {
    const EncodedStrings encoded = encode_strings({text});
    BundleEntry entry;
    entry.dtype = kStringType;
    static_cast<BundlePlace&>(entry) = put_bytes(encoded.bytes, 0);
    entry.masked_crc = encoded.masked_crc;
    index.entries[name] = entry;
  }

  void write(const std::string& prefix) const {
    for (size_t i = 0; i < shards_.size(); ++i)
      tests::put_bytes(shard_path(prefix, static_cast<int32_t>(i), index.num_shards), shards_[i]);
    tests::put_bytes(index_path(prefix), encode_index(index));
  }

  BundleIndex index;

 private:
  static BundleEntry entry_of(const at::Tensor& tensor) {
    BundleEntry entry;
    entry.dtype = type_number(tensor.scalar_type()).value();
    entry.shape = tensor.sizes().vec();
    return entry;
  }

  BundlePlace put(const at::Tensor& tensor, int32_t shard) {
    const at::Tensor whole = tensor.contiguous();
    return put_bytes({static_cast<const char*>(whole.const_data_ptr()), whole.nbytes()}, shard);
  }

  /// Appends bytes at a multiple of 64, so that there are gaps.
  BundlePlace put_bytes(std::string_view bytes, int32_t shard) {
    std::string& file = shards_.at(static_cast<size_t>(shard));
    if (!bytes.empty()) file.resize((file.size() + 63) / 64 * 64);
    const BundlePlace place{shard, static_cast<int64_t>(file.size()),
                            static_cast<int64_t>(bytes.size()), masked_crc32c(crc32c(bytes))};
    file += bytes;
    return place;
  }

  std::vector<std::string> shards_;
};

/// Boxes that cut a tensor of this shape along one dimension into parts of these lengths.
inline std::vector<TensorBox> cut_along(const std::vector<int64_t>& shape, size_t dim,
                                        const std::vector<int64_t>& lengths) {
  std::vector<TensorBox> boxes;
  int64_t at = 0;
  for (const int64_t length : lengths) {
    TensorBox box{std::vector<int64_t>(shape.size(), 0), shape};
    box.start[dim] = at;
    box.length[dim] = length;
    at += length;
    boxes.push_back(box);
  }
  return boxes;
}

/// Boxes of the row-major ranges that end at these elements.
inline std::vector<TensorBox> cut_at(const std::vector<int64_t>& shape,
                                     const std::vector<int64_t>& ends_E) {
  std::vector<TensorBox> boxes;
  int64_t begin_E = 0;
  for (const int64_t end_E : ends_E) {
    for (const TensorBox& box : boxes_of({begin_E, end_E}, shape)) boxes.push_back(box);
    begin_E = end_E;
  }
  return boxes;
}

}  // namespace lockstep::checkpoint::tests
