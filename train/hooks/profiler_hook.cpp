// A traced step: before_step() starts the profiler, after_step() stops it, and the next
// before_step() or end() merges and writes. Every rank calls the collectives, traced or not.
#include "train/hooks/profiler_hook.h"

#include <algorithm>
#include <chrono>
#include <fstream>
#include <map>

#include <ATen/ops/full.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/profiler_kineto.h>
#include <unistd.h>

#include "base/error.h"
#include "base/files/files.h"
#include "base/files/project.h"
#include "base/log.h"
#include "dist/agree.h"

namespace lockstep::train {
namespace {

namespace kineto = torch::autograd::profiler;
namespace profiler = torch::profiler::impl;

double now_s() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

std::set<profiler::ActivityType> activities(at::Device device) {
  if (!device.is_cuda()) return {profiler::ActivityType::CPU};
  return {profiler::ActivityType::CPU, profiler::ActivityType::CUDA};
}

/// Returns the names of this process' threads, as the system's tools show them.
std::map<int64_t, std::string> names_of_threads() {
  std::map<int64_t, std::string> names;
  std::error_code fault;
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task", fault)) {
    std::ifstream file(task.path() / "comm");
    const int64_t thread = std::stoll(task.path().filename().string());
    std::getline(file, names[thread]);
    if (thread == ::getpid()) names[thread] = "main";
  }
  return names;
}

}  // namespace

ProfilerHook::ProfilerHook(const ProfileOptions& options, dist::Communicator& control,
                           std::string node, at::Device device)
    : options_(options), control_(control), node_(std::move(node)), device_(device) {
  for (const int64_t rank : options.ranks)
    if (rank >= control.world_size())
      throw Error(ExitCode::kConfig, "trace",
                  fmt::format("trainer.run_config.profile_hook_config.ranks names rank {}, and the "
                              "world has {} rank(s)",
                              rank, control.world_size()))
          .everywhere();
  ::setenv("KINETO_LOG_LEVEL", "5", /*overwrite=*/0);  // otherwise it reports missing GPUs
}

void ProfilerHook::begin(const LoopStart& start) {
  folder_ = start.run.project_dir;
  last_s_ = now_s();
}

/// True if the step is traced; the same on all ranks.
bool ProfilerHook::is_due(int64_t step) {
  if (options_.save_steps) return (step + 1) % *options_.save_steps == 0;
  at::Tensor is_time_1 =
      at::full({1}, now_s() - *last_s_ >= *options_.save_secs ? 1 : 0, at::kLong);
  control_.broadcast(is_time_1, 0);
  return is_time_1.item<int64_t>() != 0;
}

bool ProfilerHook::is_traced_here() const {
  return options_.ranks.empty() ||
         std::count(options_.ranks.begin(), options_.ranks.end(), control_.rank()) > 0;
}

void ProfilerHook::before_step(int64_t step) {
  write_pending();
  is_under_way_ = is_due(step);
  if (is_under_way_ && is_traced_here()) start();
}

void ProfilerHook::start() const {
  const profiler::ProfilerConfig config(profiler::ProfilerState::KINETO,
                                        /*report_input_shapes=*/false, options_.show_memory);
  kineto::prepareProfiler(config, activities(device_));
  kineto::enableProfiler(config, activities(device_));
  // Lockstep's spans continue after the step; own_events() stops them.
  trace::start();
}

std::string ProfilerHook::stop_operators() const {
  const std::unique_ptr<kineto::ProfilerResult> result = kineto::disableProfiler();
  // LibTorch can save its trace only into a file.
  const std::filesystem::path file =
      std::filesystem::temp_directory_path() /
      fmt::format("lockstep-timeline-{}-{}.json", ::getpid(), control_.rank());
  result->save(file.string());
  std::string text = files::read(file);
  files::remove_file(file);
  return text;
}

void ProfilerHook::after_step(const IterationEnd& end) {
  if (!is_under_way_) return;
  is_under_way_ = false;
  // On every rank, traced or not: write_pending() is collective.
  pending_ = {.step = end.step, .operators_json = ""};
  if (is_traced_here()) try {
      pending_->operators_json = stop_operators();
    } catch (const std::exception& fault) {  // of files, or of LibTorch's profiler
      log::warning("trace", fmt::format("step {}: {}", end.step, fault.what()));
    }
  last_s_ = now_s();
}

/// Returns this rank's events; empty if this rank is not traced.
std::string ProfilerHook::own_events() {
  if (!is_traced_here()) return "";
  try {
    return rank_events({.operators_json = std::move(pending_->operators_json),
                        .spans = trace::stop(),
                        .thread_names = names_of_threads()},
                       {.rank = control_.rank(),
                        .node = node_,
                        .show_dataflow = options_.show_dataflow,
                        .show_memory = options_.show_memory});
  } catch (const std::exception& fault) {  // LibTorch's JSON may be invalid
    log::warning("trace", fmt::format("step {}: {}", pending_->step, fault.what()));
    return "";
  }
}

void ProfilerHook::write_pending() {
  if (!pending_) return;
  const int64_t step = pending_->step;
  // Collective: every rank calls it, traced or not.
  const std::vector<std::string> all = dist::gather_texts(control_, own_events());
  pending_.reset();
  if (control_.rank() != 0) return;
  const std::filesystem::path path = Project(folder_).timeline(step);
  try {
    files::write_atomically(path, merged_timeline(all));
    log::info("trace", fmt::format("step {}: {}", step, path.string()));
  } catch (const Error& fault) {
    log::warning("trace", fmt::format("step {}: {}", step, fault.what()));
  }
}

}  // namespace lockstep::train
