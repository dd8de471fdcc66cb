#include "checkpoint/files/save_files.h"

#include <fmt/format.h>
#include <google/protobuf/io/tokenizer.h>
#include <google/protobuf/text_format.h>

#include "base/error.h"
#include "base/files/files.h"
#include "checkpoint/proto/state_file.pb.h"

namespace lockstep::checkpoint {
namespace {

constexpr int64_t kMaxStateBytes = int64_t{16} << 20;

/// Keeps the first complaint of the parser instead of printing it.
class FirstFault final : public google::protobuf::io::ErrorCollector {
 public:
  void AddError(int line, google::protobuf::io::ColumnNumber column,
                const std::string& message) override {
    if (text.empty()) text = fmt::format("line {}, column {}: {}", line + 1, column + 1, message);
  }
  std::string text;
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

std::optional<StateFile> read_state_file(const std::filesystem::path& dir) {
  const std::filesystem::path path = dir / kStateFile;
  if (!std::filesystem::exists(path)) return std::nullopt;
  google::protobuf::TextFormat::Parser parser;
  FirstFault fault;
  parser.RecordErrorsTo(&fault);
  pb::CheckpointState proto;
  if (!parser.ParseFromString(files::read(path, kMaxStateBytes), &proto))
    throw Error(ExitCode::kBadData, "checkpoint",
                fmt::format("{}: {}; remove it, the saves beside it are found without it",
                            path.string(), fault.text));
  StateFile state;
  state.newest = proto.model_checkpoint_path();
  state.all.assign(proto.all_model_checkpoint_paths().begin(),
                   proto.all_model_checkpoint_paths().end());
  return state;
}

}  // namespace lockstep::checkpoint
