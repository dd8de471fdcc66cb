// Writer of the table, by LevelDB's own table builder with TensorFlow's options.
#include <stdexcept>

#include <leveldb/env.h>
#include <leveldb/options.h>
#include <leveldb/table_builder.h>

#include "checkpoint/bundle/index_table.h"

namespace lockstep::checkpoint {
namespace {

/// File for LevelDB's table builder that passes all bytes to add().
class MemoryFile : public leveldb::WritableFile {
 public:
  leveldb::Status Append(const leveldb::Slice& data) override {
    add({data.data(), data.size()});
    return leveldb::Status::OK();
  }
  leveldb::Status Close() override { return leveldb::Status::OK(); }
  leveldb::Status Flush() override { return leveldb::Status::OK(); }
  leveldb::Status Sync() override { return leveldb::Status::OK(); }

 private:
  virtual void add(std::string_view bytes) = 0;
};

/// File that collects the bytes; they are written to disk through base/files/files.h.
class KeptFile final : public MemoryFile {
 public:
  std::string bytes;

 private:
  void add(std::string_view more) override { bytes += more; }
};

/// File that compares the bytes with the expected ones and stores nothing.
class ComparedFile final : public MemoryFile {
 public:
  explicit ComparedFile(std::string_view expected) : rest_(expected) {}
  bool is_equal() const { return equal_ && rest_.empty(); }

 private:
  void add(std::string_view bytes) override {
    equal_ = equal_ && rest_.starts_with(bytes);
    if (equal_) rest_.remove_prefix(bytes.size());
  }

  std::string_view rest_;
  bool equal_ = true;
};

/// Returns TensorFlow's own values, so that equal rows give TensorFlow's bytes.
leveldb::Options table_options() {
  leveldb::Options options;
  options.compression = leveldb::kNoCompression;
  options.block_size = 262144;
  options.block_restart_interval = 16;
  return options;
}

void finish_table(leveldb::TableBuilder* builder) {
  const leveldb::Status status = builder->Finish();
  if (!status.ok()) throw std::runtime_error(status.ToString());
}

}  // namespace

struct TableEncoder::Parts {
  KeptFile file;
  leveldb::TableBuilder builder{table_options(), &file};
  bool is_finished = false;
};

TableEncoder::TableEncoder() : parts_(std::make_unique<Parts>()) {}

TableEncoder::~TableEncoder() {
  if (!parts_->is_finished) parts_->builder.Abandon();  // its destructor requires it
}

void TableEncoder::add(std::string_view key, std::string_view value) {
  parts_->builder.Add({key.data(), key.size()}, {value.data(), value.size()});
}

std::string TableEncoder::finish() {
  parts_->is_finished = true;
  finish_table(&parts_->builder);
  return std::move(parts_->file.bytes);
}

std::string encode_table(const TableRows& rows) {
  TableEncoder encoder;
  for (const auto& [key, value] : rows) encoder.add(key, value);
  return encoder.finish();
}

bool is_as_encoded(std::string_view bytes) {
  ComparedFile file(bytes);
  leveldb::TableBuilder builder(table_options(), &file);
  try {
    for_each_row(bytes, [&](const std::string& key, std::string_view value) {
      builder.Add(key, leveldb::Slice(value.data(), value.size()));
    });
  } catch (...) {
    builder.Abandon();  // LevelDB's destructor requires Finish() or Abandon()
    throw;
  }
  finish_table(&builder);
  return file.is_equal();
}

}  // namespace lockstep::checkpoint
