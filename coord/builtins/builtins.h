#pragma once

#include "coord/callback_types.h"

/// Rows of Lockstep's own callbacks, a file each.
namespace lockstep::coord {

CallbackType log_callback();
CallbackType prediction_saver();
CallbackType tf_records_saver();
CallbackType collector();
CallbackType statistics();
CallbackType summary();
CallbackType topk();
CallbackType confusion();

/// `keys`, which must be there: what the callback reads.
std::vector<std::string> read_keys(ConfigReader* in, const std::string& help);

}  // namespace lockstep::coord
