#include "checkpoint/save/bundle_writer.h"

#include <bit>
#include <filesystem>

#include <fmt/format.h>

#include "base/digest.h"
#include "base/error.h"
#include "checkpoint/bundle/string_tensor.h"
#include "checkpoint/bundle/tensor_type.h"
#include "checkpoint/files/save_files.h"

namespace lockstep::checkpoint {
namespace {

static_assert(std::endian::native == std::endian::little, "files are little-endian");

std::string temporary(const std::string& path) { return path + std::string(kTemporarySuffix); }

void publish(const std::string& path) {
  files::rename_file(temporary(path), path);
  files::sync_folder(std::filesystem::path(path).parent_path());
}

/// The values as they lie in a file: on the CPU, row-major, without lazy flags.
at::Tensor as_stored(const at::Tensor& tensor) {
  return tensor.detach().cpu().resolve_conj().resolve_neg().contiguous();
}

}  // namespace

ShardWriter::ShardWriter(std::string path, int32_t shard)
    : path_(std::move(path)), shard_(shard), file_(temporary(path_)) {}

void ShardWriter::append(const std::string& name, const at::Tensor& tensor) {
  const auto number = type_number(tensor.scalar_type());
  check(number.has_value() && tensor.layout() == at::kStrided,
        "tensor '" + name + "' has no form in a save");
  const at::Tensor stored = as_stored(tensor);
  BundleEntry entry;
  entry.dtype = *number;
  entry.shape = stored.sizes().vec();
  const std::string_view bytes(static_cast<const char*>(stored.const_data_ptr()), stored.nbytes());
  entry.masked_crc = masked_crc32c(crc32c(bytes));
  append_bytes(name, std::move(entry), bytes);
}

void ShardWriter::append(const std::string& name, std::string_view text) {
  const EncodedStrings encoded = encode_strings({text});
  BundleEntry entry;
  entry.dtype = kStringType;
  entry.masked_crc = encoded.masked_crc;
  append_bytes(name, std::move(entry), encoded.bytes);
}

void ShardWriter::append_bytes(const std::string& name, BundleEntry entry, std::string_view bytes) {
  const int64_t beyond = file_.num_bytes() % kTensorAlignment;
  if (beyond > 0 && !bytes.empty())
    file_.append(std::string(static_cast<size_t>(kTensorAlignment - beyond), '\0'));
  entry.shard = shard_;
  entry.offset = file_.num_bytes();
  entry.num_bytes = static_cast<int64_t>(bytes.size());
  file_.append(bytes);
  check(entries_.emplace(name, std::move(entry)).second,
        "tensor '" + name + "' stands twice in a save");
}

void ShardWriter::finish() {
  file_.sync();
  file_.close();
}

void ShardWriter::publish() { checkpoint::publish(path_); }

int64_t stage_index(const std::string& prefix, const BundleIndex& index) {
  return stage_index(prefix, std::string_view(encode_index(index)));
}

int64_t stage_index(const std::string& prefix, std::string_view bytes) {
  files::Writer file(temporary(index_path(prefix)));
  file.append(bytes);
  file.sync();
  file.close();
  return file.num_bytes();
}

void publish_index(const std::string& prefix) { publish(index_path(prefix)); }

}  // namespace lockstep::checkpoint
