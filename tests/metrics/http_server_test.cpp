#include "metrics/http/http_server.h"

#include <cstdio>
#include <fstream>
#include <memory>
#include <stdexcept>
#include <vector>

#include <sys/resource.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "counting_observer.h"
#include "http_client.h"
#include "metrics/http/access.h"
#include "temporary_folder.h"
#include "tests/support/patience.h"

namespace lockstep::metrics {
namespace http_server_test {

using ::testing::HasSubstr;
using ::testing::StartsWith;
using tests::Connection;
using tests::CountingObserver;
using tests::get;

HttpOptions any_port() { return {.listen = {"127.0.0.1", 0}}; }

HttpResponse echo(std::string_view target) {
  if (target == "/throw") throw std::runtime_error("a secret");
  return {200, "text/plain", "you asked for " + std::string(target) + "\n", "/echo"};
}

ExitCode code_of(const HttpOptions& options) {
  try {
    const HttpServer server(options, echo, nullptr);
  } catch (const Error& error) {
    return error.code();
  }
  return ExitCode::kDone;
}

class HttpServerTest : public ::testing::Test {
 protected:
  CountingObserver observer;
  const HttpServer server{any_port(), echo, &observer};
  const uint16_t port = server.address().port;
};

TEST_F(HttpServerTest, AnswersAGet) {
  const std::string answer = get(port, "/a?b=c");
  EXPECT_THAT(answer, StartsWith("HTTP/1.1 200 OK\r\n"));
  EXPECT_THAT(answer, HasSubstr("Content-Type: text/plain\r\n"));
  EXPECT_THAT(answer, HasSubstr("\r\n\r\nyou asked for /a?b=c\n"));
  EXPECT_EQ(observer.answers("/echo 200"), 1);
  EXPECT_EQ(observer.answers("negative duration"), 0);
}

/// The body of an answer to a GET with these header lines.
std::string body_of(uint16_t port, const std::string& target, const std::string& headers) {
  Connection connection(port);
  connection.send("GET " + target + " HTTP/1.1\r\nHost: localhost\r\n" + headers + "\r\n");
  const std::string answer = connection.read_answer();
  return answer.substr(answer.find("\r\n\r\n") + 4);
}

TEST_F(HttpServerTest, PacksALargeBodyForWhoAsks) {
  const std::string large = "/" + std::string(4000, 'x');
  const std::string plain = body_of(port, large, "");
  EXPECT_THAT(plain, HasSubstr(large));
  EXPECT_EQ(body_of(port, large, "Accept-Encoding: gzip;q=0\r\n"), plain);
  const std::string packed = body_of(port, large, "Accept-Encoding: deflate, gzip\r\n");
  EXPECT_LT(packed.size(), 200u);
  EXPECT_EQ(packed, gzipped(plain));
  EXPECT_THAT(body_of(port, "/small", "Accept-Encoding: gzip\r\n"), HasSubstr("/small"));
}

TEST(Gzip, IsWhatTheProgramOfThatNameReads) {
  const std::string text = "lockstep_step 1\n" + std::string(100000, 'x') + std::string("\0\n", 2);
  const tests::TemporaryFolder folder;
  const std::string file = folder.path() / "page.gz";
  for (const std::string& one : {text, std::string()}) {
    std::ofstream(file) << gzipped(one);
    std::FILE* pipe = ::popen(("gzip -dc " + file).c_str(), "r");
    std::string read(one.size() + 1, '\0');
    read.resize(std::fread(read.data(), 1, read.size(), pipe));
    EXPECT_EQ(::pclose(pipe), 0);
    EXPECT_EQ(read, one);
  }
}

TEST(Gzip, IsTakenByWhoSaysSo) {
  for (const char* yes :
       {"gzip", "deflate, gzip;q=0.5", "GZIP", "*", "br;q=1, *;q=0.1", "identity,gzip"})
    EXPECT_TRUE(accepts_gzip(yes)) << yes;
  for (const char* no :
       {"", "identity", "gzip;q=0", "gzip;q=0.000", "*;q=0", "gzip;q=0, *", "xgzip", ";;;,,"})
    EXPECT_FALSE(accepts_gzip(no)) << no;
}

TEST_F(HttpServerTest, KeepsAConnectionForManyRequests) {
  Connection connection(port);
  for (int i = 0; i < 3; ++i) {
    ASSERT_TRUE(connection.send("GET /x HTTP/1.1\r\nHost: localhost\r\n\r\n"));
    EXPECT_THAT(connection.read_answer(), HasSubstr("you asked for /x"));
  }
}

TEST_F(HttpServerTest, AnswersPipelinedRequestsInOrder) {
  Connection connection(port);
  connection.send(
      "GET /1 HTTP/1.1\r\nHost: localhost\r\n\r\nGET /2 HTTP/1.1\r\nHost: localhost\r\n\r\n");
  EXPECT_THAT(connection.read_answer(), HasSubstr("you asked for /1"));
  EXPECT_THAT(connection.read_answer(), HasSubstr("you asked for /2"));
}

TEST_F(HttpServerTest, HeadHasTheLengthAndNoBody) {
  Connection connection(port);
  connection.send("HEAD /x HTTP/1.1\r\nHost: localhost\r\n\r\n");
  const std::string answer = connection.read_answer(false);
  EXPECT_THAT(answer, HasSubstr("Content-Length: 17\r\n"));
  connection.send("GET /y HTTP/1.1\r\nHost: localhost\r\n\r\n");
  EXPECT_THAT(connection.read_answer(), StartsWith("HTTP/1.1 200 OK\r\n"))
      << "the body of HEAD would stand here";
}

TEST_F(HttpServerTest, ABodyOfAGetIsReadAndThrownAway) {
  Connection connection(port);
  connection.send("GET /x HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\n\r\nhello");
  EXPECT_THAT(connection.read_answer(), HasSubstr("200 OK"));
  connection.send(
      "GET /y HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: "
      "chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n");
  EXPECT_THAT(connection.read_answer(), HasSubstr("you asked for /y"));
}

TEST_F(HttpServerTest, OtherMethodsAreRefused) {
  for (const char* method : {"POST", "PUT", "DELETE", "OPTIONS", "BREW"}) {
    Connection connection(port);
    connection.send(std::string(method) +
                    " /x HTTP/1.1\r\nHost: localhost\r\nContent-Length: 3\r\n\r\nabc");
    const std::string answer = connection.read_to_end();
    EXPECT_THAT(answer, StartsWith("HTTP/1.1 405 ")) << method;
    EXPECT_THAT(answer, HasSubstr("Allow: GET, HEAD\r\n"));
  }
  EXPECT_EQ(observer.answers("other 405"), 5);
}

TEST_F(HttpServerTest, WhatIsNotHttpIsRefused) {
  Connection connection(port);
  connection.send("hello there\r\n\r\n");
  EXPECT_THAT(connection.read_to_end(), StartsWith("HTTP/1.1 400 "));
  EXPECT_TRUE(observer.sees(Rejection::kHeader, 1));
}

TEST_F(HttpServerTest, AThrowingHandlerGivesA500WithoutItsText) {
  const std::string answer = get(port, "/throw");
  EXPECT_THAT(answer, StartsWith("HTTP/1.1 500 "));
  EXPECT_THAT(answer, ::testing::Not(HasSubstr("secret")));
  EXPECT_THAT(get(port, "/x"), HasSubstr("200 OK"));
}

TEST_F(HttpServerTest, ATakenPortIsAnErrorOrGivesAnother) {
  HttpOptions options{.listen = server.address()};
  EXPECT_EQ(code_of(options), ExitCode::kCannotCreate);
  options.fall_back_to_any_port = true;
  const HttpServer other(options, echo, nullptr);
  EXPECT_NE(other.address().port, port);
  EXPECT_NE(other.address().port, 0);
  EXPECT_THAT(get(other.address().port, "/x"), HasSubstr("200 OK"));
}

TEST(HttpServer, BadAddressesAreErrors) {
  EXPECT_EQ(code_of({.listen = {"no such host.invalid", 0}}), ExitCode::kConfig);
  const tests::TemporaryFolder folder;
  const std::string token = (folder.path() / "token").string();
  std::ofstream(token) << "a-token-of-24-characters";
  EXPECT_EQ(
      code_of({.listen = {"203.0.113.7", 0}, .access = {.web_config = "", .token_file = token}}),
      ExitCode::kCannotCreate)
      << "not an address of this host";
}

TEST(HttpServer, APortIsFreeAgainAtOnce) {
  uint16_t port = 0;
  {
    const HttpServer server(any_port(), echo, nullptr);
    port = server.address().port;
    get(port, "/x");
  }
  EXPECT_EQ(code_of({.listen = {"127.0.0.1", port}}), ExitCode::kDone);
}

TEST(HttpServer, EndsAtOnceWithSlowConnectionsOpen) {
  auto server = std::make_unique<HttpServer>(any_port(), echo, nullptr);
  Connection idle(server->address().port), half(server->address().port);
  half.send("GET /x HT");
  get(server->address().port, "/x");
  const tests::Patience patience(1);
  server.reset();
  EXPECT_TRUE(patience.is_kept());
  EXPECT_TRUE(idle.is_closed());
  EXPECT_TRUE(half.is_closed());
}

/// An answer that stays in the server while its client does not read.
HttpResponse huge(std::string_view) {
  return {200, "text/plain", std::string(64 << 20, 'x'), "/x"};
}

TEST(HttpServer, ConnectionsBeyondTheLimitAreTurnedAwayAndPlacesComeBack) {
  CountingObserver observer;
  HttpOptions options = any_port();
  options.max_connections = 2;
  const HttpServer server(
      options,
      [](std::string_view target) { return target == "/huge" ? huge(target) : echo(target); },
      &observer);
  const uint16_t port = server.address().port;
  {
    Connection first(port), second(port);
    for (Connection* const one : {&first, &second}) {
      one->send("GET /huge HTTP/1.1\r\nHost: localhost\r\n\r\n");
      EXPECT_TRUE(one->has_something()) << "its answer has begun";
    }
    EXPECT_THAT(Connection(port).read_to_end(), StartsWith("HTTP/1.1 503 "));
    EXPECT_TRUE(observer.sees(Rejection::kLimit, 1));
  }
  EXPECT_TRUE(
      tests::comes_true([&] { return get(port, "/x").find("200 OK") != std::string::npos; }));
}

TEST(HttpServer, HalfOfTheDescriptorsStayWithTraining) {
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  const rlimit few{.rlim_cur = 40, .rlim_max = before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &few), 0);
  CountingObserver observer;
  const HttpServer server(any_port(), echo, &observer);
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);  // what the clients open is not the server's
  std::vector<std::unique_ptr<Connection>> idle;
  for (int i = 0; i < 25; ++i) idle.push_back(std::make_unique<Connection>(server.address().port));
  EXPECT_TRUE(observer.sees(Rejection::kLimit, 5));
  for (int i = 0; i < 5; ++i) EXPECT_TRUE(idle[static_cast<size_t>(i)]->is_closed()) << i;
}

