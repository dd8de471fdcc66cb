// HTTP by libcurl.
#include "remote/http.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstring>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>

#include <curl/curl.h>
#include <fmt/format.h>

#include "base/error.h"
#include "base/files/files.h"
#include "base/log.h"
#include "base/yaml/config_reader.h"

namespace lockstep::remote {

namespace {

struct FreeCurl {
  void operator()(CURL* handle) const { ::curl_easy_cleanup(handle); }
  void operator()(curl_slist* list) const { ::curl_slist_free_all(list); }
};
using CurlHandle = std::unique_ptr<CURL, FreeCurl>;
using CurlList = std::unique_ptr<curl_slist, FreeCurl>;

/// Returns a new handle; initializes libcurl on the first call.
CurlHandle make_curl_handle() {
  [[maybe_unused]] static const CURLcode ready = ::curl_global_init(CURL_GLOBAL_DEFAULT);
  CurlHandle handle(::curl_easy_init());
  check(handle != nullptr, "libcurl returns a handle");
  return handle;
}

// Requests to stores. Each try is an Exchange; send() repeats them with exponential backoff.

/// Bytes for which a server's word is taken.
constexpr int64_t kMostToReserve = int64_t{16} << 20;
constexpr double kFirstPause = 0.2, kLongestPause = 8;
/// Seconds after which a request that is tried again gives a warning.
constexpr double kQuietS = 5;
constexpr long kConnectTimeoutS = 15, kSilenceS = 30;  // NOLINT(google-runtime-int): libcurl's type

double now_s() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

/// Handle for one request, with its open connections. Threads come and go with every save and every
/// group of reads, so a later request of any thread uses the handle again.
class HandleLease {
 public:
  HandleLease() {
    {
      const std::scoped_lock lock(mutex());
      if (!idle().empty()) {
        handle_ = std::move(idle().back());
        idle().pop_back();
      }
    }
    if (handle_ == nullptr) handle_ = make_curl_handle();
    // Options of the last request must not leak into this one; connections stay open.
    ::curl_easy_reset(handle_.get());
  }
  ~HandleLease() {
    const std::scoped_lock lock(mutex());
    idle().push_back(std::move(handle_));
  }
  HandleLease(const HandleLease&) = delete;
  HandleLease& operator=(const HandleLease&) = delete;

  CURL* get() const { return handle_.get(); }

 private:
  static std::mutex& mutex() {
    static std::mutex one;
    return one;
  }
  static std::vector<CurlHandle>& idle() {
    static std::vector<CurlHandle> handles;
    return handles;
  }

  CurlHandle handle_;
};

/// One try of one request.
class Exchange {
 public:
  /// `request` must outlive this.
  Exchange(const Request& request, int64_t max_body_bytes, double timeout_s)
      : max_body_bytes_(request.method == "HEAD" ? 0 : max_body_bytes), body_(request.body) {
    // No pause before the body.
    curl_slist* list = ::curl_slist_append(nullptr, "Expect:");
    for (const auto& [name, value] : request.headers)
      if (name != "host") list = ::curl_slist_append(list, (name + ": " + value).c_str());
    headers_.reset(list);
    set(CURLOPT_URL, request.url().c_str());
    // Paths are signed as they are, so libcurl must not normalize them.
    set(CURLOPT_PATH_AS_IS, 1L);
    set(CURLOPT_NOBODY, request.method == "HEAD" ? 1L : 0L);
    if (request.method == "PUT" || request.method == "POST") send_body(request);
    if (request.method != "HEAD") set(CURLOPT_CUSTOMREQUEST, request.method.c_str());
    set(CURLOPT_HTTPHEADER, list);
    set(CURLOPT_PROTOCOLS_STR, "http,https");
    set(CURLOPT_NOSIGNAL, 1L);
    set(CURLOPT_USERAGENT, "lockstep");
    set(CURLOPT_CONNECTTIMEOUT, kConnectTimeoutS);
    // A transfer below 1 byte/s for 30 s counts as broken.
    set(CURLOPT_LOW_SPEED_LIMIT, 1L);
    set(CURLOPT_LOW_SPEED_TIME, kSilenceS);
    set(CURLOPT_TIMEOUT_MS, std::max(1L, std::lround(1000 * timeout_s)));
    set(CURLOPT_ERRORBUFFER, text_.data());
    set(CURLOPT_WRITEFUNCTION, &Exchange::take_body);
    set(CURLOPT_WRITEDATA, this);
    set(CURLOPT_HEADERFUNCTION, &Exchange::take_header);
    set(CURLOPT_HEADERDATA, this);
  }

  Answer& run() {
    code_ = ::curl_easy_perform(handle_.get());
    ::curl_easy_getinfo(handle_.get(), CURLINFO_RESPONSE_CODE, &answer_.status);
    return answer_;
  }

