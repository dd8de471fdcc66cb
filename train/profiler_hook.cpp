// Traces of whole steps. Merges Kineto's JSON and Lockstep's spans into one trace. Invalid JSON
// from LibTorch is skipped, since a trace must not end a run.
#include "train/profiler_hook.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <limits>
#include <utility>

#include <ATen/ops/full.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/profiler_kineto.h>
#include <unistd.h>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/files/files.h"
#include "base/files/project.h"
#include "base/json.h"
#include "base/log.h"
#include "checkpoint/checkpoint_options.h"

namespace lockstep::train {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kSpanCategory = "lockstep";
constexpr const char *kEvents = "traceEvents", *kBase = "baseTimeNanoseconds";

Json metadata(const char* name, int rank, int64_t thread, const Json& args) {
  return {{"ph", "M"}, {"name", name}, {"pid", rank}, {"tid", thread}, {"args", args}};
}

bool is_flow(const Json& event) {
  const std::string phase = event.value("ph", "");
  return phase == "s" || phase == "t" || phase == "f";
}

bool is_wanted(const Json& event, const TimelineOptions& options) {
  const std::string phase = event.value("ph", "");
  if (is_flow(event)) return options.show_dataflow;
  if (phase == "i" || phase == "I" || phase == "C")
    return options.show_memory && event.value("name", "") == "[memory]";
  return phase == "X" && event.contains("ts") && event.contains("tid") &&
         event["tid"].is_number() && event.value("cat", "") != "Trace";
}

/// Adds LibTorch's events; their times are relative to a base in the trace.
void add_operators(const std::string& text, const TimelineOptions& options, Json* events) {
  const Json trace = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!trace.is_object() || !trace.contains(kEvents)) return;
  const auto base_ns = trace.value(kBase, int64_t{0});
  for (Json event : trace[kEvents]) {
    if (!is_wanted(event, options)) continue;
    event["pid"] = options.rank;
    // From microseconds after the base to nanoseconds since 1970, like Lockstep's spans.
    event["ts"] = std::llround(event["ts"].get<double>() * 1000) + base_ns;
    events->push_back(std::move(event));
  }
}

double to_us(int64_t ns) { return static_cast<double>(ns) / 1000; }

void add_span(const trace::SpanRecord& span, int rank, Json* events) {
  Json event{{"ph", "X"},
             {"cat", kSpanCategory},
             {"name", span.name},
             {"pid", rank},
             {"tid", span.thread},
             {"ts", span.begin_ns},
             {"dur", to_us(span.end_ns - span.begin_ns)}};
  if (span.detail >= 0) event["args"] = {{"bucket", span.detail}};
  events->push_back(std::move(event));
}

/// Cuts LibTorch's events at the begin or end of Lockstep's spans of the same thread: the clocks
/// differ by some microseconds.
void cut_to_spans(const std::vector<trace::SpanRecord>& spans, Json* events) {
  for (Json& event : *events) {
    if (event.value("ph", "") != "X") continue;
    const auto thread = event["tid"].get<int64_t>();
    auto begin_ns = event["ts"].get<int64_t>();
    int64_t end_ns = begin_ns + std::llround(event.value("dur", 0.0) * 1000);
    for (const trace::SpanRecord& span : spans) {
      if (span.thread != thread) continue;
      if (begin_ns < span.begin_ns && end_ns > span.begin_ns && end_ns < span.end_ns)
        begin_ns = span.begin_ns;
      if (begin_ns > span.begin_ns && begin_ns < span.end_ns && end_ns > span.end_ns)
        end_ns = span.end_ns;
    }
    event["ts"] = begin_ns;
    event["dur"] = to_us(end_ns - begin_ns);
  }
}

bool is_on_gpu(const Json& event) {
  const std::string category = event.value("cat", "");
  return category == "kernel" || category.starts_with("gpu_");
}

/// Returns a name for every thread and stream with an event.
std::map<int64_t, std::string> names_of_threads(const RankTrace& trace, const Json& events) {
  std::map<int64_t, std::string> names;
  for (const trace::SpanRecord& span : trace.spans)
    if (span.thread_name[0] != '\0') names[span.thread] = span.thread_name;
  for (const Json& event : events) {
    if (event.value("ph", "") == "M" || !event.contains("tid")) continue;
    const auto thread = event["tid"].get<int64_t>();
    const auto known = trace.thread_names.find(thread);
    names.try_emplace(thread, is_on_gpu(event) ? fmt::format("GPU stream {}", thread)
                              : known != trace.thread_names.end()
                                  ? known->second
                                  : fmt::format("thread {}", thread));
  }
  return names;
}

}  // namespace