TEST(HttpServer, SilentConnectionsShutNobodyOut) {
  CountingObserver observer;
  HttpOptions options = any_port();
  options.max_connections = 8;
  options.timeout_s = 3600;
  const HttpServer server(options, echo, &observer);
  const uint16_t port = server.address().port;
  std::vector<std::unique_ptr<Connection>> silent;
  for (int round = 0; round < 20; ++round) {
    for (int i = 0; i < 8; ++i) {
      silent.push_back(std::make_unique<Connection>(port));
      if (i % 3 == 1) silent.back()->send("GET / HTTP/1.1\r\nHo");  // half a request is none
      if (i % 3 == 2)
        silent.back()->send("GET / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n");
    }
    EXPECT_THAT(get(port, "/x"), HasSubstr("200 OK"));
  }
  EXPECT_TRUE(silent.front()->is_closed()) << "the one that was silent longest";
}

TEST(HttpServer, AConnectionThatHasAskedStaysLongerThanSilentOnes) {
  CountingObserver observer;
  HttpOptions options = any_port();
  options.max_connections = 4;
  options.timeout_s = 3600;
  const HttpServer server(options, echo, &observer);
  const uint16_t port = server.address().port;
  Connection kept(port);
  std::vector<std::unique_ptr<Connection>> silent;
  for (int round = 0; round < 10; ++round) {
    kept.send("GET /x HTTP/1.1\r\nHost: localhost\r\n\r\n");
    EXPECT_THAT(kept.read_answer(), HasSubstr("200 OK")) << round;
    for (int i = 0; i < 4; ++i) silent.push_back(std::make_unique<Connection>(port));
    EXPECT_TRUE(observer.sees(Rejection::kLimit, 4 * round + 1));
  }
}

