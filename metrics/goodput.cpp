#include "metrics/goodput.h"

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <limits>
#include <memory>
#include <numeric>
#include <stdexcept>
#include <string_view>
#include <utility>

#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include "base/error.h"
#include "base/files/files.h"
#include "base/log.h"
#include "base/process.h"
#include "base/text.h"
#include "metrics/progress.h"

// Each start owns one line of goodput.csv. It rewrites the line in place, so the line has a fixed
// length: a killed run leaves its newest numbers, and the file does not grow while a run trains.
namespace lockstep::metrics {
namespace {

constexpr std::array kNames = {
    "productive",   "start",         "data", "save_stall", "evaluation", "mask_update", "straggler",
    "skipped_step", "repeated_work", "hang", "down",       "queue",      "pause",       "other"};
static_assert(kNames.size() == kNumTimeUses);
constexpr std::array<std::string_view, 3> kEndNames = {"running", "stopped", "finished"};
constexpr size_t kNumFacts = 4, kLineBytes = 320;
constexpr std::chrono::milliseconds kInterval{10};

std::string header() {
  return fmt::format("end_s,first_step,last_step,state,{}", fmt::join(kNames, ","));
}

std::string line_of(const StartTime& start) {
  std::string line =
      fmt::format("{:.3f},{},{},{},{:.3f}", start.end_s, start.first_step, start.last_step,
                  kEndNames[static_cast<size_t>(start.end)], fmt::join(start.seconds, ","));
  line.resize(kLineBytes - 1, ' ');
  return line + "\n";
}

double number_of(const std::string& text) {
  char* end = nullptr;
  const double value = std::strtod(text.c_str(), &end);
  if (end == text.c_str()) throw std::invalid_argument("'" + text + "' is no number");
  return value;
}

StartEnd end_of(const std::string& name) {
  const auto found = std::find(kEndNames.begin(), kEndNames.end(), name);
  if (found == kEndNames.end()) throw std::invalid_argument("'" + name + "' is no state");
  return static_cast<StartEnd>(found - kEndNames.begin());
}

StartTime start_of(const std::string& line) {
  const std::vector<std::string> fields = split(line, ',');
  if (fields.size() != kNumFacts + kNumTimeUses)
    throw std::invalid_argument(
        fmt::format("{} fields instead of {}", fields.size(), kNumFacts + kNumTimeUses));
  StartTime start{.end_s = number_of(fields[0]),
                  .first_step = static_cast<int64_t>(number_of(fields[1])),
                  .last_step = static_cast<int64_t>(number_of(fields[2])),
                  .end = end_of(fields[3])};
  for (size_t i = 0; i < kNumTimeUses; ++i) start.seconds[i] = number_of(fields[kNumFacts + i]);
  return start;
}

double& of(SecondsByUse& seconds, TimeUse use) { return seconds[static_cast<size_t>(use)]; }

/// Seconds of earlier starts in steps after `step`, which this start does again. Steps that an
/// earlier start has repeated already are not counted again.
double repeated_s(const std::vector<StartTime>& starts, int64_t step) {
  double sum_s = 0;
  int64_t last = std::numeric_limits<int64_t>::max();
  for (auto start = starts.rbegin(); start != starts.rend(); ++start) {
    last = std::min(last, start->last_step);
    const int64_t num_steps = start->last_step - start->first_step;
    const int64_t num_repeated = last - std::max(start->first_step, step);
    if (num_repeated > 0) {
      SecondsByUse seconds = start->seconds;
      const double work_s = of(seconds, TimeUse::kProductive) + of(seconds, TimeUse::kRepeatedWork);
      sum_s += work_s * static_cast<double>(num_repeated) / static_cast<double>(num_steps);
    }
    last = std::min(last, start->first_step);
  }
  return sum_s;
}

double environment_number(const char* name) {
  const char* text = std::getenv(name);
  return text != nullptr ? std::strtod(text, nullptr) : 0;
}

/// Start of this process, s since 1970.
double process_start_s() {
  timespec since_boot{};
  (void)::clock_gettime(CLOCK_BOOTTIME, &since_boot);
  const double now_s =
      static_cast<double>(since_boot.tv_sec) + 1e-9 * static_cast<double>(since_boot.tv_nsec);
  const double start_s =
      static_cast<double>(start_ticks_of(::getpid())) / static_cast<double>(::sysconf(_SC_CLK_TCK));
  return unix_time_s() - (now_s - start_s);
}

double seconds_between(Goodput::Clock::time_point from, Goodput::Clock::time_point to) {
  return std::chrono::duration<double>(to - from).count();
}

/// Use of the time between two starts.
TimeUse use_between(const StartTime& before, const LaunchFacts& launch) {
  if (before.end != StartEnd::kRunning) return TimeUse::kQueue;
  return launch.is_after_hang ? TimeUse::kHang : TimeUse::kDown;
}

}  // namespace

const char* name_of(TimeUse use) { return kNames[static_cast<size_t>(use)]; }

double RunTime::wall_s() const { return std::accumulate(seconds.begin(), seconds.end(), 0.0); }

double RunTime::goodput() const {
  const double paid_s = wall_s() - of(TimeUse::kQueue);
  return paid_s > 0 ? of(TimeUse::kProductive) / paid_s : 0;
}

std::vector<StartTime> read_starts(const std::filesystem::path& file) {
  std::vector<StartTime> starts;
  if (!files::exists(file)) return starts;
  std::vector<std::string> lines = split(files::read(file));
  for (size_t i = 1; i < lines.size(); ++i) {
    // A full disk cuts the last line.
    if (i + 1 == lines.size() && lines[i].size() < kLineBytes - 1) break;
    try {
      starts.push_back(start_of(lines[i]));
    } catch (const std::invalid_argument& fault) {
      throw Error(ExitCode::kBadData, "goodput",
                  fmt::format("{}:{}: {}; remove the file to count from now on", file.string(),
                              i + 1, fault.what()));
    }
  }
  return starts;
}

RunTime run_time_of(const std::vector<StartTime>& starts) {
  RunTime run{.num_starts = static_cast<int>(starts.size())};
  for (const StartTime& start : starts)
    for (size_t i = 0; i < kNumTimeUses; ++i) run.seconds[i] += start.seconds[i];
  if (!starts.empty()) run.step = starts.back().last_step;
  return run;
}

std::string table_of(const RunTime& time) {
  constexpr double kBarCells = 40, kLeastShown_s = 0.5;
  std::string text =
      fmt::format("{:.1f} % of {} was training: {} step{}, {} start{}\n\n", 100 * time.goodput(),
                  duration_text(time.wall_s() - time.of(TimeUse::kQueue)), time.step,
                  time.step == 1 ? "" : "s", time.num_starts, time.num_starts == 1 ? "" : "s");
  for (size_t i = 0; i < kNumTimeUses; ++i) {
    if (time.seconds[i] < kLeastShown_s && i > 0) continue;
    if (static_cast<TimeUse>(i) == TimeUse::kQueue) {  // no time of the ranks
      text += fmt::format("{:<14}{:>8}\n", kNames[i], duration_text(time.seconds[i]));
      continue;
    }
    const double share = time.seconds[i] / (time.wall_s() - time.of(TimeUse::kQueue));
    std::string bar;
    for (auto cells = std::lround(kBarCells * share); cells > 0; --cells) bar += "█";
    text += fmt::format("{:<14}{:>8} {:>6.1f} %  {}\n", kNames[i], duration_text(time.seconds[i]),
                        100 * share, bar);
  }
  return text;
}

LaunchFacts launch_facts() {
  const double told_s = environment_number("LOCKSTEP_STARTED_AT");
  return {.began_s = told_s > 0 ? told_s : process_start_s(),
          .queued_s = environment_number("LOCKSTEP_QUEUED_AT"),
          .is_after_hang = environment_number("LOCKSTEP_LAST_EXIT_CODE") ==
                           static_cast<double>(ExitCode::kWatchdog)};
}

Goodput::Goodput(const std::filesystem::path& file, int64_t step, const LaunchFacts& launch)
    : own_{.first_step = step, .last_step = step},
      began_s_(launch.began_s),
      writer_({.thread_name = "goodput", .capacity_bytes = 16 * kLineBytes}) {
  std::vector<StartTime> starts;
  bool may_write = true;
  try {
    starts = read_starts(file);
  } catch (const std::exception& fault) {
    const auto* const known = dynamic_cast<const Error*>(&fault);
    may_write = known != nullptr && known->code() == ExitCode::kBadData;
    log::warning("goodput", fmt::format("{}{}", fault.what(), may_write ? "; it is replaced" : ""));
  }
  // A run that begins again after its end is another one.
  if (step == 0 && !starts.empty() && starts.back().end == StartEnd::kFinished) starts.clear();
  before_ = run_time_of(starts);
  if (!starts.empty()) {
    const double last_s = starts.back().end_s;
    // A program of the user's may have inherited the time of an earlier start.
    if (began_s_ < last_s) began_s_ = std::max(process_start_s(), last_s);
    spend(use_between(starts.back(), launch), began_s_ - last_s);
    const double again_s = repeated_s(starts, step);
    spend(TimeUse::kRepeatedWork, again_s);
    spend(TimeUse::kProductive, -again_s);
  } else if (launch.queued_s > 0) {
    spend(TimeUse::kQueue, std::max(0.0, began_s_ - launch.queued_s));
  }
  const Clock::time_point now = Clock::now();
  began_at_ = now - std::chrono::duration_cast<Clock::duration>(
                        std::chrono::duration<double>(std::max(0.0, unix_time_s() - began_s_)));
  accounted_until_ = began_at_;
  if (may_write) open(file, starts);
  spend_until(now);
  write(now, true);
}

/// Writes the lines of earlier starts and opens the file for the own line.
void Goodput::open(const std::filesystem::path& file, const std::vector<StartTime>& starts) {
  std::string text = header() + "\n";
  for (const StartTime& start : starts) text += line_of(start);
  offset_bytes_ = static_cast<int64_t>(text.size());
  try {
    files::make_folders(file.parent_path());
    files::write_atomically(file, text);
    out_ = std::make_shared<files::Descriptor>(::open(file.c_str(), O_WRONLY | O_CLOEXEC));
    if (out_->get() < 0)
      log::warning("goodput", fmt::format("{}: {}", file.string(), std::strerror(errno)));
  } catch (const std::exception& fault) {
    log::warning("goodput", fmt::format("{}; this start is not recorded", fault.what()));
  }
}

TimeUse Goodput::use_now() const {
  switch (state_) {
    case RunState::kValidating:
      return TimeUse::kEvaluation;
    case RunState::kSaving:
      return TimeUse::kSaveStall;
    case RunState::kPaused:
      return TimeUse::kPause;
    default:
      return has_stepped_ ? TimeUse::kOther : TimeUse::kStart;
  }
}

void Goodput::spend_until(Clock::time_point now) {
  const double passed_s = std::max(0.0, seconds_between(accounted_until_, now));
  spend(use_now(), passed_s);
  if (state_ == RunState::kSaving) stalled_s_ += passed_s;
  accounted_until_ = std::max(accounted_until_, now);
}

void Goodput::enter(RunState state, Clock::time_point now) {
  spend_until(now);
  if (state == RunState::kSaving && state_ != state) before_save_ = own_.seconds;
  state_ = state;
  write(now, false);
}

void Goodput::step(const StepSample& sample, double straggler_s, Clock::time_point now) {
  const auto duration =
      std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(sample.duration_s));
  spend_until(now - duration);
  has_stepped_ = true;
  double left_s = std::max(0.0, seconds_between(accounted_until_, now));
  const auto spend_of_step = [&](TimeUse use, double seconds) {
    const double part_s = std::clamp(seconds, 0.0, left_s);
    spend(use, part_s);
    left_s -= part_s;
  };
  spend_of_step(TimeUse::kData, sample.phases.data);
  spend_of_step(TimeUse::kMaskUpdate, sample.phases.modifier);
  if (sample.nonfinite) spend_of_step(TimeUse::kSkippedStep, left_s);
  spend_of_step(TimeUse::kStraggler, straggler_s);
  spend(TimeUse::kProductive, left_s);
  accounted_until_ = std::max(accounted_until_, now);
  own_.last_step = sample.step;
  write(now, false);
}

