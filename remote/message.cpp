#include "remote/message.h"

#include <algorithm>
#include <array>
#include <cmath>

#include <fmt/format.h>

#include "base/error.h"
#include "base/log.h"
#include "remote/curl_handle.h"

namespace lockstep::remote {
namespace {

constexpr size_t kMaxAnswerBytes = 200;

/// Stores the start of an answer and drops the rest.
size_t take(const char* bytes, size_t /*one*/, size_t count, void* kept) {
  auto* const answer = static_cast<std::string*>(kept);
  answer->append(bytes, std::min(count, kMaxAnswerBytes - answer->size()));
  return count;
}

}  // namespace

void send_message(const Message& message) {
  const CurlHandle handle = make_curl_handle();
  const auto set = [&](CURLoption option, auto value) {
    ::curl_easy_setopt(handle.get(), option, value);
  };
  curl_slist* list = ::curl_slist_append(nullptr, "Expect:");  // no handshake before the body
  for (const std::string& header : message.headers)
    list = ::curl_slist_append(list, header.c_str());
  const CurlList headers(list);
  std::array<char, CURL_ERROR_SIZE> text{};
  std::string answer;
  set(CURLOPT_URL, message.url.c_str());
  set(CURLOPT_POSTFIELDS, message.body.c_str());
  set(CURLOPT_POSTFIELDSIZE_LARGE, static_cast<curl_off_t>(message.body.size()));
  set(CURLOPT_HTTPHEADER, list);
  set(CURLOPT_PROTOCOLS_STR, "http,https");
  set(CURLOPT_NOSIGNAL, 1L);
  set(CURLOPT_USERAGENT, "lockstep");
  set(CURLOPT_TIMEOUT_MS, std::lround(1000 * message.timeout_s));
  set(CURLOPT_ERRORBUFFER, text.data());
  set(CURLOPT_WRITEFUNCTION, &take);
  set(CURLOPT_WRITEDATA, &answer);
  if (!message.ca_file.empty()) set(CURLOPT_CAINFO, message.ca_file.c_str());
  const CURLcode code = ::curl_easy_perform(handle.get());
  long status = 0;  // NOLINT(google-runtime-int): libcurl's type
  ::curl_easy_getinfo(handle.get(), CURLINFO_RESPONSE_CODE, &status);
  if (code != CURLE_OK)
    throw Error(ExitCode::kIo, "remote",
                fmt::format("{}: {}", log::without_passwords(message.url),
                            text[0] != '\0' ? text.data() : ::curl_easy_strerror(code)));
  if (status < 200 || status > 299)
    throw Error(
        ExitCode::kIo, "remote",
        fmt::format("{}: answers {}: {}", log::without_passwords(message.url), status, answer));
}

}  // namespace lockstep::remote
