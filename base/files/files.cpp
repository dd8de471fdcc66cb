// Files on this host. What works on stores too asks them first.
#include "base/files/files.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>

#include <fcntl.h>
#include <sys/stat.h>

namespace lockstep::files {

namespace {

/// Throws an Error with the path.
[[noreturn]] void fail(ExitCode code, const std::filesystem::path& path, const std::string& what) {
  throw Error(code, "files", path.string() + ": " + what);
}

/// Throws the Error of a failed call; errno decides its code.
[[noreturn]] void fail_errno(const std::filesystem::path& path, const std::string& call) {
  const int number = errno;
  const bool cannot_create =
      number == EACCES || number == EROFS || number == ENOTDIR || number == EEXIST;
  fail(number == ENOENT ? ExitCode::kInputMissing
       : cannot_create  ? ExitCode::kCannotCreate
                        : ExitCode::kIo,
       path, call + ": " + std::strerror(number));
}

/// Returns the message for a missing file. It shows the working folder, since a relative path often
/// fails because of that.
std::string missing(const std::filesystem::path& path) {
  std::error_code ignored;
  const std::string here = std::filesystem::current_path(ignored).string();
  return "no such file" + (path.is_absolute() ? "" : " in " + here) + "; correct the path";
}

/// Throws the error for a failed open. The path is at fault, unless the disk has failed.
[[noreturn]] void fail_to_open(const std::filesystem::path& path) {
  const int number = errno;
  const std::string reason = std::strerror(number);
  if (number == EACCES || number == EPERM)
    throw NoPermission(ExitCode::kInputMissing, "files",
                       path.string() + ": cannot be read (" + reason +
                           "); give this user the right to read it and to enter its folders, on " +
                           "every host");
  if (number == ENOENT) fail(ExitCode::kInputMissing, path, missing(path));
  if (number == ENOTDIR || number == ELOOP || number == ENAMETOOLONG)
    fail(ExitCode::kInputMissing, path, "open: " + reason);
  errno = number;
  fail_errno(path, "open");
}

}  // namespace

FileFacts facts_of(const std::filesystem::path& path) {
  const std::string name = path.string();
  if (FileStore* const store = store_of(path)) {
    const std::optional<FileFacts> facts = store->look_at(name);
    if (!facts) throw Error(ExitCode::kInputMissing, "files", name + ": no such file");
    return *facts;
  }
  std::error_code fault;
  const auto num_bytes = std::filesystem::file_size(path, fault);
  if (fault) throw Error(ExitCode::kInputMissing, "files", name + ": " + fault.message());
  return {name, static_cast<int64_t>(num_bytes), ""};
}

Writer::Writer(const std::filesystem::path& path, Start start)
    : path_(path),
      descriptor_(::open(
          path.c_str(),
          O_WRONLY | O_CREAT | O_CLOEXEC | (start == Start::kEmpty ? O_TRUNC : O_APPEND), 0644)) {
  if (descriptor_.get() >= 0) return;
  // A full or failing disk is not a wrong path.
  if (errno == ENOSPC || errno == EIO) fail_errno(path, "create");
  if (errno == ENOENT)
    fail(ExitCode::kCannotCreate, path.parent_path(),
         "no such folder to write to; create it, or name another");
  fail(ExitCode::kCannotCreate, path, std::string("create: ") + std::strerror(errno));
}

void Writer::append(std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t done = ::write(descriptor_.get(), bytes.data(), bytes.size());
    if (done < 0 && errno == EINTR) continue;
    if (done < 0) fail_errno(path_, "write");
    num_bytes_ += done;
    bytes.remove_prefix(static_cast<size_t>(done));
  }
}

void Writer::sync() {
  if (::fsync(descriptor_.get()) != 0) fail_errno(path_, "fsync");
}

void Writer::close() {
  if (::close(descriptor_.release()) != 0) fail_errno(path_, "close");
}