  bool is_complete() const { return code_ == CURLE_OK; }
  /// Returns the reason of an incomplete transfer.
  std::string fault() const {
    if (is_too_long_) return "it sends more than was requested";
    return text_[0] != '\0' ? text_.data() : ::curl_easy_strerror(code_);
  }
  bool may_pass() const {
    if (is_complete())
      return answer_.status == 409 || answer_.status == 429 ||
             (answer_.status >= 500 && answer_.status != 501);
    return is_passing_fault(code_);
  }

 private:
  template <typename Value>
  void set(CURLoption option, Value value) {
    ::curl_easy_setopt(handle_.get(), option, value);
  }

  void send_body(const Request& request) {
    constexpr long kBufferBytes = 1 << 19;  // NOLINT(google-runtime-int): libcurl's type
    set(CURLOPT_UPLOAD, 1L);
    set(CURLOPT_UPLOAD_BUFFERSIZE, kBufferBytes);
    set(CURLOPT_INFILESIZE_LARGE, static_cast<curl_off_t>(request.body_bytes()));
    set(CURLOPT_READFUNCTION, &Exchange::give_body);
    set(CURLOPT_READDATA, this);
    set(CURLOPT_SEEKFUNCTION, &Exchange::seek_body);
    set(CURLOPT_SEEKDATA, this);
  }

  static size_t give_body(char* to, size_t /*one*/, size_t room, void* self) {
    auto* const exchange = static_cast<Exchange*>(self);
    while (exchange->text_at_ < exchange->body_.size()) {
      const std::string_view rest = exchange->body_[exchange->text_at_].substr(exchange->byte_at_);
      const size_t count = std::min(rest.size(), room);
      if (count == 0) {  // this text is sent
        ++exchange->text_at_;
        exchange->byte_at_ = 0;
        continue;
      }
      std::memcpy(to, rest.data(), count);
      exchange->byte_at_ += count;
      return count;
    }
    return 0;
  }

  /// Starts the body again, if libcurl finds only while sending that a connection is closed.
  static int seek_body(void* self, curl_off_t offset, int origin) {
    if (offset != 0 || origin != SEEK_SET) return CURL_SEEKFUNC_CANTSEEK;
    auto* const exchange = static_cast<Exchange*>(self);
    exchange->text_at_ = exchange->byte_at_ = 0;
    return CURL_SEEKFUNC_OK;
  }

  static size_t take_body(const char* bytes, size_t /*one*/, size_t count, void* self) {
    auto* const exchange = static_cast<Exchange*>(self);
    std::string& body = exchange->answer_.body;
    if (static_cast<int64_t>(body.size() + count) > exchange->max_body_bytes_) {
      exchange->is_too_long_ = true;
      return 0;
    }
    body.append(bytes, count);
    return count;
  }

