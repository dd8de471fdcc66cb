#include "data/formats/file_list.h"

#include <algorithm>
#include <cctype>
#include <charconv>

#include <fmt/format.h>
#include <fnmatch.h>
#include <glob.h>

#include "base/diagnostics.h"
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

// Paths in stores, where a listing returns all files below a folder. The functions are those that
// expand_files(), is_folder(), holds_folders() and files_by_folder() call for such paths.

/// Returns the folder with a trailing slash, since a store has no folders but only prefixes.
static std::string with_slash(const std::string& folder) {
  return folder.ends_with('/') ? folder : folder + "/";
}

/// Returns the files below a folder, relative to it.
static std::vector<std::string> names_below(const std::string& folder) {
  std::vector<std::string> names;
  for (const files::FileFacts& facts : files::store_of(folder)->list(folder))
    names.push_back(facts.path.substr(folder.size()));
  return names;
}

/// Returns the files that a path names, as expand_files(). Not sorted; may be empty.
static std::vector<std::filesystem::path> expand_remote(const std::string& path) {
  std::vector<std::filesystem::path> all;
  files::FileStore& store = *files::store_of(path);
  if (const size_t wild = path.find_first_of("*?["); wild != std::string::npos) {
    // A store lists by prefix: everything before the first wildcard narrows the listing.
    for (const files::FileFacts& facts : store.list(path.substr(0, wild)))
      if (::fnmatch(path.c_str(), facts.path.c_str(), FNM_PATHNAME | FNM_PERIOD) == 0)
        all.emplace_back(facts.path);
  } else if (!path.ends_with('/') && store.look_at(path)) {
    all.emplace_back(path);
  } else {
    for (const std::string& name : names_below(with_slash(path)))
      if (!name.starts_with('.') && name.find('/') == std::string::npos)
        all.emplace_back(with_slash(path) + name);
  }
  return all;
}

static bool is_remote_folder(const std::string& path) {
  return path.find_first_of("*?[") == std::string::npos && !names_below(with_slash(path)).empty();
}

static bool remote_holds_folders(const std::string& path) {
  if (path.find_first_of("*?[") != std::string::npos) return false;
  const std::vector<std::string> names = names_below(with_slash(path));
  return std::any_of(names.begin(), names.end(), [](const std::string& name) {
    return !name.starts_with('.') && name.find('/') != std::string::npos;
  });
}

/// Returns the subfolders sorted by name, with unsorted files.
static std::vector<Subfolder> remote_files_by_folder(const std::string& folder, TakesFile takes) {
  std::map<std::string, Subfolder> by_name;
  for (const std::string& name : names_below(with_slash(folder))) {
    const size_t slash = name.find('/');
    // Hidden files, and files in hidden folders.
    const bool is_hidden = name.starts_with('.') || name.find("/.") != std::string::npos;
    if (is_hidden || slash == std::string::npos) continue;
    Subfolder& one = by_name[name.substr(0, slash)];
    one.name = name.substr(0, slash);
    if (!name.ends_with('/')) one.add(with_slash(folder) + name, takes);
  }
  std::vector<Subfolder> all;
  for (auto& [name, one] : by_name) all.push_back(std::move(one));
  return all;
}

// Paths of this host are expanded here; expand_remote() and the others expand those in stores.

