#include "data/files/found_files.h"

#include <charconv>

#include <fmt/format.h>

#include "base/error.h"

namespace lockstep::data {
namespace {

/// Parts of a text, each ended by a zero byte, which no path contains.
class Parts {
 public:
  explicit Parts(std::string_view text) : rest_(text) {}

  std::string next() {
    const size_t end = rest_.find('\0');
    check(end != std::string_view::npos, "the text of found files is whole");
    std::string part(rest_.substr(0, end));
    rest_.remove_prefix(end + 1);
    return part;
  }
  int64_t next_number() {
    const std::string part = next();
    int64_t number = 0;
    const auto result = std::from_chars(part.data(), part.data() + part.size(), number);
    check(result.ec == std::errc(), "a number in the text of found files");
    return number;
  }
  std::vector<files::FileFacts> next_files() {
    std::vector<files::FileFacts> all(static_cast<size_t>(next_number()));
    for (files::FileFacts& facts : all) {
      facts.path = next();
      facts.num_bytes = next_number();
      facts.tag = next();
    }
    return all;
  }

 private:
  std::string_view rest_;
};

/// Appends a text with its end mark.
void append_part(std::string_view part, std::string* text) {
  text->append(part);
  text->push_back('\0');
}

void append_files(const std::vector<files::FileFacts>& all, std::string* text) {
  append_part(std::to_string(all.size()), text);
  for (const files::FileFacts& facts : all) {
    append_part(facts.path, text);
    append_part(std::to_string(facts.num_bytes), text);
    append_part(facts.tag, text);
  }
}

/// Passes facts of remote files to their stores, so that this rank needs no request for them.
void make_known(const std::vector<files::FileFacts>& all) {
  for (const files::FileFacts& facts : all)
    if (files::FileStore* const store = files::store_of(facts.path)) store->learn(facts);
}

}  // namespace

std::vector<std::filesystem::path> FoundFiles::paths() const {
  std::vector<std::filesystem::path> all;
  all.reserve(files.size());
  for (const files::FileFacts& facts : files) all.emplace_back(facts.path);
  return all;
}

std::string FoundFiles::text() const {
  std::string all;
  append_part(format, &all);
  append_files(files, &all);
  append_part(std::to_string(labels.size()), &all);
  for (const int64_t label : labels) append_part(std::to_string(label), &all);
  append_part(std::to_string(class_names.size()), &all);
  for (const std::string& name : class_names) append_part(name, &all);
  append_files(others, &all);
  return all;
}

FoundFiles FoundFiles::parse(std::string_view text) {
  Parts parts(text);
  FoundFiles found;
  found.format = parts.next();
  found.files = parts.next_files();
  found.labels.resize(static_cast<size_t>(parts.next_number()));
  for (int64_t& label : found.labels) label = parts.next_number();
  found.class_names.resize(static_cast<size_t>(parts.next_number()));
  for (std::string& name : found.class_names) name = parts.next();
  found.others = parts.next_files();
  make_known(found.files);
  make_known(found.others);
  return found;
}

files::FileFacts found_file(const std::filesystem::path& path) {
  if (files::is_remote(path)) return files::facts_of(path);
  return {path.string(), -1, ""};
}

}  // namespace lockstep::data