TEST_F(HttpServerTest, AnswersUnderItsOwnNamesAlone) {
  const auto ask = [&](const std::string& host) {
    Connection connection(port);
    connection.send("GET /x HTTP/1.1\r\n" + host + "Connection: close\r\n\r\n");
    return connection.read_to_end();
  };
  for (const char* host : {"localhost", "LocalHost:9464", "127.0.0.1", "127.0.0.1:9464",
                           "[::1]:9464", "10.0.0.7:9464"})
    EXPECT_THAT(ask(std::string("Host: ") + host + "\r\n"), HasSubstr("200 OK")) << host;
  EXPECT_THAT(ask(""), HasSubstr("200 OK")) << "no browser";
  for (const char* host : {"evil.example", "evil.example:9464", "localhost.evil.example",
                           "127.0.0.1.evil.example", "a b", "@"})
    EXPECT_THAT(ask(std::string("Host: ") + host + "\r\n"), HasSubstr("421 ")) << host;
}

TEST(HttpServer, AnswersUnderTheNameThatItListensAt) {
  EXPECT_TRUE(is_own_name("n7.cluster:9464", "n7.cluster"));
  EXPECT_FALSE(is_own_name("n8.cluster:9464", "n7.cluster"));
}

}  // namespace http_server_test
}  // namespace lockstep::metrics
