#pragma once

#include <cstdint>

#include <boost/beast/core/buffers_range.hpp>
#include <boost/beast/http/message.hpp>
#include <boost/optional.hpp>

namespace lockstep::metrics {

/// Body type for Beast's parser that receives and discards the bytes. Memory does not grow with
/// what a client sends.
struct DiscardedBody {
  struct value_type {};  // NOLINT(readability-identifier-naming): Beast's names
  class reader {         // NOLINT(readability-identifier-naming)
   public:
    using error_code = boost::beast::error_code;
    template <bool is_request, class Fields>
    reader(boost::beast::http::header<is_request, Fields>&, value_type&) {}
    void init(const boost::optional<uint64_t>&, error_code& fault) { fault = {}; }
    template <class Buffers>
    size_t put(const Buffers& buffers, error_code& fault) {
      fault = {};
      return boost::beast::buffer_bytes(buffers);
    }
    void finish(error_code& fault) { fault = {}; }
  };
};

}  // namespace lockstep::metrics
