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

/// In end(): whether a stop or an error broke an evaluation or inference off, so that `file` is not
/// written; a line says so. A training is taken as it is: it has no whole.
bool is_half_told(const CallbackContext& context, const std::string& file);

/// `keys`, which must be there and name something: what the callback reads.
std::vector<std::string> read_keys(ConfigReader* in, const std::string& help);

/// `not_batch_keys`, each of which must be one of `keys` (`_x` is called x here).
std::vector<std::string> read_not_batch_keys(ConfigReader* in, const std::string& help,
                                             const std::vector<std::string>& keys);

}  // namespace lockstep::coord
