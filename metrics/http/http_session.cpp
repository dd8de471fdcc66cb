#include "metrics/http/http_session.h"

#include <chrono>
#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <string_view>
#include <utility>

#include <fmt/format.h>
#include <boost/asio/dispatch.hpp>
#include <boost/asio/post.hpp>
#include <boost/beast/core/buffers_range.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http.hpp>
#include <boost/beast/http/message.hpp>
#include <boost/optional.hpp>

#include "base/log.h"

namespace lockstep::metrics {
namespace {

namespace http = boost::beast::http;

/// Body type for Beast's parser that receives and discards the bytes. Memory does not grow with
/// what a client sends.
struct DiscardedBody {
  struct value_type {};  // NOLINT(readability-identifier-naming): Beast's names
  class reader {         // NOLINT(readability-identifier-naming)
   public:
    using error_code = boost::beast::error_code;
    template <bool is_request, class Fields>
    reader(http::header<is_request, Fields>&, value_type&) {}
    void init(const boost::optional<uint64_t>&, error_code& fault) { fault = {}; }
    template <class Buffers>
    size_t put(const Buffers& buffers, error_code& fault) {
      fault = {};
      return boost::beast::buffer_bytes(buffers);
    }
    void finish(error_code& fault) { fault = {}; }
  };
};

// A session lives as long as one of its asynchronous operations is pending: each callback holds a
// shared pointer. All callbacks run on the server's thread, so there are no locks.

/// One connection: reads a request, checks access, answers, and repeats. Begin with start().
class HttpSession : public std::enable_shared_from_this<HttpSession> {
 public:
  using error_code = boost::beast::error_code;
  using Clock = std::chrono::steady_clock;

  HttpSession(ByteStream stream, HttpClient client, HttpShared& shared)
      : client_(std::move(client)),
        stream_(std::move(stream)),
        buffer_(shared.options.header_limit_bytes + 8 * 1024),
        shared_(shared) {
    ++shared_.num_connections;
  }
  ~HttpSession() {
    note_request();
    --shared_.num_connections;
  }
  HttpSession(const HttpSession&) = delete;
  HttpSession& operator=(const HttpSession&) = delete;

  void start() {
    if (stream_.is_tls()) {
      note_silence();
      timed_socket().expires_after(time_limit());
      stream_.async_handshake([self = shared_from_this()](error_code fault) {
        if (fault) return self->on_handshake_fault(fault);
        self->read();
      });
    } else {
      read();
    }
  }

 private:
  static constexpr size_t kDrainLimitBytes =
      64 * 1024;  ///< read after a refusal, so that the client receives the answer
  static constexpr size_t kWorthPacking = 1024;  ///< a smaller body fits into one packet anyway
  static constexpr std::chrono::seconds kDrainTime{1};

  TimedSocket& timed_socket() { return stream_.timed_socket(); }
  Clock::duration time_limit() const {
    return std::chrono::duration_cast<Clock::duration>(
        std::chrono::duration<double>(shared_.options.timeout_s));
  }
  static HttpResponse plain(int status, std::string text) {
    return {status, "text/plain; charset=utf-8", std::move(text), "other"};
  }

  /// Marks the connection as waiting: until note_request() it may be closed for another one.
  void note_silence() {
    if (silence_) return;
    silence_ = shared_.silent.add(num_answers_ > 0, [this] {
      note_request();
      timed_socket().close();
      shared_.rejected(Rejection::kLimit);
    });
  }
  void note_request() {
    if (silence_) shared_.silent.remove(*silence_);
    silence_.reset();
  }

  void on_handshake_fault(error_code fault) {
    shared_.rejected(fault == boost::beast::error::timeout ? Rejection::kTimeout : Rejection::kTls);
  }

  /// Reads a request. The time limit covers the whole request, so a client that sends a byte per
  /// second is cut off too.
  void read() {
    parser_.emplace();
    parser_->header_limit(shared_.options.header_limit_bytes);
    parser_->body_limit(shared_.options.body_limit_bytes);
    note_silence();
    ends_at_ = Clock::now() + time_limit();
    timed_socket().expires_at(ends_at_);
    http::async_read_header(
        stream_, buffer_, *parser_,
        [self = shared_from_this()](error_code fault, size_t) { self->on_header(fault); });
  }

  void on_header(error_code fault) {
    start_ = Clock::now();
    note_request();
    if (fault) return on_read_fault(fault);
    const auto given = parser_->get()[http::field::authorization];
    timed_socket().expires_never();  // until the decision, which no client can delay
    shared_.access->ask({given.data(), given.size()}, client_.name,
                        [self = shared_from_this()](Access::Verdict verdict) {
                          // The answer may come from the password thread; continue on the server's
                          // thread.
                          boost::asio::dispatch(self->stream_.get_executor(),
                                                [self, verdict] { self->on_verdict(verdict); });
                        });
  }

