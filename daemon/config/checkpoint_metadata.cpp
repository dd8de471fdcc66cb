#include "daemon/config/checkpoint_metadata.h"

#include <map>
#include <string_view>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/error.h"
#include "base/text.h"
#include "daemon/config/renamed_keys.h"

// Comparison of a checkpoint's facts with the run that resumes, and settings as text. A resumed run
// continues in the middle of an epoch. So settings that decide which samples a step gets must not
// change; others may, and the log lists them.
namespace lockstep::daemon {
namespace {

/// Parses "path=value" lines, with renamed keys under their present names.
std::map<std::string, std::string> parse_settings(const std::string& text) {
  std::map<std::string, std::string> settings;
  for (std::string line : split(text)) {
    line = with_new_names(line);
    const size_t mark = line.find('=');
    if (mark != std::string::npos) settings[line.substr(0, mark)] = line.substr(mark + 1);
  }
  return settings;
}

/// False for settings without influence on training: folders, monitoring, limits.
bool concerns_training(const std::string& key) {
  if (key == "summary.x_axis") return true;  // otherwise the curves would mix points of both units
  for (const char* section :
       {"run.project_dir", "run.name", "preemption.", "control.", "watchdog.", "run.expect", "gpu.",
        "metrics.", "summary.", "eval.", "export.", "recipe"})
    if (key.rfind(section, 0) == 0) return false;
  return true;
}

}  // namespace

StateList CheckpointMetadata::state(const checkpoint::CheckpointOptions& saved) {
  StateList all{
      {"_lockstep/sampler/global_batch_size", view_of(&global_batch_size)},
      {"_lockstep/sampler/steps_per_epoch", view_of(&steps_per_epoch)},
      {"_lockstep/sampler/shuffle", view_of(&shuffle)},
      {"_lockstep/sampler/data_sha256", {}, &data_sha256},
      // value_if_missing: checkpoints of earlier versions do not have these entries.
      {.key = "_lockstep/data/num_classes", .tensor = view_of(&num_classes), .value_if_missing = 0},
      {.key = "_lockstep/data/input_shape", .text = &input_shape, .value_if_missing = 0},
      {"_lockstep/timeline", {}, &timeline},
      {"_lockstep/settings", {}, &settings}};
  if (!class_names.empty())
    all.push_back(
        {.key = "_lockstep/data/class_names", .text = &class_names, .value_if_missing = 0});
  if (!teacher_sha256.empty())
    all.push_back(
        {.key = "_lockstep/teacher_sha256", .text = &teacher_sha256, .value_if_missing = 0});
  if (saved.includes("random")) all.push_back({"_lockstep/random/seed", view_of(&seed)});
  return all;
}

std::string text_of_classes(const std::vector<std::string>& names) {
  return fmt::format("{}", fmt::join(names, "/"));
}

std::vector<std::string> classes_of_text(const std::string& text) { return split(text, '/'); }

void require_compatible(const CheckpointMetadata& saved, const CheckpointMetadata& now) {
  std::string faults;
  const auto compare = [&](const std::string& key, const auto& before, const auto& after,
                           const std::string& means) {
    if (before != after)
      faults += fmt::format("\n  {} was {} and is now {}: {}", key, before, after, means);
  };
  compare("run.seed", saved.seed, now.seed, "the sample order would change within an epoch");
  compare("data.shuffle", saved.shuffle, now.shuffle,
          "the sample order would change within an epoch");
  compare("the global batch", saved.global_batch_size, now.global_batch_size,
          "steps and epochs would no longer mean the same (with data.batch_size_per_rank, keep the "
          "world size)");
  compare("the steps of an epoch", saved.steps_per_epoch, now.steps_per_epoch,
          "every schedule would shift");
  compare("the training data's sha256", saved.data_sha256, now.data_sha256,
          "the data changed since the checkpoint");
  // A checkpoint from before distillation names no teacher; its recipe differs, too.
  if (!saved.teacher_sha256.empty())
    compare("the teacher's sha256", saved.teacher_sha256, now.teacher_sha256,
            "its weights changed since the checkpoint (train.distill_teacher)");
  if (!faults.empty())
    throw Error(ExitCode::kConfig, "resume",
                "this run cannot continue from the checkpoint:" + faults +
                    "\nset the values back, or start from the beginning in another run.project_dir "
                    "(with checkpoints in a store: another folder in checkpoint.prefix)")
        .everywhere();
}

std::vector<std::string> changes_since(const CheckpointMetadata& saved,
                                       const CheckpointMetadata& now) {
  std::vector<std::string> changes;
  const auto before = parse_settings(saved.settings), after = parse_settings(now.settings);
  for (const auto& [key, value] : after) {
    const auto old = before.find(key);
    const std::string was = old == before.end() ? "not set" : old->second;
    if (was != value && concerns_training(key))
      changes.push_back(fmt::format("{} was {}, is {}", key, was, value));
  }
  for (const auto& [key, value] : before)
    if (!after.contains(key) && concerns_training(key))
      changes.push_back(fmt::format("{} was {}, is not set", key, value));
  return changes;
}

// Two forms of the same settings: short lines for terminal and log, and the full list for
// TensorBoard.

namespace {

constexpr size_t kLongestLine = 400;
constexpr size_t kLongestValue = 80;

struct Setting {
  std::string_view section;  ///< empty: a key of the top level
  std::string text;          ///< key=value
};

/// Replaces line breaks by blanks and limits the length.
std::string shown(std::string_view value) {
  std::string text(value.substr(0, kLongestValue));
  std::replace_if(
      text.begin(), text.end(), [](unsigned char c) { return c < 0x20; }, ' ');
  return value.size() > kLongestValue ? text + "..." : text;
}

/// Splits "section.key=value". A key of the top level has no section.
Setting parse(std::string_view setting) {
  const size_t equals = setting.find('=');
  const std::string_view path = setting.substr(0, equals);
  const size_t end = path.find_first_of(".[");
  const bool is_top_level = end == path.npos;
  const std::string_view key = is_top_level ? path : path.substr(end + (path[end] == '.' ? 1 : 0));
  const std::string_view value = equals == setting.npos ? "" : setting.substr(equals + 1);
  return {is_top_level ? "" : path.substr(0, end), fmt::format("{}={}", key, shown(value))};
}

}  // namespace

std::vector<std::string> settings_by_section(const std::vector<std::string>& settings) {
  std::vector<std::string> lines;
  std::string_view section = "\n";  // no section yet
  size_t num_left_out = 0;
  const auto end_line = [&] {
    if (num_left_out > 0) lines.back() += fmt::format(", and {} more", num_left_out);
    num_left_out = 0;
  };
  for (const std::string& one : settings) {
    const Setting setting = parse(one);
    const bool is_first = setting.section != section;
    if (is_first) {
      end_line();
      section = setting.section;
      lines.push_back(section.empty() ? setting.text
                                      : fmt::format("{}: {}", section, setting.text));
    } else if (lines.back().size() + setting.text.size() > kLongestLine) {
      ++num_left_out;
    } else {
      lines.back() += ", " + setting.text;
    }
  }
  end_line();
  return lines;
}

std::string settings_text(const std::vector<std::string>& settings) {
  return fmt::format("```\n{}\n```\n", fmt::join(settings, "\n"));
}

}  // namespace lockstep::daemon
