#include "data/files/resident_file.h"

#include <algorithm>

namespace lockstep::data {
namespace {

constexpr int64_t kMaxResidentBytes = int64_t{512} << 20;
constexpr int64_t kMaxExpectedBytes = 4096, kCacheLine = 64;

}  // namespace

ResidentFile::ResidentFile(const std::filesystem::path& path) : reader_(path) {
  if (reader_.num_bytes() > kMaxResidentBytes || files::is_remote(path)) return;
  mapping_ = std::make_unique<files::Mapping>(reader_);
  begin_ = mapping_->fetch(0, reader_.num_bytes());
}

std::string_view ResidentFile::bytes(int64_t offset, int64_t num_bytes,
                                     std::string* storage) const {
  if (begin_ != nullptr) return {begin_ + offset, static_cast<size_t>(num_bytes)};
  storage->resize(static_cast<size_t>(num_bytes));
  reader_.read_at(offset, *storage);
  return *storage;
}

void ResidentFile::expect(int64_t offset, int64_t num_bytes) const {
  if (begin_ == nullptr) return;
  for (int64_t at = 0; at < std::min(num_bytes, kMaxExpectedBytes); at += kCacheLine)
    __builtin_prefetch(begin_ + offset + at);
}

}  // namespace lockstep::data