namespace {

/// Frees what glob() allocated.
struct GlobResult {
  glob_t found{};
  ~GlobResult() { ::globfree(&found); }
};

/// Throws Error(kInputMissing) with the nearest name. `kind`: file or folder.
[[noreturn]] void say_there_is_none(const std::string& path, const std::string& kind) {
  std::string hint;
  if (!files::is_remote(path)) {
    const std::filesystem::path asked(path);
    const std::filesystem::path folder = asked.has_parent_path() ? asked.parent_path() : ".";
    std::error_code ignored;
    hint = did_you_mean(asked.filename().string(), files::list(folder));
    if (!std::filesystem::exists(folder, ignored) && path.find_first_of("*?[") == std::string::npos)
      hint = " (nor is its folder)";
    if (asked.is_relative())
      hint.insert(0, " in " + std::filesystem::current_path(ignored).string());
  }
  throw Error(ExitCode::kInputMissing, "data", path + ": no such " + kind + hint);
}

[[noreturn]] void say_nothing_matches(const std::string& path) {
  if (is_folder(path))
    throw Error(ExitCode::kInputMissing, "data",
                path + ": the folder contains no files; name the folder or the files of the data");
  say_there_is_none(path, "file");
}

/// Expands a path of this host.
std::vector<std::filesystem::path> expand_here(const std::string& path) {
  std::vector<std::filesystem::path> all;
  if (std::filesystem::is_directory(path)) {
    for (const std::string& name : files::list(path))
      if (!name.starts_with(".") &&
          !std::filesystem::is_directory(std::filesystem::path(path) / name))
        all.push_back(std::filesystem::path(path) / name);
  } else if (std::filesystem::exists(path)) {
    all.emplace_back(path);
  } else {
    GlobResult result;
    ::glob(path.c_str(), 0, nullptr, &result.found);
    for (size_t i = 0; i < result.found.gl_pathc; ++i)
      if (!std::filesystem::is_directory(result.found.gl_pathv[i]))
        all.emplace_back(result.found.gl_pathv[i]);
  }
  return all;
}

/// True if a link leads to a folder that contains it: following it would never end.
bool goes_round(const std::filesystem::path& link) {
  std::error_code fault;
  const auto target = std::filesystem::canonical(link, fault);
  const auto folder = std::filesystem::canonical(link.parent_path(), fault);
  return std::mismatch(target.begin(), target.end(), folder.begin(), folder.end()).first ==
         target.end();
}

/// Adds the files at any depth below a folder, following links.
void add_files_below(const std::filesystem::path& folder, TakesFile takes, Subfolder* all) {
  std::error_code fault;
  using std::filesystem::directory_options;
  std::filesystem::recursive_directory_iterator entry(
      folder, directory_options::follow_directory_symlink, fault);
  for (; !fault && entry != std::filesystem::recursive_directory_iterator();
       entry.increment(fault)) {
    const bool is_hidden = entry->path().filename().native().starts_with('.');
    if (!is_hidden && !entry->is_directory(fault)) all->add(entry->path(), takes);
    // disable_recursion_pending() skips hidden folders and circular links.
    if (is_hidden || (entry->is_symlink(fault) && goes_round(entry->path())))
      entry.disable_recursion_pending();
  }
  if (fault)
    throw Error(ExitCode::kIo, "data", folder.string() + ": cannot be listed: " + fault.message());
}

}  // namespace

std::vector<std::filesystem::path> expand_files(const std::string& path) {
  std::vector<std::filesystem::path> all =
      files::is_remote(path) ? expand_remote(path) : expand_here(path);
  if (all.empty()) say_nothing_matches(path);
  // Sorted, because the order of the files is the order of the samples.
  std::sort(all.begin(), all.end());
  return all;
}

bool is_folder(const std::string& path) {
  return files::is_remote(path) ? is_remote_folder(path) : std::filesystem::is_directory(path);
}

void require_folder(const std::string& path) {
  if (files::is_remote(path)) return;
  using std::filesystem::file_type;
  std::error_code ignored;
  const file_type type = std::filesystem::status(path, ignored).type();
  if (type == file_type::not_found) say_there_is_none(path, "folder");
  if (type == file_type::directory || type == file_type::none) return;  // none: listing says why
  throw Error(ExitCode::kInputMissing, "data", path + ": is a file, not a folder");
}

bool holds_folders(const std::string& path) {
  if (files::is_remote(path)) return remote_holds_folders(path);
  const std::vector<std::string> names = files::list(path);
  return std::any_of(names.begin(), names.end(), [&](const std::string& name) {
    return !name.starts_with(".") &&
           std::filesystem::is_directory(std::filesystem::path(path) / name);
  });
}

std::string lower_ending(const std::filesystem::path& file) {
  std::string ending = file.extension().string();
  std::transform(ending.begin(), ending.end(), ending.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return ending;
}

bool is_image_name(const std::filesystem::path& file) {
  const std::string ending = lower_ending(file);
  return ending == ".jpg" || ending == ".jpeg" || ending == ".png";
}

void Subfolder::add(const std::filesystem::path& file, TakesFile takes) {
  if (takes(file))
    files.push_back(file);
  else
    ++others[lower_ending(file)];
}

std::vector<Subfolder> files_by_folder(const std::string& folder, TakesFile takes) {
  std::vector<Subfolder> all;
  if (files::is_remote(folder)) {
    all = remote_files_by_folder(folder, takes);
  } else {
    for (const std::string& name : files::list(folder)) {
      const std::filesystem::path path = std::filesystem::path(folder) / name;
      if (!name.starts_with(".") && std::filesystem::is_directory(path))
        add_files_below(path, takes, &all.emplace_back(Subfolder{.name = name}));
    }
  }
  for (Subfolder& one : all) std::sort(one.files.begin(), one.files.end());
  return all;
}

}  // namespace lockstep::data