  void on_verdict(Access::Verdict verdict) {
    if (verdict != Access::Verdict::kAllowed) {
      shared_.rejected(Rejection::kCredentials);
      return refuse(verdict == Access::Verdict::kDenied
                        ? plain(401, "this page needs a password or a token\n")
                        : plain(429, "too many password attempts: try again later\n"));
    }
    const http::verb method = parser_->get().method();
    const bool is_post = method == http::verb::post && shared_.options.post;
    if (!is_post && method != http::verb::get && method != http::verb::head)
      return refuse(plain(405, "only GET and HEAD are supported\n"));
    if (!is_post && !may_ask())
      return refuse(plain(421,
                          "the Host header must be localhost, this host's IP address or the name "
                          "in metrics.listen; any name is allowed with a token or a password\n"));
    if (is_post && !may_post())
      return refuse(plain(403,
                          "a POST needs the header X-Lockstep-Control: 1 and, without a token, "
                          "localhost or this host's IP address as its Host\n"));
    if (parser_->is_done()) return answer();
    constexpr std::chrono::seconds kAfterVerdict{1};  // the check may have used up all of the time
    timed_socket().expires_at(std::max(ends_at_, Clock::now() + kAfterVerdict));
    note_silence();  // a missing body is not a request
    http::async_read(stream_, buffer_, *parser_,
                     [self = shared_from_this()](error_code body_fault, size_t) {
                       self->note_request();
                       if (body_fault) return self->on_read_fault(body_fault);
                       self->answer();
                     });
  }

  /// True if the request may be answered. A browser sends the name in its address bar. A name that
  /// an attacker has pointed to this host (DNS rebinding) must not give his page access. Programs
  /// may send no name.
  bool may_ask() {
    const std::string_view host = text_of("Host");
    return client_.has_opened_a_file || shared_.access->asks() || host.empty() ||
           is_own_name(host, shared_.options.listen.host);
  }

  /// True if a POST may be carried out. A client with credentials, or with access to the socket
  /// file, is not a foreign web page.
  bool may_post() {
    const std::string_view control = text_of("X-Lockstep-Control");
    return client_.has_opened_a_file || shared_.access->asks()
               ? !control.empty()
               : comes_from_no_browser(control, text_of("Host"));
  }

  std::string_view text_of(const char* header) {
    const auto value = parser_->get()[header];
    return {value.data(), value.size()};
  }

  void on_read_fault(error_code fault) {
    if (fault == boost::beast::error::timeout) {
      // A client that keeps a connection open without a request has done nothing wrong.
      const bool idle_after_an_answer = num_answers_ > 0 && !parser_->got_some();
      if (!idle_after_an_answer) shared_.rejected(Rejection::kTimeout);
    } else if (fault == http::error::body_limit) {
      shared_.rejected(Rejection::kBody);
      refuse(plain(413, "the body is too large\n"));
    } else if (fault == http::error::header_limit || fault == http::error::buffer_overflow) {
      shared_.rejected(Rejection::kHeader);
      refuse(plain(431, "the header is too large\n"));
    } else if (fault != http::error::end_of_stream && fault != http::error::partial_message &&
               fault.category() == http::make_error_code(http::error::bad_method).category()) {
      shared_.rejected(Rejection::kHeader);
      refuse(plain(400, "this is not an HTTP request\n"));
    }  // otherwise the client is gone
  }

  /// Returns path and query. A client may put scheme and host before them, as for a proxy (RFC 9112
  /// 3.2.2).
  std::string_view target() const {
    const auto sent = parser_->get().target();
    const std::string_view whole(sent.data(), sent.size());
    const size_t host = whole.starts_with('/') ? std::string_view::npos : whole.find("://");
    if (host == std::string_view::npos) return whole;
    const size_t path = whole.find('/', host + 3);
    return path == std::string_view::npos ? "/" : whole.substr(path);
  }

  void answer() {
    const bool is_post = parser_->get().method() == http::verb::post;
    HttpResponse response;
    try {
      const HttpRequest request(target(), text_of("Accept"));
      if (!is_post && is_answered_later(request)) return;
      const HttpHandler& handler = is_post ? shared_.options.post : shared_.handler;
      response = handler(request);
    } catch (const std::exception& fault) {
      log::error("metrics", fmt::format("an HTTP request failed: {}", fault.what()));
      response = plain(500, "this page could not be created; see the log\n");
    }
    write(std::move(response), parser_->keep_alive());
  }

