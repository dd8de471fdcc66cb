#pragma once

#include <string>
#include <string_view>

namespace lockstep::metrics {

/// Returns the fault of a text as a bcrypt hash ("is not a bcrypt hash ..."); empty if it is valid.
/// Accepts $2a$, $2b$ and $2y$ with a cost of 4 to 14. A higher cost would take seconds per login.
std::string fault_of_bcrypt_hash(const std::string& hash);

/// True if the password has this hash (libcrypt). Slow by design, as the hash's cost says. False
/// for a password with a NUL or above 72 bytes, which bcrypt would truncate. Any thread.
bool has_bcrypt_hash(std::string_view password, const std::string& hash);

}  // namespace lockstep::metrics
