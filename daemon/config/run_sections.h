#pragma once

#include <vector>

#include "daemon/config/run_config.h"

/// Parts that are shared by reading a run file and by listing its keys.
namespace lockstep::daemon {

/// Reads every section. Unknown keys of the top level are left to in->done(). `needs_train_data`:
/// see load_run_config().
RunConfig read_sections(ConfigReader* in, bool needs_train_data = true);

/// Registers the optional rows of the tables: object stores, Python, plug-ins. Call once per
/// process.
void add_all_types();

/// Resets all state that lives as long as the process, as if the process were new. Used before
/// another job, and before a run whose file was read ahead. Tables keep the rows that they had at
/// the first call. Call it on the main thread while no job runs.
void begin_job();

/// Returns the keys that are read with these settings, each with its default. These are the keys of
/// the chosen optimizer, for example, and not of the others.
std::vector<FieldDoc> fields_read_with(const YamlDocument& document);

}  // namespace lockstep::daemon