  bool is_answered_later(const HttpRequest& request) {
    if (shared_.options.later == nullptr) return false;
    timed_socket().expires_never();  // until the reply, which no client can delay
    return shared_.options.later->ask(request, [self = shared_from_this()](HttpResponse response) {
      boost::asio::post(self->stream_.get_executor(),
                        [self, response = std::move(response)]() mutable {
                          self->write(std::move(response), self->parser_->keep_alive());
                        });
    });
  }

  void refuse(HttpResponse response) { write(std::move(response), false); }

  void write(HttpResponse response, bool keep_alive) {
    route_ = std::move(response.route);
    message_.emplace(static_cast<http::status>(response.status), 11);
    set_fields(response);
    if (response.body.size() >= kWorthPacking) pack(&response.body);
    message_->content_length(response.body.size());
    message_->keep_alive(keep_alive);
    // The answer to HEAD has the length, but no body.
    if (parser_->get().method() != http::verb::head) message_->body() = std::move(response.body);
    tell_call();
    timed_socket().expires_after(time_limit());
    http::async_write(stream_, *message_,
                      [self = shared_from_this(), keep_alive](error_code fault, size_t) {
                        self->on_written(fault, keep_alive);
                      });
  }

  void tell_call() {
    if (shared_.observer == nullptr) return;
    const auto method = parser_->get().method_string();
    const auto target = parser_->get().target();
    shared_.observer->on_call({.method = {method.data(), method.size()},
                               .target = {target.data(), target.size()},
                               .client = client_.name,
                               .status = static_cast<int>(message_->result_int())});
  }

  void set_fields(const HttpResponse& response) {
    message_->set(http::field::content_type, response.content_type);
    message_->set(http::field::cache_control, "no-store");
    message_->set("X-Content-Type-Options", "nosniff");
    for (const auto& [name, value] : shared_.access->config().headers) message_->set(name, value);
    // Allows rank 0's page to read this answer with the user's credentials.
    if (!response.readable_from.empty()) {
      message_->set(http::field::access_control_allow_origin, response.readable_from);
      message_->set(http::field::access_control_allow_credentials, "true");
    }
    if (response.status == 401)
      message_->set(http::field::www_authenticate, shared_.access->wanted());
    if (response.status == 405) message_->set(http::field::allow, "GET, HEAD");
    if (response.status == 429) message_->set(http::field::retry_after, "1");
  }

  /// Compresses the body if the client accepts gzip.
  void pack(std::string* body) {
    message_->set(http::field::vary, "Accept, Accept-Encoding");
    const auto asked = parser_->get()[http::field::accept_encoding];
    if (!accepts_gzip({asked.data(), asked.size()})) return;
    *body = gzipped(*body);
    message_->set(http::field::content_encoding, "gzip");
  }

  void on_written(error_code fault, bool keep_alive) {
    // A client that is gone is not an error.
    if (fault == boost::beast::error::timeout) shared_.rejected(Rejection::kTimeout);
    if (fault) return;
    ++num_answers_;
    const double duration_s = std::chrono::duration<double>(Clock::now() - start_).count();
    if (shared_.observer != nullptr)
      shared_.observer->on_answer(route_, message_->result_int(), duration_s);
    message_.reset();
    if (keep_alive) return read();
    timed_socket().expires_after(kDrainTime);
    if (stream_.is_tls())
      stream_.async_shutdown([self = shared_from_this()](error_code) { self->close(); });
    else
      close();
  }

  void close() {
    error_code ignored;
    timed_socket().socket().shutdown(boost::asio::socket_base::shutdown_send, ignored);
    drain(0);
  }

  /// Reads and discards remaining bytes. Closing with unread bytes would reset the connection, and
  /// the client would lose the answer.
  void drain(size_t num_drained) {
    buffer_.clear();
    if (num_drained > kDrainLimitBytes) return;
    timed_socket().async_read_some(
        buffer_.prepare(8 * 1024),
        [self = shared_from_this(), num_drained](error_code fault, size_t num_bytes) {
          if (!fault) self->drain(num_drained + num_bytes);
        });
  }

  const HttpClient client_;
  ByteStream stream_;
  boost::beast::flat_buffer buffer_;
  HttpShared& shared_;
  Clock::time_point ends_at_;  ///< end of the time for the current request
  std::optional<http::request_parser<DiscardedBody>> parser_;
  std::optional<http::response<http::string_body>> message_;
  std::string route_;
  std::optional<SilentConnections::Place> silence_;
  Clock::time_point start_;
  int64_t num_answers_ = 0;
};

}  // namespace

void serve_connection(ByteStream stream, HttpClient client, HttpShared& shared) {
  std::make_shared<HttpSession>(std::move(stream), std::move(client), shared)->start();
}

}  // namespace lockstep::metrics
