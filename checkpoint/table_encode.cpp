#include <stdexcept>

#include <leveldb/env.h>
#include <leveldb/options.h>
#include <leveldb/table_builder.h>

#include "checkpoint/index_table.h"

namespace lockstep::checkpoint {
namespace {

/// LevelDB writes here; the bytes go to disk through base/files.h.
class MemoryFile final : public leveldb::WritableFile {
 public:
  leveldb::Status Append(const leveldb::Slice& data) override {
    bytes.append(data.data(), data.size());
    return leveldb::Status::OK();
  }
  leveldb::Status Close() override { return leveldb::Status::OK(); }
  leveldb::Status Flush() override { return leveldb::Status::OK(); }
  leveldb::Status Sync() override { return leveldb::Status::OK(); }

  std::string bytes;
};

/// The values that TensorFlow uses, so that equal rows give TensorFlow's bytes.
leveldb::Options table_options() {
  leveldb::Options options;
  options.compression = leveldb::kNoCompression;
  options.block_size = 262144;
  options.block_restart_interval = 16;
  return options;
}

}  // namespace

std::string encode_table(const TableRows& rows) {
  MemoryFile file;
  leveldb::TableBuilder builder(table_options(), &file);
  for (const auto& [key, value] : rows) builder.Add(key, value);
  const leveldb::Status status = builder.Finish();
  if (!status.ok()) throw std::runtime_error(status.ToString());
  return std::move(file.bytes);
}

}  // namespace lockstep::checkpoint
