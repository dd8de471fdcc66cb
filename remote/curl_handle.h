#pragma once

#include <memory>

#include <curl/curl.h>

namespace lockstep::remote {

struct FreeCurl {
  void operator()(CURL* handle) const { ::curl_easy_cleanup(handle); }
  void operator()(curl_slist* list) const { ::curl_slist_free_all(list); }
};
using CurlHandle = std::unique_ptr<CURL, FreeCurl>;
using CurlList = std::unique_ptr<curl_slist, FreeCurl>;

/// Returns a new handle; initializes libcurl on the first call.
CurlHandle make_curl_handle();

}  // namespace lockstep::remote
