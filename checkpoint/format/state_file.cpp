// The state file `checkpoint`, in TensorFlow's text format. Readers need no lock, because it is
// replaced by a rename.
#include "checkpoint/format/checkpoint_files.h"

#include <cerrno>
#include <chrono>
#include <thread>

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <fmt/format.h>
#include <google/protobuf/io/tokenizer.h>
#include <google/protobuf/text_format.h>

#include "base/error.h"
#include "base/files/files.h"
#include "base/log.h"
#include "checkpoint/format/rank_faults.h"
#include "checkpoint/proto/state_file.pb.h"

namespace lockstep::checkpoint {
namespace {

constexpr int64_t kMaxStateBytes = int64_t{16} << 20;

/// Error collector that keeps the parser's first message and prints nothing.
class FirstFault final : public google::protobuf::io::ErrorCollector {
 public:
  void AddError(int line, google::protobuf::io::ColumnNumber column,
                const std::string& message) override {
    if (text.empty()) text = fmt::format("line {}, column {}: {}", line + 1, column + 1, message);
  }
  std::string text;
};

/// Exclusive flock on the folder itself, which needs no extra file. Any user who may read the
/// folder can hold one. So after some seconds the work continues without it.
class FolderFlock {
 public:
  explicit FolderFlock(const std::filesystem::path& dir)
      : descriptor_(::open(dir.empty() ? "." : dir.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)) {
    constexpr int kMostTries = 500;
    constexpr std::chrono::milliseconds kPause{10};
    for (int i = 0; i < kMostTries && descriptor_ >= 0; ++i) {
      if (::flock(descriptor_, LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK) return;
      std::this_thread::sleep_for(kPause);
    }
  }
  ~FolderFlock() {
    if (descriptor_ >= 0) ::close(descriptor_);
  }
  FolderFlock(const FolderFlock&) = delete;
  FolderFlock& operator=(const FolderFlock&) = delete;

 private:
  int descriptor_;
};

}  // namespace

void write_state_file(const std::filesystem::path& dir, const StateFile& state) {
  pb::CheckpointState proto;
  proto.set_model_checkpoint_path(state.newest);
  for (const std::string& name : state.all) proto.add_all_model_checkpoint_paths(name);
  std::string text;
  check(google::protobuf::TextFormat::PrintToString(proto, &text), "state file cannot be printed");
  files::write_atomically(dir / kStateFile, text);
}

void change_state_file(const std::filesystem::path& dir,
                       const std::function<StateFile(StateFile)>& change) {
  std::optional<FolderFlock> lock;
  if (!files::is_remote(dir)) lock.emplace(dir);
  StateFile before;
  // An unreadable state file counts as empty: it can be rebuilt from the folder.
  (void)fault_of([&] { before = read_state_file(dir).value_or(StateFile{}); });
  if (const StateFile after = change(before); after != before) write_state_file(dir, after);
}

std::vector<std::string> others_in(const StateFile& state, const std::filesystem::path& prefix) {
  std::vector<std::string> others;
  for (const std::string& name : state.all) {
    const auto parts = parse_save_name(name);
    const bool is_own = parts && parts->prefix == prefix.filename().string();
    // Names in the state file may be absolute or relative to the folder.
    if (!is_own && is_there(index_path((prefix.parent_path() / name).string())))
      others.push_back(name);
  }
  return others;
}

std::optional<StateFile> read_state_file(const std::filesystem::path& dir) {
  const std::filesystem::path path = dir / kStateFile;
  const std::optional<std::string> text = files::read_now(path, kMaxStateBytes);
  if (!text) return std::nullopt;
  google::protobuf::TextFormat::Parser parser;
  FirstFault fault;
  parser.RecordErrorsTo(&fault);
  pb::CheckpointState proto;
  if (!parser.ParseFromString(*text, &proto))
    throw Error(
        ExitCode::kBadData, "checkpoint",
        fmt::format(
            "{}: {}; checkpoints are found without it: remove it once lockstep ckpt ls shows "
            "them",
            path.string(), fault.text));
  StateFile state;
  state.newest = proto.model_checkpoint_path();
  state.all.assign(proto.all_model_checkpoint_paths().begin(),
                   proto.all_model_checkpoint_paths().end());
  return state;
}

std::optional<StateFile> read_state_file_if_sound(const std::filesystem::path& dir) {
  std::optional<StateFile> state;
  if (const auto fault = fault_of([&] { state = read_state_file(dir); }))
    log::warning("checkpoint", plain_text(*fault));
  return state;
}

}  // namespace lockstep::checkpoint