Reader::Reader(const std::filesystem::path& path) : path_(path) {
  if (FileStore* const store = store_of(path)) {
    remote_ = store->open(path.string());
    num_bytes_ = remote_->num_bytes();
  } else {
    open();
  }
}

void Reader::open() {
  // O_NONBLOCK: opening a pipe without a writer must not block; it is refused below.
  descriptor_ = Descriptor(::open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (descriptor_.get() < 0) fail_to_open(path_);
  struct stat facts {};
  if (::fstat(descriptor_.get(), &facts) != 0) fail_errno(path_, "fstat");
  if (!S_ISREG(facts.st_mode))
    fail(ExitCode::kInputMissing, path_,
         S_ISDIR(facts.st_mode) ? "is a folder, not a file"
                                : "is not a regular file; write its content to a file first");
  num_bytes_ = facts.st_size;
}

void Reader::read_at(int64_t offset, std::span<char> bytes) const {
  // A store would return fewer bytes at the end of a file.
  if (remote_ != nullptr) {
    if (offset + static_cast<int64_t>(bytes.size()) > num_bytes_)
      fail(ExitCode::kIo, path_,
           "ends at byte " + std::to_string(num_bytes_) + ", before what was asked for");
    remote_->read_at(offset, bytes);
    return;
  }
  while (!bytes.empty()) {
    const ssize_t count = ::pread(descriptor_.get(), bytes.data(), bytes.size(), offset);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) fail_errno(path_, "read");
    if (count == 0)
      fail(ExitCode::kIo, path_,
           "ends at byte " + std::to_string(offset) + ", before what was asked for");
    bytes = bytes.subspan(static_cast<size_t>(count));
    offset += count;
  }
}

std::string read(const std::filesystem::path& path, int64_t max_bytes) {
  const Reader reader(path);
  if (reader.num_bytes() > max_bytes)
    fail(ExitCode::kIo, path,
         "has " + std::to_string(reader.num_bytes()) + " bytes, at most " +
             std::to_string(max_bytes) + " are read");
  std::string bytes(static_cast<size_t>(reader.num_bytes()), '\0');
  reader.read_at(0, bytes);
  return bytes;
}

std::optional<std::string> read_now(const std::filesystem::path& path, int64_t max_bytes) {
  if (is_remote(path)) {
    auto now = writable_store_of(path).read_now(path.string());
    return now ? std::optional(std::move(now->bytes)) : std::nullopt;
  }
  std::error_code fault;
  // A fault counts as "exists"; opening the file then reports it.
  if (!std::filesystem::exists(path, fault) && !fault) return std::nullopt;
  return read(path, max_bytes);
}

// In the same folder, since a rename cannot cross file systems.
WholeFile::WholeFile(std::filesystem::path path, std::string_view suffix)
    : path_(std::move(path)), part_(path_.string().append(suffix)) {
  writer_.emplace(part_);
}

WholeFile::~WholeFile() {
  if (writer_) ::unlink(part_.c_str());
}

void WholeFile::publish(bool durably) {
  // Sync before the rename: otherwise a power failure could leave an empty file with the final
  // name.
  if (durably) writer_->sync();
  writer_->close();
  rename_file(part_, path_);
  writer_.reset();
  // The rename is durable only after the folder's sync.
  if (durably) sync_folder(path_.parent_path());
}

void write_atomically(const std::filesystem::path& path, std::string_view text) {
  if (is_remote(path)) {
    (void)writable_store_of(path).put(path.string(), text);
    return;
  }
  WholeFile file(path);
  file.append(text);
  file.publish(true);
}

void rename_file(const std::filesystem::path& from, const std::filesystem::path& to) {
  if (::rename(from.c_str(), to.c_str()) != 0) fail_errno(to, "rename from " + from.string());
}