  static size_t take_header(const char* bytes, size_t /*one*/, size_t count, void* self) {
    const std::string_view line(bytes, count);
    const size_t colon = line.find(':');
    if (colon == std::string_view::npos) return count;
    std::string name(line.substr(0, colon));
    std::transform(name.begin(), name.end(), name.begin(),
                   [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
    const size_t begin = std::min(line.find_first_not_of(' ', colon + 1), line.size());
    const std::string_view value = line.substr(begin);
    auto* const exchange = static_cast<Exchange*>(self);
    std::string& text = exchange->answer_.headers[name];
    text = value.substr(0, value.find_last_not_of("\r\n") + 1);
    // Otherwise a body that grows is copied again and again.
    if (name == "content-length")
      exchange->answer_.body.reserve(static_cast<size_t>(
          std::clamp<int64_t>(parse_integer(text).value_or(0), 0,
                              std::min(exchange->max_body_bytes_, kMostToReserve))));
    return count;
  }

  HandleLease handle_;
  int64_t max_body_bytes_;
  const std::vector<std::string_view>& body_;
  size_t text_at_ = 0, byte_at_ = 0;  ///< next byte of the body to send
  CurlList headers_;
  std::array<char, CURL_ERROR_SIZE> text_{};
  Answer answer_;
  CURLcode code_ = CURLE_OK;
  bool is_too_long_ = false;
};

/// Returns the value of the Host header: the usual port is omitted, as libcurl does and the
/// signature requires.
std::string host_of(const std::string& origin) {
  std::string host = origin.substr(origin.find("://") + 3);
  const std::string usual_port = origin.starts_with("https") ? ":443" : ":80";
  if (host.ends_with(usual_port)) host.resize(host.size() - usual_port.size());
  return host;
}

}  // namespace

bool is_passing_fault(int curl_code) {
  // The two HTTP/2 codes are for a stream or connection that a server reset.
  constexpr int kPassing[] = {
      CURLE_COULDNT_CONNECT, CURLE_COULDNT_RESOLVE_HOST, CURLE_OPERATION_TIMEDOUT,
      CURLE_RECV_ERROR,      CURLE_SEND_ERROR,           CURLE_PARTIAL_FILE,
      CURLE_GOT_NOTHING,     CURLE_SSL_CONNECT_ERROR,    CURLE_COULDNT_RESOLVE_PROXY,
      CURLE_HTTP2,           CURLE_HTTP2_STREAM,         CURLE_SEND_FAIL_REWIND};
  return std::find(std::begin(kPassing), std::end(kPassing), curl_code) != std::end(kPassing);
}

Answer send(const Access& access, Request request, int64_t max_body_bytes,
            const std::string& place) {
  request.headers["host"] = host_of(request.origin);
  // Tries share one deadline, so a try near its end gets only the rest of the time.
  const double timeout_s = files::store_limits().timeout_s, end_s = now_s() + timeout_s;
  bool is_told = false;
  for (double pause_s = kFirstPause;; pause_s = std::min(2 * pause_s, kLongestPause)) {
    // Signed for every try, because a signature contains the time.
    sign(access, std::time(nullptr), &request);
    Exchange exchange(request, max_body_bytes, end_s - now_s());
    Answer& answer = exchange.run();
    if (exchange.is_complete() && !exchange.may_pass()) return std::move(answer);
    const std::string fault =
        exchange.is_complete() ? fmt::format("status {}", answer.status) : exchange.fault();
    const double tried_s = now_s() - (end_s - timeout_s);
    if (!exchange.may_pass() || now_s() + pause_s >= end_s)
      throw Error(
          ExitCode::kIo, "remote",
          fmt::format(
              "{}: cannot be {} {}: {}{}", place,
              request.method == "GET" || request.method == "HEAD" ? "read from" : "written to",
              request.origin, fault,
              exchange.may_pass()
                  ? fmt::format(" (tried for {:.1f} of {:g} s, data.remote_timeout_s)", tried_s,
                                timeout_s)
                  : ""));
    const std::string text = fmt::format("{}: {}: {}; trying again for {:.0f} s", place,
                                         request.origin, fault, end_s - now_s());
    if (tried_s > kQuietS && !is_told)
      log::warning("remote", text);
    else
      log::debug("remote", text);
    is_told = is_told || tried_s > kQuietS;
    std::this_thread::sleep_for(std::chrono::duration<double>(pause_s));
  }
}

std::optional<std::string> fetch_page(const std::string& method, const std::string& url,
                                      const std::vector<std::string>& headers, double timeout_s) {
  constexpr size_t kMostBytes = size_t{1} << 16;
  const CurlHandle handle = make_curl_handle();
  const auto set = [&](CURLoption option, auto value) {
    ::curl_easy_setopt(handle.get(), option, value);
  };
  curl_slist* list = nullptr;
  for (const std::string& header : headers) list = ::curl_slist_append(list, header.c_str());
  const CurlList kept(list);
  std::string page;
  set(CURLOPT_URL, url.c_str());
  set(CURLOPT_CUSTOMREQUEST, method.c_str());
  set(CURLOPT_HTTPHEADER, list);
  set(CURLOPT_PROTOCOLS_STR, "http,https");
  set(CURLOPT_NOPROXY, "*");
  set(CURLOPT_NOSIGNAL, 1L);
  set(CURLOPT_TIMEOUT_MS, std::lround(1000 * timeout_s));
  const auto take_page = [](const char* bytes, size_t /*one*/, size_t count, void* to) -> size_t {
    auto* const text = static_cast<std::string*>(to);
    if (text->size() + count > kMostBytes) return 0;
    text->append(bytes, count);
    return count;
  };
  set(CURLOPT_WRITEFUNCTION, +take_page);
  set(CURLOPT_WRITEDATA, &page);
  long status = 0;  // NOLINT(google-runtime-int): libcurl's type
  if (::curl_easy_perform(handle.get()) != CURLE_OK) return std::nullopt;
  ::curl_easy_getinfo(handle.get(), CURLINFO_RESPONSE_CODE, &status);
  return status == 200 ? std::optional(page) : std::nullopt;
}

constexpr size_t kMaxAnswerBytes = 200;

/// Stores the start of an answer and drops the rest.
static size_t take(const char* bytes, size_t /*one*/, size_t count, void* kept) {
  auto* const answer = static_cast<std::string*>(kept);
  answer->append(bytes, std::min(count, kMaxAnswerBytes - answer->size()));
  return count;
}

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
        fmt::format("{}: status {}: {}", log::without_passwords(message.url), status, answer));
}

}  // namespace lockstep::remote
