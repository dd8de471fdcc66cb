#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "metrics/tensorboard/event_file.h"
#include "metrics/tensorboard/summary_value.h"

/// Messages of TensorFlow's event.proto that are written here, in protobuf's wire format.
namespace lockstep::metrics {

/// First record of every file: Event{wall_time, file_version "brain.Event:2"}.
std::string version_event(double wall_time_s);
/// Event{wall_time, step, session_log{status: START}}. Viewers drop earlier points with a step >=
/// `step`. They ignore the first one in a folder, so every process writes one, not only a resumed
/// one.
std::string start_event(double wall_time_s, int64_t step);
/// Event{wall_time, step, summary{value{tag, simple_value}...}}.
std::string scalars_event(double wall_time_s, int64_t step, std::span<const Scalar> scalars);
/// Event{wall_time, step, summary{value{tag, histo | image | audio | tensor and metadata}}}.
std::string value_event(double wall_time_s, int64_t step, std::string_view tag,
                        const SummaryValue& value);

}  // namespace lockstep::metrics
