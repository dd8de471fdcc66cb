#pragma once

#include <functional>
#include <string>
#include <vector>

#include "checkpoint/inspect/diff.h"
#include "checkpoint/inspect/gc.h"
#include "checkpoint/inspect/inspect.h"
#include "daemon/config/command_result.h"
#include "daemon/exports/export.h"

namespace CLI {
class App;
}

namespace lockstep::daemon {

using Command = std::function<CommandResult()>;

/// The commands below `lockstep ckpt`: they look at saves, tidy and export them.
class CheckpointCommands {
 public:
  /// Parsing puts the command that was asked for into `command`, to be called while this lives.
  explicit CheckpointCommands(Command* command) : command_(*command) {}
  CheckpointCommands(const CheckpointCommands&) = delete;
  CheckpointCommands& operator=(const CheckpointCommands&) = delete;

  /// Call once; this outlives the parsing.
  void add_to(CLI::App* app);

 private:
  using Inspect = checkpoint::Answer (*)(const std::string&, const checkpoint::InspectOptions&);

  CLI::App* add_inspect(CLI::App* parent, const char* name, const char* help,
                        Inspect inspect_command);
  void add_diff(CLI::App* parent);
  void add_export(CLI::App* parent);
  void add_collect(CLI::App* parent);

  Command& command_;
  std::string where_, second_where_;  ///< folders of saves, or prefixes
  std::vector<std::string> sets_;
  std::string export_format_ = "safetensors";
  checkpoint::InspectOptions inspect_;
  checkpoint::DiffOptions diff_;
  checkpoint::GcOptions collect_;
  ExportOptions export_;
};

}  // namespace lockstep::daemon
