#pragma once

#include <vector>

#include "daemon/config/run_config.h"

/// What reading a run file and listing its keys have in common.
namespace lockstep::daemon {

/// Reads every section; unknown keys of the top level are left to in->done(). `needs_train_data`:
/// as load_run_config().
RunConfig read_sections(ConfigReader* in, bool needs_train_data = true);

/// Adds what stands behind the tables: stores, Python, plug-ins. Once a process.
void add_all_types();

/// For a process that begins another job, or the run that it has read ahead: makes all that lives
/// as long as the process what it is in a new one. Tables keep the rows that they have at the
/// first call. Main thread, while no job runs.
void begin_job();

/// The keys that are read with these settings, each with the default that then holds: those of the
/// optimizer that is named, not of others.
std::vector<FieldDoc> fields_read_with(const YamlDocument& document);

}  // namespace lockstep::daemon
