#include "recal/modifier.h"

#include <fmt/format.h>

namespace lockstep::recal {

std::string Place::text() const { return line > 0 ? fmt::format("{}:{}", file, line) : file; }

Place place_of(const YamlDocument& document, const YAML::Node& node) {
  Fault fault = document.fault_at(node, "");
  return {std::move(fault.file), fault.line, fault.column, std::move(fault.source_line)};
}

bool read_epoch(YamlFields* in, std::string_view key, Decimal* value, std::string_view help) {
  in->require(key);
  return in->read(key, value, between(0, kMaxEpoch), help);
}

bool read_window(YamlFields* in, Decimal* start, Decimal* end) {
  const bool has_start =
      read_epoch(in, "start_epoch", start, "first epoch of activity, from 0; fractions allowed");
  const bool has_end = read_epoch(in, "end_epoch", end, "activity ends before this epoch");
  if (!has_start || !has_end) return false;
  if (*start < *end) return true;
  in->fault("end_epoch",
            fmt::format("'{}.end_epoch' is {}, it must be greater than start_epoch ({})",
                        in->path(), end->text(), start->text()));
  return false;
}

bool read_period(YamlFields* in, std::string_view key, Decimal* value, std::string_view help) {
  in->require(key);
  return in->read(key, value, between(kMinPeriod, kMaxEpoch), help);
}

bool read_required(YamlFields* in, std::string_view key, double* value, Range range,
                   std::string_view help) {
  in->require(key);
  return in->read(key, value, range, help);
}

}  // namespace lockstep::recal
