#pragma once

#include <string>
#include <string_view>

namespace lockstep::metrics {

/// What is wrong with a text as a bcrypt hash ("is not a bcrypt hash ..."); empty if nothing is.
/// Taken are $2a$, $2b$ and $2y$ with a cost of 4 to 14: more would take seconds a login.
std::string fault_of_bcrypt_hash(const std::string& hash);

/// Whether the password has this hash (libcrypt). As slow as the hash's cost says, on purpose.
/// Never for a password with a NUL or above 72 bytes, which bcrypt would cut. Any thread.
bool has_bcrypt_hash(std::string_view password, const std::string& hash);

}  // namespace lockstep::metrics
