// Token files: windows of context + 1 tokens; the last token of a window is only a target.
#include <algorithm>
#include <cstring>

#include <fmt/format.h>

#include "data/formats/file_set.h"
#include "data/formats/formats.h"
#include "data/formats/parsers.h"

namespace lockstep::data {
namespace {

/// Reads a token from unaligned memory.
template <typename Token>
int64_t token_at(const char* bytes, int64_t place) {
  Token token = 0;
  std::memcpy(&token, bytes + place * static_cast<int64_t>(sizeof token), sizeof token);
  return token;
}

/// Source of token windows.
class TokenSource final : public Source {
 public:
  TokenSource(const Paths& paths, const TokenOptions& options) : paths_(paths), options_(options) {
    for (const std::filesystem::path& path : paths) {
      files_.push_back(std::make_unique<ResidentFile>(path));
      const int64_t num_bytes = files_.back()->num_bytes();
      if (num_bytes % options.token_bytes != 0)
        refuse_file(path, fmt::format("has {} bytes, not a multiple of the {} of a token",
                                      num_bytes, options.token_bytes));
      const int64_t num_tokens = num_bytes / options.token_bytes;
      // Each window needs one token after it, as the target of its last input.
      const int64_t num_windows = std::max(int64_t{0}, (num_tokens - 1) / options.context);
      ends_.push_back((ends_.empty() ? 0 : ends_.back()) + num_windows);
    }
    if (ends_.back() == 0)
      refuse_file(paths.front(),
                  fmt::format("has fewer than {} tokens and the one after them (context)",
                              options.context));
    spec_ = {.content = Content::kTokens, .shape = {options.context}, .targets = Targets::kTokens};
    spec_.num_classes = options.vocabulary > 0 ? options.vocabulary : largest_token() + 1;
  }

  int64_t num_records() const override { return ends_.back(); }
  void read(int64_t index, Record* record) const override {
    const Window window = locate(index);
    const int64_t begin = window.first_token * options_.token_bytes;
    std::string storage;
    const std::string_view bytes =
        files_[window.file]->bytes(begin, (options_.context + 1) * options_.token_bytes, &storage);
    record->input_storage.resize(static_cast<size_t>(options_.context + 1) * sizeof(int64_t));
    for (int64_t i = 0; i <= options_.context; ++i) {
      const int64_t token = token_of(bytes.data(), i);
      if (token >= spec_.num_classes)
        refuse_file(paths_[window.file],
                    fmt::format("offset {}: token {} is not in the vocabulary of {}",
                                begin + i * options_.token_bytes, token, spec_.num_classes));
      std::memcpy(record->input_storage.data() + i * 8, &token, sizeof token);
    }
    const std::string_view all = record->input_storage;
    record->input = all.substr(0, all.size() - sizeof(int64_t));
    record->target = all.substr(sizeof(int64_t));
  }
  std::string place_of(int64_t index) const override {
    const Window window = locate(index);
    return fmt::format("{}: offset {}", paths_[window.file].string(),
                       window.first_token * options_.token_bytes);
  }
  std::string digest() const override { return digest_of_files(paths_); }

 private:
  struct Window {
    size_t file;
    int64_t first_token;
  };
  Window locate(int64_t index) const {
    const auto file = std::upper_bound(ends_.begin(), ends_.end(), index) - ends_.begin();
    const int64_t before = file == 0 ? 0 : ends_[static_cast<size_t>(file) - 1];
    return {static_cast<size_t>(file), (index - before) * options_.context};
  }

  int64_t token_of(const char* bytes, int64_t place) const {
    return options_.token_bytes == 2 ? token_at<uint16_t>(bytes, place)
                                     : token_at<uint32_t>(bytes, place);
  }

  // Reads all files once, in pieces, so that large files need little memory.
  int64_t largest_token() const {
    constexpr int64_t kStepTokens = 1 << 20;
    int64_t largest = 0;
    std::string storage;
    for (const auto& file : files_) {
      const int64_t num_tokens = file->num_bytes() / options_.token_bytes;
      for (int64_t first = 0; first < num_tokens; first += kStepTokens) {
        const int64_t count = std::min(kStepTokens, num_tokens - first);
        const std::string_view bytes =
            file->bytes(first * options_.token_bytes, count * options_.token_bytes, &storage);
        for (int64_t i = 0; i < count; ++i) largest = std::max(largest, token_of(bytes.data(), i));
      }
    }
    return largest;
  }

  Paths paths_;
  TokenOptions options_;
  std::vector<std::unique_ptr<ResidentFile>> files_;
  std::vector<int64_t> ends_;  // windows up to the end of each file
};

}  // namespace

std::unique_ptr<Source> open_tokens(const Paths& files, const TokenOptions& options) {
  return std::make_unique<TokenSource>(files, options);
}

}  // namespace lockstep::data
