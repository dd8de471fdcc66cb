#include "data/formats/file_set.h"

#include <algorithm>

#include <fmt/format.h>

#include "base/digest.h"
#include "base/error.h"

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

namespace {

// Limits of open files, of a digest over all bytes, and size and number of its pieces otherwise.
constexpr size_t kMaxOpenFiles = 128;
constexpr int64_t kMaxWholeBytes = int64_t{64} << 20;
constexpr int64_t kNumPieces = 512;
constexpr int64_t kPieceBytes = int64_t{64} << 10;

/// Returns the folder that all paths share.
std::filesystem::path common_folder(const std::vector<std::filesystem::path>& paths) {
  std::filesystem::path common = paths.front().parent_path();
  for (const std::filesystem::path& path : paths) {
    const std::filesystem::path folder = path.parent_path();
    const auto [end, ignored] =
        std::mismatch(common.begin(), common.end(), folder.begin(), folder.end());
    std::filesystem::path shared;
    for (auto part = common.begin(); part != end; ++part) shared /= *part;
    common = shared;
  }
  return common;
}

struct PlacedFiles {
  std::vector<int64_t> begins;  ///< of each file in the concatenated bytes, and their end
  const std::vector<std::filesystem::path>& paths;
};

/// Adds bytes [begin, end) of the concatenated files to the digest.
void add_range(const PlacedFiles& all, int64_t begin, int64_t end, Sha256* sum) {
  const auto next = std::upper_bound(all.begins.begin(), all.begins.end(), begin);
  auto file = static_cast<size_t>(next - all.begins.begin() - 1);
  std::string bytes;
  while (begin < end) {
    const files::Reader reader(all.paths[file]);
    const int64_t file_end = std::min(end, all.begins[file + 1]);
    while (begin < file_end) {
      bytes.resize(static_cast<size_t>(std::min(file_end - begin, int64_t{1} << 20)));
      reader.read_at(begin - all.begins[file], bytes);
      sum->add(bytes);
      begin += static_cast<int64_t>(bytes.size());
    }
    ++file;
  }
}

}  // namespace

FileSet::FileSet(std::vector<std::filesystem::path> paths)
    : paths_(std::move(paths)), open_(std::min(paths_.size(), kMaxOpenFiles)) {}

std::shared_ptr<const files::Reader> FileSet::open(int64_t file) const {
  const size_t place = static_cast<size_t>(file) % open_.size();
  // Files share slots by their number modulo kMaxOpenFiles. A reader in use stays open until its
  // pointer is dropped.
  {
    const std::scoped_lock lock(mutex_);
    if (open_[place] != nullptr && open_[place]->path() == path(file)) return open_[place];
  }
  // Opened without the lock: a slow store must not stop readers of other files.
  auto reader = std::make_shared<const files::Reader>(path(file));
  const std::scoped_lock lock(mutex_);
  open_[place] = reader;
  return reader;
}

std::string digest_of_files(const std::vector<std::filesystem::path>& paths) {
  Sha256 sum;
  const std::filesystem::path folder = common_folder(paths);
  std::vector<std::filesystem::path> read;
  PlacedFiles all{{0}, read};
  for (const std::filesystem::path& path : paths) {
    const files::FileFacts facts = files::facts_of(path);
    sum.add(fmt::format("{}\n{}\n", path.lexically_relative(folder).string(), facts.num_bytes));
    if (facts.tag.empty()) {
      read.push_back(path);
      all.begins.push_back(all.begins.back() + facts.num_bytes);
    } else {
      sum.add(facts.tag + "\n");  // replaces the bytes
    }
  }
  const int64_t total = all.begins.back();
  // Reading a large set entirely would delay every start.
  if (total <= kMaxWholeBytes) {
    add_range(all, 0, total, &sum);
    return sum.hex();
  }
  for (int64_t piece = 0; piece < kNumPieces; ++piece) {
    const int64_t begin = (total - kPieceBytes) / (kNumPieces - 1) * piece;
    add_range(all, piece + 1 < kNumPieces ? begin : total - kPieceBytes,
              piece + 1 < kNumPieces ? begin + kPieceBytes : total, &sum);
  }
  return sum.hex();
}

}  // namespace lockstep::data
