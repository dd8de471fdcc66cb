#pragma once

#include "coord/callback_types.h"

/// Rows of Lockstep's own callbacks, one file each.
namespace lockstep::coord {

CallbackType log_callback();
CallbackType prediction_saver();
CallbackType tf_records_saver();
CallbackType collector();
CallbackType statistics();
CallbackType summary();
CallbackType topk();
CallbackType confusion();

/// True in end() if a stop or an error broke off an evaluation or inference. Then `file` must not
/// be written, and a warning says so. A training is never incomplete in this sense.
bool is_half_told(const CallbackContext& context, const std::string& file);

/// Reads `keys`, the keys that the callback reads; required and not empty.
std::vector<std::string> read_keys(ConfigReader* in, const std::string& help);

/// Reads `not_batch_keys`; each must be one of `keys` (`_x` is x here).
std::vector<std::string> read_not_batch_keys(ConfigReader* in, const std::string& help,
                                             const std::vector<std::string>& keys);

}  // namespace lockstep::coord