std::string rank_events(const RankTrace& trace, const TimelineOptions& options) {
  Json events = Json::array();
  events.push_back(metadata("process_name", options.rank, 0,
                            {{"name", fmt::format("rank {} ({})", options.rank, options.node)}}));
  events.push_back(metadata("process_sort_index", options.rank, 0, {{"sort_index", options.rank}}));
  if (!trace.operators_json.empty()) add_operators(trace.operators_json, options, &events);
  cut_to_spans(trace.spans, &events);
  for (const trace::SpanRecord& span : trace.spans) add_span(span, options.rank, &events);
  for (const auto& [thread, name] : names_of_threads(trace, events))
    events.push_back(metadata("thread_name", options.rank, thread, {{"name", name}}));
  return json_text(events);
}

std::string merged_timeline(const std::vector<std::string>& rank_events) {
  Json all = Json::array();
  int64_t first_ns = std::numeric_limits<int64_t>::max();
  // Viewers join the ends of an arrow by a number, which must be unique over all ranks.
  std::map<std::pair<size_t, std::string>, int64_t> flow_numbers;
  for (size_t rank = 0; rank < rank_events.size(); ++rank) {
    if (rank_events[rank].empty()) continue;
    for (Json& event : Json::parse(rank_events[rank])) {
      if (is_flow(event) && event.contains("id")) {
        const auto next = static_cast<int64_t>(flow_numbers.size());
        event["id"] = flow_numbers.try_emplace({rank, event["id"].dump()}, next).first->second;
      }
      if (event.contains("ts")) first_ns = std::min(first_ns, event["ts"].get<int64_t>());
      all.push_back(std::move(event));
    }
  }
  for (Json& event : all)
    if (event.contains("ts"))
      event["ts"] = static_cast<double>(event["ts"].get<int64_t>() - first_ns) / 1000;
  // Times from 0 keep full precision as doubles in microseconds.
  const int64_t base_ns = all.empty() ? 0 : first_ns;
  const Json trace{{"displayTimeUnit", "ms"}, {kBase, base_ns}, {kEvents, std::move(all)}};
  return json_text(trace) + "\n";
}

// A traced step: before_step() starts the profiler, after_step() stops it, and the next
// before_step() or end() merges and writes. Every rank calls the collectives, traced or not.

namespace kineto = torch::autograd::profiler;
namespace profiler = torch::profiler::impl;

static double now_s() { return checkpoint::SaveSchedule::steady_seconds(); }

static std::set<profiler::ActivityType> activities(at::Device device) {
  if (!device.is_cuda()) return {profiler::ActivityType::CPU};
  return {profiler::ActivityType::CPU, profiler::ActivityType::CUDA};
}

/// Returns the names of this process' threads, as the system's tools show them.
static std::map<int64_t, std::string> names_of_threads() {
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

// Reader of profile_hook_config, with the key names of TensorFlow's ProfilerHook.

std::optional<ProfileOptions> read_profile_options(ConfigReader* run_config) {
  constexpr const char* kSection = "profile_hook_config";
  const bool is_there = run_config->has(kSection);
  ConfigReader in = run_config->section(kSection);
  ProfileOptions options;
  in.read("save_steps", &options.save_steps, count_from(1),
          "steps between traces timeline-<step>.json");
  in.read("save_secs", &options.save_secs, between(0.001, 1e9),
          "seconds between traces, instead of save_steps");
  in.read("show_memory", &options.show_memory, "trace allocations");
  in.read("show_dataflow", &options.show_dataflow, "trace links from operators to their backward");
  in.read("ranks", &options.ranks, count_from(0), "traced ranks; default all");
  if (!in.lists_fields() && in.has("output_dir")) {
    (void)in.take("output_dir");
    in.fault("output_dir", "the folder of traces is that of the run (run.project_dir): remove it");
  }
  in.done();
  if (!is_there) return std::nullopt;
  if (options.save_steps.has_value() == options.save_secs.has_value())
    in.fault("save_steps", "give one of save_steps and save_secs");
  return options;
}

}  // namespace lockstep::train
