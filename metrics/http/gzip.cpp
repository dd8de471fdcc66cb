#include "metrics/http/gzip.h"

#include <zlib.h>
#include <boost/beast/http/rfc7230.hpp>

#include "base/error.h"

namespace lockstep::metrics {
namespace {

// zlib's fastest level.
constexpr int kFast = 1;
constexpr int kGzipWindow = 15 + 16;  // zlib's encoding of "with a gzip header"
constexpr int kMemoryLevel = 8;       // zlib's default

/// True for q=0, q=0.0, q=0.000: not accepted.
bool is_refused(const boost::beast::http::param_list& params) {
  for (const auto& [name, value] : params)
    if (name == "q") return value.find_first_not_of("0.") == value.npos;
  return false;
}

}  // namespace

bool accepts_gzip(std::string_view accept_encoding) {
  // A list of extensions has the same syntax: names, each with parameters.
  boost::beast::http::ext_list codings({accept_encoding.data(), accept_encoding.size()});
  const auto named = codings.find("gzip");
  const auto found = named != codings.end() ? named : codings.find("*");
  return found != codings.end() && !is_refused((*found).second);
}

std::string gzipped(std::string_view text) {
  z_stream stream{};
  // deflateBound(): the result fits, so one call of deflate() is enough.
  check(deflateInit2(&stream, kFast, Z_DEFLATED, kGzipWindow, kMemoryLevel, Z_DEFAULT_STRATEGY) ==
            Z_OK,
        "zlib has no memory");
  std::string result(deflateBound(&stream, text.size()), '\0');
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(text.data()));
  stream.avail_in = static_cast<uInt>(text.size());
  stream.next_out = reinterpret_cast<Bytef*>(result.data());
  stream.avail_out = static_cast<uInt>(result.size());
  const int code = deflate(&stream, Z_FINISH);
  result.resize(stream.total_out);
  deflateEnd(&stream);
  check(code == Z_STREAM_END, "zlib did not finish");
  return result;
}

}  // namespace lockstep::metrics
