// Merges Kineto's JSON and Lockstep's spans into one trace. Invalid JSON from LibTorch is skipped,
// since a trace must not end a run.
#include "train/hooks/timeline.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

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

/// Gives each arrow a number that is unique over all ranks. Viewers join the ends of an arrow by
/// it.
class FlowNumbers {
 public:
  void next_rank() { numbers_.clear(); }
  void renumber(Json* event) {
    if (!is_flow(*event) || !event->contains("id")) return;
    const auto [known, is_new] = numbers_.try_emplace((*event)["id"].dump(), num_flows_);
    if (is_new) ++num_flows_;
    (*event)["id"] = known->second;
  }

 private:
  std::map<std::string, int64_t> numbers_;  // of the current rank
  int64_t num_flows_ = 0;
};

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
  return events.dump(-1, ' ', false, Json::error_handler_t::replace);
}

std::string merged_timeline(const std::vector<std::string>& rank_events) {
  Json all = Json::array();
  int64_t first_ns = std::numeric_limits<int64_t>::max();
  FlowNumbers flows;
  for (const std::string& text : rank_events) {
    if (text.empty()) continue;
    flows.next_rank();
    for (Json& event : Json::parse(text)) {
      flows.renumber(&event);
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
  return trace.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace lockstep::train
