#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/files/project.h"
#include "base/tensors/name_scopes.h"
#include "base/yaml/config_reader.h"
#include "dist/communicator.h"

namespace re2 {
class RE2;
}

/// Section `checkpoint` of the run file: saves, warm start and rules for names; schedule of saves.
namespace lockstep::checkpoint {

/// Rules that map the variable names of another program's file to the names used here.
///
/// Each rule has `from` and `to`. `from` is a name, or a prefix of names, with dots or slashes. It
/// may also be `re:PATTERN` (RE2), which matches from the start of the name as the file has it. The
/// matched part is replaced by `to`. In `to`, \1 is the first group of the pattern. The first
/// matching rule counts. A leading `model` of a name is ignored (plain_name()), except by a rule
/// whose `from` is exactly `model`.
class RenameRules {
 public:
  struct Renamed {
    size_t rule = 0;   ///< index of the rule that matched
    std::string name;  ///< new name in the form of plain_name()
  };

  /// Reads a list of {from, to}, or a map of from: to. In a map the longest `from` has priority. An
  /// invalid rule becomes a fault.
  static RenameRules read(ConfigReader* in, std::string_view key, std::string_view help);

  bool empty() const { return rules_.empty(); }
  size_t size() const { return rules_.size(); }
  const std::string& from(size_t rule) const { return rules_.at(rule).from; }
  /// Returns the name used here for a name of the file; nullopt if no rule matches.
  std::optional<Renamed> apply(const std::string& name) const;

 private:
  struct Rule {
    std::string from, to;
    std::shared_ptr<const re2::RE2> pattern;  // null: `from` is a name
    bool is_model_alone = false;              // `from` is exactly "model"
  };
  static Rule make_rule(const std::string& from, const std::string& to, std::string* fault);
  static std::optional<std::string> renamed_by(const Rule& rule, const std::string& name);

  std::vector<Rule> rules_;
};

/// Keys of section `checkpoint` of the run file for the initial weights of a new run.
struct WarmStartOptions {
  /// Path for open_weights(), or a folder, which means its newest checkpoint. Empty: no warm start.
  std::string warm_start_ckpt;
  NameScopes checkpoint_restore_scopes;  ///< empty: all variables of the model
  NameScopes checkpoint_exclude_scopes;  ///< variables to exclude from the above
  /// Dimension order of the weights of linear layers and convolutions in the file. `lockstep`: [O,
  /// I] and [O, I, H, W]. `tensorflow`: [I, O] and [H, W, I, O]. `auto`: as the file indicates.
  std::string warm_start_kernels = "auto";
  RenameRules warm_start_rename;  ///< names in the file -> names here
};

WarmStartOptions read_warm_start_options(ConfigReader* in);

/// Section `checkpoint` of the run file. At most one of the two intervals is given.
struct CheckpointOptions {
  std::string prefix = "model.ckpt";  ///< file name of checkpoints
  /// Folder of them in an object store, s3://bucket/folder; empty: the run's own.
  std::string store_folder;
  std::optional<int64_t> save_checkpoints_steps;  ///< optimizer updates between two checkpoints
  std::optional<int64_t> save_checkpoints_secs;   ///< seconds between them, by rank 0's clock
  int64_t keep_checkpoint_max = 5;                ///< newest checkpoints to keep; -1 keeps all
  bool save_at_end = true;
  bool enabled = true;             ///< false (`checkpoint: off`): nothing is saved or restored
  int64_t keep_every = 0;          ///< multiples of this step are never removed; 0: none
  std::string keep_best = "none";  ///< none | eval.accuracy | eval.loss: the best checkpoint stays
  std::vector<std::string> include = {"model", "optimizer", "modifiers", "clock", "random"};
  bool sparse = false;              ///< store only the kept elements of pruned tensors
  std::string wait_for = "update";  ///< update | staging | commit: how long training waits
  double timeout_s = 1800;    ///< longest wait of a rank for the others inside a save, in seconds
  bool copy_on_hosts = true;  ///< in an object store: each host keeps a copy of the newest one

  WarmStartOptions warm_start;

  bool includes(std::string_view part) const;
  /// Returns the folder of the run's checkpoints.
  std::filesystem::path folder(const Project& project) const;
  /// Returns the folder of each host for copies of the store's newest checkpoint; empty: none.
  std::filesystem::path copies_folder(const Project& project) const;

  /// Default interval in seconds, used if neither interval is given.
  static constexpr int64_t kDefaultSecs = 600;
};

/// Reads the section and records faults in the reader's list.
CheckpointOptions read_checkpoint_options(ConfigReader in);

/// Decides when to save. An interval in steps depends on the step only. An interval in seconds uses
/// rank 0's clock.
class SaveSchedule {
 public:
  /// Function that returns the seconds of a monotonic clock.
  using Clock = std::function<double()>;
  static double steady_seconds();

  /// Starts the first interval now. If checkpoints are off, due_here() is always false. `control`
  /// must outlive the schedule.
  SaveSchedule(const CheckpointOptions& options, dist::Communicator& control,
               Clock clock_s = steady_seconds);

  /// True if this rank requests a save after `step` updates. With steps, every rank requests it.
  /// With seconds, only rank 0 does. The caller then sends rank 0's request to the others with the
  /// step's votes.
  bool due_here(int64_t step) const;

  /// Switches to an interval in steps, which must be equal on all ranks.
  void set_every_steps(int64_t every_steps) { every_steps_ = every_steps; }

  /// Starts the next interval. Call it after each save, successful or failed.
  void saved() { last_s_ = clock_s_(); }

 private:
  bool enabled_ = true;
  int64_t every_steps_ = 0;  // 0: by seconds
  double every_s_ = 0;
  dist::Communicator& control_;
  Clock clock_s_;
  double last_s_ = 0;
};

}  // namespace lockstep::checkpoint
