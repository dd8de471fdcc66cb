#include "daemon/watch/watchdog_options.h"

#include <algorithm>

#include <fmt/format.h>

// Each phase has its own sub-section with the two limits. A phase without them uses the limits of
// the whole section.
namespace lockstep::daemon {
namespace {

struct PhaseWords {
  const char* name;
  const char* what;
};

constexpr std::array<PhaseWords, kNumWatchPhases> kPhases{{
    {"init", "the start, up to the first step: data, network, restore"},
    {"step", "a training step"},
    {"evaluation", "a batch of an evaluation"},
    {"mask_update", "what the recipe does before a step"},
    {"save", "where training waits for a save; a save beside it has checkpoint.timeout_s"},
}};

const PhaseWords& words_of(WatchPhase phase) { return kPhases[static_cast<size_t>(phase)]; }

void read_phase(ConfigReader in, const PhaseWords& words, WatchdogOptions::Phase* phase) {
  in.read("slow_seconds", &phase->slow_s, more_than(0),
          fmt::format("instead of watchdog.slow_seconds for {}", words.what));
  in.read("hang_seconds", &phase->hang_s, at_least(0), "instead of watchdog.hang_seconds for it");
  in.done();
}

}  // namespace

const char* phase_name(WatchPhase phase) { return words_of(phase).name; }

std::string WatchdogOptions::hang_key_of(WatchPhase phase) const {
  return of(phase).hang_s ? fmt::format("watchdog.{}.hang_seconds", phase_name(phase))
                          : "watchdog.hang_seconds";
}

double WatchdogOptions::shortest_s() const {
  double shortest = slow_s;
  for (int i = 0; i < kNumWatchPhases; ++i) {
    const auto phase = static_cast<WatchPhase>(i);
    shortest = std::min(shortest, slow_s_of(phase));
    // 0 means no limit.
    if (hang_s_of(phase) > 0) shortest = std::min(shortest, hang_s_of(phase));
  }
  return shortest;
}

void WatchdogOptions::set(const std::string& key, double value_s) {
  const size_t dot = key.find('.');
  const std::string section = dot == std::string::npos ? "" : key.substr(0, dot);
  const bool is_slow = key.ends_with("slow_seconds");
  if (section.empty()) (is_slow ? slow_s : hang_s) = value_s;
  for (size_t i = 0; i < kPhases.size(); ++i)
    if (section == kPhases[i].name) (is_slow ? phases[i].slow_s : phases[i].hang_s) = value_s;
}

WatchdogOptions read_watchdog_options(ConfigReader in) {
  WatchdogOptions options;
  in.read(
      "slow_seconds", &options.slow_s, more_than(0),
      "a rank whose loop (step, validation batch, wait for a save) stands still for so long says "
      "where; one that others wait for so long is named by them");
  in.read(
      "hang_seconds", &options.hang_s, at_least(0),
      "a rank whose loop stands still for so long ends the run (79) and leaves the newest events "
      "of the ranks in logs; 0: never. A rank that others wait for is given up after "
      "sync.timeout_s");
  for (size_t i = 0; i < kPhases.size(); ++i)
    read_phase(in.section(kPhases[i].name), kPhases[i], &options.phases[i]);
  in.done();
  return options;
}

}  // namespace lockstep::daemon
