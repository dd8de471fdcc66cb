#pragma once

#include <cstdint>
#include <string>

#include "base/yaml_fields.h"

namespace lockstep::dist {

/// Section `sync` of the run file: how ranks exchange gradients.
struct SyncOptions {
  int64_t bucket_bytes = 26214400;  ///< of gradients that travel together; > 0
  std::string packed =
      "auto";  ///< auto, never: all gradients travel (auto may choose otherwise in later versions)
  std::string wire = "fp32";     ///< number format in messages
  bool shard_optimizer = false;  ///< each rank keeps a share of the optimizer's state
  int64_t agree_every = 500;     ///< steps between comparisons of the ranks' state; 0: never
};

/// Reads the section; faults go where `in` sends them. Values that the run file's grammar knows and
/// this version cannot do are faults too: nothing is accepted and then ignored.
SyncOptions read_sync_options(YamlFields in);

}  // namespace lockstep::dist