void sync_folder(const std::filesystem::path& folder) {
  if (is_remote(folder)) return;  // a store has answered only once a file was durable
  const std::filesystem::path opened = folder.empty() ? "." : folder;
  const Descriptor file(::open(opened.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (file.get() < 0) fail_errno(opened, "open");
  // EINVAL and ENOTSUP: the file system cannot sync folders.
  if (::fsync(file.get()) != 0 && errno != EINVAL && errno != ENOTSUP) fail_errno(folder, "fsync");
}

void make_folders(const std::filesystem::path& folder) {
  std::error_code ignored, fault;
  std::vector<std::filesystem::path> parents;  // of the folders to create, the deepest first
  // Finds the missing folders first, because their parents must be synced afterwards.
  for (std::filesystem::path at = folder; !at.empty() && !std::filesystem::exists(at, ignored);
       at = at.parent_path()) {
    if (at.has_filename()) parents.push_back(at.parent_path());
    if (at == at.parent_path()) break;
  }
  std::filesystem::create_directories(folder, fault);
  if (fault)
    fail(ExitCode::kCannotCreate, folder,
         "cannot create the folder: " + fault.message() + "; name another place");
  for (const std::filesystem::path& parent : parents)  // an unreadable one cannot be synced
    if (::access(parent.empty() ? "." : parent.c_str(), R_OK) == 0) sync_folder(parent);
}

void remove_file(const std::filesystem::path& path) {
  if (is_remote(path)) return writable_store_of(path).remove(path.string());
  if (::unlink(path.c_str()) != 0 && errno != ENOENT) fail_errno(path, "unlink");
}

/// Returns the beginning of the paths of a store's files in the folder.
static std::string beginning_of(const std::filesystem::path& folder) {
  return folder.string() + (folder.string().ends_with('/') ? "" : "/");
}

std::vector<std::string> list(const std::filesystem::path& folder) {
  std::error_code fault;
  std::vector<std::string> names;
  if (FileStore* const store = store_of(folder)) {
    const std::string beginning = beginning_of(folder);
    for (const FileFacts& facts : store->list(beginning))
      if (const std::string name = facts.path.substr(beginning.size());
          name.find('/') == std::string::npos)
        names.push_back(name);
    return names;
  }
  for (std::filesystem::directory_iterator entry(folder, fault), end; !fault && entry != end;
       entry.increment(fault))
    names.push_back(entry->path().filename().string());
  if (fault && fault != std::errc::no_such_file_or_directory && fault != std::errc::not_a_directory)
    fail(ExitCode::kIo, folder, "cannot be listed: " + fault.message());
  std::sort(names.begin(), names.end());
  return names;
}

bool exists(const std::filesystem::path& path) {
  std::error_code ignored;
  if (FileStore* const store = store_of(path)) try {
      return store->look_at(path.string()).has_value() || is_folder(path);
    } catch (const Error&) {
      return false;
    }
  return std::filesystem::exists(path, ignored);
}

bool is_folder(const std::filesystem::path& path) {
  std::error_code ignored;
  if (FileStore* const store = store_of(path)) return !store->list(beginning_of(path)).empty();
  return std::filesystem::is_directory(path, ignored);
}

bool is_file(const std::filesystem::path& path) {
  std::error_code ignored;
  return std::filesystem::is_regular_file(path, ignored);
}

std::optional<std::filesystem::file_time_type> written_at(const std::filesystem::path& path) {
  std::error_code fault;
  if (is_remote(path)) {
    FileStore* const store = store_of(path);
    const std::optional<FileFacts> facts = store->look_at(path.string());
    if (!facts || facts->written_s == 0) return std::nullopt;
    const std::chrono::sys_seconds time{std::chrono::seconds(facts->written_s)};
    return std::chrono::file_clock::from_sys(time);
  }
  const auto written = std::filesystem::last_write_time(path, fault);
  return fault ? std::nullopt : std::optional(written);
}

void require_writable(const std::filesystem::path& folder) {
  // A probe file is the only reliable test: permissions alone do not show quotas or read-only
  // mounts.
  make_folders(folder);
  const std::filesystem::path probe = folder / (".probe-" + std::to_string(::getpid()));
  Writer(probe).close();
  remove_file(probe);
}

}  // namespace lockstep::files
