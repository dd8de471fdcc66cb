#pragma once

#include <string>
#include <vector>

#include "daemon/tool/tensor_commands.h"

namespace CLI {
class App;
}

namespace lockstep::daemon {

/// Sub-commands of `lockstep ckpt`: they show, tidy and export checkpoints.
class CheckpointCommands {
 public:
  /// Parsing stores the requested command in `command`. Call it while this object lives.
  CheckpointCommands(const TensorCommands& tensors, Command* command)
      : tensors_(tensors), command_(*command) {}
  CheckpointCommands(const CheckpointCommands&) = delete;
  CheckpointCommands& operator=(const CheckpointCommands&) = delete;

  /// Adds the commands. Call it once; the object must outlive the parsing.
  void add_to(CLI::App* app);

 private:
  CLI::App* add_inspect(CLI::App* parent, const char* name, const char* help, InspectSave inspect);
  void add_diff(CLI::App* parent);
  void add_export(CLI::App* parent);
  void add_collect(CLI::App* parent);

  const TensorCommands& tensors_;
  Command& command_;
  std::string where_, second_where_;  ///< folders of checkpoints, or prefixes
  std::vector<std::string> sets_;
  std::string export_format_ = "safetensors";
  checkpoint::InspectOptions inspect_;
  checkpoint::DiffOptions diff_;
  checkpoint::GcOptions collect_;
  ExportOptions export_;
};

}  // namespace lockstep::daemon
