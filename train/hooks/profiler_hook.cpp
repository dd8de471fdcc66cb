#include "train/hooks/profiler_hook.h"

#include <algorithm>
#include <chrono>

#include <ATen/ops/full.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/profiler_kineto.h>

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

std::set<profiler::ActivityType> activities() { return {profiler::ActivityType::CPU}; }

}  // namespace

ProfilerHook::ProfilerHook(const ProfileOptions& options, dist::Communicator& control,
                           std::string node)
    : options_(options), control_(control), node_(std::move(node)) {
  ::setenv("KINETO_LOG_LEVEL", "5", /*overwrite=*/0);  // else it tells that there is no GPU
}

void ProfilerHook::begin(const LoopStart& start) {
  folder_ = start.run.project_dir;
  last_s_ = now_s();
}

/// The same on all ranks.
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
  is_under_way_ = is_due(step);
  if (is_under_way_ && is_traced_here()) start();
}

void ProfilerHook::start() const {
  const profiler::ProfilerConfig config(profiler::ProfilerState::KINETO,
                                        /*report_input_shapes=*/false, options_.show_memory);
  kineto::prepareProfiler(config, activities());
  kineto::enableProfiler(config, activities());
  trace::start();
}

RankTrace ProfilerHook::stop() const {
  RankTrace trace{.operators_json = "", .spans = trace::stop()};
  const std::unique_ptr<kineto::ProfilerResult> result = kineto::disableProfiler();
  const std::filesystem::path file =
      std::filesystem::temp_directory_path() /
      fmt::format("lockstep-timeline-{}-{}.json", ::getpid(), control_.rank());
  result->save(file.string());
  trace.operators_json = files::read(file);
  files::remove_file(file);
  return trace;
}

void ProfilerHook::after_step(const IterationEnd& end) {
  if (!is_under_way_) return;
  is_under_way_ = false;
  std::string own;
  if (is_traced_here()) try {
      own = rank_events(stop(), {.rank = control_.rank(),
                                 .node = node_,
                                 .show_dataflow = options_.show_dataflow,
                                 .show_memory = options_.show_memory});
    } catch (const std::exception& fault) {  // of files, or of LibTorch's profiler
      log::warning("trace", fmt::format("step {}: {}", end.step, fault.what()));
    }
  const std::vector<std::string> all = dist::gather_texts(control_, own);
  last_s_ = now_s();
  if (control_.rank() != 0) return;
  const std::filesystem::path path = Project(folder_).timeline(end.step);
  try {
    files::write_atomically(path, merged_timeline(all));
    log::info("trace", fmt::format("step {}: {}", end.step, path.string()));
  } catch (const Error& fault) {
    log::warning("trace", fmt::format("step {}: {}", end.step, fault.what()));
  }
}

}  // namespace lockstep::train
