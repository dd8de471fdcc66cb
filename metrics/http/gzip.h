#pragma once

#include <string>
#include <string_view>

namespace lockstep::metrics {

/// True if a client with this Accept-Encoding accepts gzip: "gzip", "deflate, gzip;q=0.5", "*".
/// False for "", "gzip;q=0", "identity".
bool accepts_gzip(std::string_view accept_encoding);

/// Compresses a text as a gzip file (RFC 1952), fast rather than small. A page of metrics takes a
/// tenth of a millisecond and shrinks to about a tenth. Throws Error(kBug) if zlib fails.
std::string gzipped(std::string_view text);

}  // namespace lockstep::metrics