/// Takes seconds away that were spent on a use since the save began. Returns how many there were.
double Goodput::take(TimeUse use, double seconds) {
  double& spent_s = of(own_.seconds, use);
  const double taken_s = std::clamp(seconds, 0.0, std::max(0.0, spent_s - of(before_save_, use)));
  spent_s -= taken_s;
  return taken_s;
}

void Goodput::save(double stall_s, Clock::time_point now) {
  spend_until(now);
  // Waits outside the state kSaving: between steps, before a change of masks, within a step.
  double rest_s = std::max(0.0, stall_s - std::exchange(stalled_s_, 0));
  for (const TimeUse use : {TimeUse::kOther, TimeUse::kMaskUpdate, TimeUse::kProductive}) {
    const double taken_s = take(use, rest_s);
    spend(TimeUse::kSaveStall, taken_s);
    rest_s -= taken_s;
  }
}

void Goodput::end(StartEnd end, Clock::time_point now) {
  spend_until(now);
  own_.end = end;
  write(now, true);
  (void)writer_.drain(std::chrono::seconds(2));
}

RunTime Goodput::run_time() const {
  RunTime all = before_;
  for (size_t i = 0; i < kNumTimeUses; ++i) all.seconds[i] += own_.seconds[i];
  ++all.num_starts;
  all.step = own_.last_step;
  return all;
}

void Goodput::write(Clock::time_point now, bool is_due) {
  if (!is_due && now - written_at_ < kInterval) return;
  written_at_ = now;
  own_.end_s = began_s_ + seconds_between(began_at_, accounted_until_);
  // A line that finds no room in the queue is replaced by the next one.
  (void)writer_.push(
      [out = out_, line = line_of(own_), offset = offset_bytes_] {
        if (out != nullptr) (void)!::pwrite(out->get(), line.data(), line.size(), offset);
      },
      static_cast<int64_t>(kLineBytes));
}

}  // namespace lockstep::metrics
