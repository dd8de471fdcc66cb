#include "daemon/run/run_memory.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/from_blob.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/error.h"
#include "base/log.h"
#include "base/text.h"
#include "checkpoint/format/checkpoint_files.h"
#include "daemon/config/checkpoint_metadata.h"
#include "train/step/training_pass.h"

// The ranks of the new world differ in what they know: survivors have the state, and may be one
// step apart; processes that were spares have nothing. The first rank with the newest state is the
// root, and gives everything to all.
namespace lockstep::daemon {

RunMemory remember(TrainingContext& context) {
  RunMemory memory{.step = context.clock.step};
  for (const StateEntry& entry : context.state()) {
    memory.texts.push_back(entry.text != nullptr ? *entry.text : "");
    memory.state.push_back(
        {.key = entry.key,
         .tensor = entry.tensor.defined() ? entry.tensor.detach().clone() : at::Tensor()});
  }
  return memory;
}

/// Sends a rank's text to all others.
static std::string text_from(int root, std::string text, dist::Communicator& control) {
  int64_t num_bytes = static_cast<int64_t>(text.size());
  const at::Tensor size = view_of(&num_bytes);
  control.broadcast(size, root);
  text.resize(static_cast<size_t>(num_bytes));
  if (num_bytes > 0) control.broadcast(at::from_blob(text.data(), {num_bytes}, at::kByte), root);
  return text;
}

/// Returns the first rank with the newest state.
static int root_of(const RunMemory& memory, dist::Communicator& control) {
  const int64_t newest = dist::max_of(control, memory.step);
  if (newest < 0)
    throw Error(ExitCode::kUnavailable, "resume",
                "all ranks with the run's state are lost; it continues from its last checkpoint")
        .everywhere();
  return static_cast<int>(
      dist::min_of(control, memory.step == newest ? control.rank() : control.world_size()));
}

std::string config_text_of(const RunMemory& memory, dist::Communicator& control) {
  return text_from(root_of(memory, control), memory.config_text, control);
}

/// Returns the requests that rank 0 knew, or if its process is lost, what the others know.
static OpenRequests requests_of(const RunMemory& memory, int root, dist::Communicator& control) {
  const auto first = static_cast<int>(
      dist::min_of(control, memory.was_root ? control.rank() : control.world_size()));
  const bool counts = first == control.world_size() || first == control.rank();
  std::string lines;
  for (const Change& change : memory.requests.changes)
    lines += change.key + "=" + change.value + "\n";
  OpenRequests requests{.stop = dist::any_of(control, counts && memory.requests.stop),
                        .pause = dist::any_of(control, counts && memory.requests.pause)};
  const int teller = first == control.world_size() ? root : first;
  for (const std::string& line : split(text_from(teller, lines, control))) {
    const size_t mark = line.find('=');
    requests.changes.push_back({line.substr(0, mark), line.substr(mark + 1)});
  }
  return requests;
}

/// Returns the seconds since the first notice of a loss.
static double duration_s(const RunMemory& memory, dist::Communicator& control) {
  const std::chrono::duration<double, std::milli> here =
      memory.step < 0 ? std::chrono::duration<double, std::milli>(0)
                      : std::chrono::steady_clock::now() - memory.lost_at;
  return static_cast<double>(dist::max_of(control, static_cast<int64_t>(here.count()))) / 1000;
}

Resumed resume_from(const RunMemory& memory, TrainingContext& context) {
  dist::Communicator& control = context.control;
  const int root = root_of(memory, control);
  const CheckpointMetadata now = context.facts;
  const at::NoGradGuard no_grad;
  const StateList state = context.state();
  const bool is_root = control.rank() == root;
  for (size_t i = 0; i < state.size(); ++i) {
    const StateEntry& entry = state[i];
    if (entry.text != nullptr)
      *entry.text = text_from(root, is_root ? memory.texts.at(i) : "", control);
    if (!entry.tensor.defined() || entry.tensor.numel() == 0) continue;
    if (is_root) entry.tensor.copy_(memory.state.at(i).tensor);
    const at::Tensor whole = entry.tensor.contiguous();  // usually the same tensor
    control.broadcast(
        at::from_blob(whole.data_ptr(), {static_cast<int64_t>(whole.nbytes())}, at::kByte), root);
    if (!whole.is_same(entry.tensor)) entry.tensor.copy_(whole);
  }
  const CheckpointMetadata before = std::exchange(context.facts, now);
  // Recipe and data were read again.
  require_compatible(before, now);
  const std::vector<std::string> changes =
      recal::timeline_changes(before.timeline, now.timeline, context.clock.step);
  if (!changes.empty())
    throw Error(ExitCode::kConfig, "resume",
                fmt::format("the recipe's timeline has changed on disk since the run began:\n  {}\n"
                            "set the recipe back and start the run again, which resumes it",
                            fmt::join(changes, "\n  ")))
        .everywhere();
  context.recipe.restored(control);
  const std::string last_commit = text_from(root, memory.last_commit, control);
  if (control.rank() == 0)
    log::info("resume", fmt::format("continuing from step {} in the memory of rank {}",
                                    context.clock.step, root));
  Resumed resumed{
      .step = context.clock.step,
      .prefix = last_commit,
      .is_own = last_commit == checkpoint::numbered(context.save_prefix(), context.clock.step),
      .duration_s = duration_s(memory, control),
      .is_from_memory = true,
      .requests = requests_of(memory, root, control)};
  int64_t has_line = memory.last_line ? 1 : 0;
  control.broadcast(view_of(&has_line), root);
  if (has_line == 0) return resumed;
  resumed.last_line = memory.last_line.value_or(train::StepLine());
  control.broadcast(at::from_blob(&*resumed.last_line, {sizeof(train::StepLine)}, at::kByte), root);
  return resumed;
}

}  // namespace lockstep::daemon
