// Access control: which clients are admitted, and that clients that retry endlessly do not affect
// others.
#include "metrics/http/access.h"

#include <atomic>
#include <chrono>
#include <fstream>
#include <thread>
#include <vector>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "counting_observer.h"
#include "http_client.h"
#include "metrics/http/http_server.h"
#include "metrics/http/password_checker.h"
#include "temporary_folder.h"
#include "tests/support/patience.h"

namespace lockstep::metrics {
namespace http_access_test {

using ::testing::AnyOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;
using tests::Connection;
using tests::CountingObserver;

constexpr const char* kHash = "$2a$05$CCCCCCCCCCCCCCCCCCCCC.E5YPO9kmyuRGyh0XouQYb4YMJKvyOeW";
constexpr const char* kToken = "a-token-of-24-characters";
constexpr const char* kAda = "Basic YWRhOlUqVQ==";       // ada:U*U
constexpr const char* kNobody = "Basic Ym9iOlUqVQ==";    // bob:U*U
constexpr const char* kAdaWrong = "Basic YWRhOlUqVg==";  // ada:U*V

HttpResponse secret(std::string_view) { return {200, "text/plain", "a secret\n", "/echo"}; }

class HttpAccessTest : public ::testing::Test {
 protected:
  HttpAccessTest() {
    std::ofstream(folder.path() / "token") << kToken << "\n";
    std::ofstream(folder.path() / "web.yml") << "basic_auth_users: {ada: \"" << kHash << "\"}\n"
                                             << "http_server_config: {headers: {X-Frame-Options: "
                                                "deny}}\n";
  }
  AccessOptions with_token() const {
    return {.web_config = "", .token_file = (folder.path() / "token").string()};
  }
  AccessOptions with_users() const {
    return {.web_config = (folder.path() / "web.yml").string(), .token_file = ""};
  }
  static HttpOptions any_port(const AccessOptions& access) {
    return {.listen = {"127.0.0.1", 0}, .access = access};
  }

  const tests::TemporaryFolder folder;
  CountingObserver observer;
};

std::string ask(const HttpServer& server, const std::string& authorization) {
  Connection connection(server.address().port);
  connection.send("GET /x HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n" +
                  (authorization.empty() ? "" : "Authorization: " + authorization + "\r\n") +
                  "\r\n");
  return connection.read_to_end();
}

TEST_F(HttpAccessTest, ATokenOpensAndNothingElse) {
  const HttpServer server(any_port(with_token()), secret, &observer);
  const std::string token = kToken;
  EXPECT_THAT(ask(server, "Bearer " + token), HasSubstr("a secret"));
  EXPECT_THAT(ask(server, "bearer " + token), HasSubstr("a secret"));
  const std::vector<std::string> wrong = {"",
                                          token,
                                          "Bearer",
                                          "Bearer ",
                                          "Bearer " + token + "x",
                                          "Bearer " + token.substr(0, 23),
                                          "Bearer " + std::string(token.size(), 'x'),
                                          "Basic " + token,
                                          kAda};
  for (const std::string& one : wrong) {
    const std::string answer = ask(server, one);
    EXPECT_THAT(answer, StartsWith("HTTP/1.1 401 ")) << one;
    EXPECT_THAT(answer, HasSubstr("WWW-Authenticate: Bearer realm=\"lockstep\"\r\n")) << one;
    EXPECT_THAT(answer, Not(HasSubstr("a secret"))) << one;
  }
  EXPECT_TRUE(observer.sees(Rejection::kCredentials, static_cast<int>(wrong.size())));
}

TEST_F(HttpAccessTest, APasswordOpensAndNothingElse) {
  const HttpServer server(any_port(with_users()), secret, &observer);
  EXPECT_THAT(ask(server, kAda), HasSubstr("a secret"));
  EXPECT_THAT(ask(server, kAda), HasSubstr("X-Frame-Options: deny\r\n"));
  for (const char* wrong : {"", kNobody, kAdaWrong, "Basic YWRh", "Basic",
                            "Basic ====", "Basic YWRhOlUqVQ", "Basic !!!!", "Bearer U*U"}) {
    const std::string answer = ask(server, wrong);
    EXPECT_THAT(answer, AnyOf(StartsWith("HTTP/1.1 401 "), StartsWith("HTTP/1.1 429 "))) << wrong;
    EXPECT_THAT(answer, Not(HasSubstr("a secret"))) << wrong;
  }
  EXPECT_THAT(ask(server, ""), HasSubstr("WWW-Authenticate: Basic realm=\"lockstep\""));
}

TEST_F(HttpAccessTest, EachRequestOfAConnectionIsJudged) {
  const HttpServer server(any_port(with_token()), secret, &observer);
  Connection connection(server.address().port);
  connection.send("GET /x HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer " +
                  std::string(kToken) + "\r\n\r\n");
  EXPECT_THAT(connection.read_answer(), HasSubstr("a secret"));
  connection.send("GET /x HTTP/1.1\r\nHost: localhost\r\n\r\n");
  EXPECT_THAT(connection.read_answer(), StartsWith("HTTP/1.1 401 "));
}

TEST_F(HttpAccessTest, NoneOfAThousandTriesIsTaken) {
  AccessOptions both = with_users();
  both.token_file = with_token().token_file;
  const HttpServer server(any_port(both), secret, &observer);
  int num_denied = 0;
  for (int i = 0; i < 1000; ++i) {
    const std::string tried = i % 2 == 0 ? kAdaWrong : fmt::format("Bearer {:024d}", i);
    const std::string answer = ask(server, tried);
    num_denied += answer.starts_with("HTTP/1.1 401 ") || answer.starts_with("HTTP/1.1 429 ");
  }
  EXPECT_EQ(num_denied, 1000);
}

TEST_F(HttpAccessTest, AFloodOfPasswordsDelaysNobodyWhoIsKnown) {
  std::string costly = kHash;
  costly.replace(4, 2, "12");  // some 0.2 s of a core each
  std::ofstream(folder.path() / "web.yml")
      << "basic_auth_users: {ada: \"" << kHash << "\", eve: \"" << costly << "\"}\n";
  const HttpServer server(any_port(with_users()), secret, &observer);
  EXPECT_THAT(ask(server, kAda), HasSubstr("a secret"));  // is known from now on
  std::atomic<bool> stop = false;
  std::atomic<int> num_tries = 0, num_compared = 0;
  std::vector<std::jthread> clients;
  for (int i = 0; i < 16; ++i)
    clients.emplace_back([&] {
      while (!stop) {
        const std::string answer = ask(server, "Basic ZXZlOmV2ZQ==");  // eve:eve
        EXPECT_THAT(answer, Not(HasSubstr("a secret")));
        ++num_tries;
        num_compared += answer.starts_with("HTTP/1.1 401 ");
      }
    });
  int num_quick = 0;
  const auto asks = [&] {
    const auto asked = std::chrono::steady_clock::now();
    EXPECT_THAT(ask(server, kAda), HasSubstr("a secret"));
    num_quick += tests::seconds_since(asked) < 1;
    return num_quick > 50 && num_tries > 500;
  };
  EXPECT_TRUE(tests::comes_true(asks)) << num_quick << " quick answers, " << num_tries << " tries";
  stop = true;
  clients.clear();
  EXPECT_LT(num_compared, num_tries / 10) << "the others were sent away";
}

TEST(PasswordChecker, TakesOneTryOfEachClientAndBoundsWhatWaits) {
  PasswordChecker checker(std::map<std::string, std::string>{{"ada", kHash}});
  std::atomic<bool> go = false;
  std::atomic<int> num_right = 0;
  const auto wait = [&](bool is_right) {
    num_right += is_right;
    go.wait(false);
  };
  EXPECT_TRUE(checker.check("10.0.0.1", "ada", "U*U", wait));
  EXPECT_FALSE(checker.check("10.0.0.1", "ada", "U*U", wait)) << "one of each client";
  size_t num_taken = 1;
  for (int i = 2; i < 40; ++i)
    num_taken += checker.check("10.0.0." + std::to_string(i), "ada", "U*U", wait);
  EXPECT_GE(num_taken, PasswordChecker::kMaxWaiting);
  EXPECT_LE(num_taken, PasswordChecker::kMaxWaiting + 1);  // one may be looked at already
  go = true;
  go.notify_all();
  while (num_right < static_cast<int>(num_taken)) std::this_thread::yield();
}

TEST(PasswordChecker, EndsWithTriesWaiting) {
  auto owned = std::make_shared<int>(1);
  PasswordChecker checker(std::map<std::string, std::string>{{"ada", kHash}});
  for (int i = 0; i < 10; ++i) checker.check(std::to_string(i), "ada", "wrong", [owned](bool) {});
  checker.stop();
  EXPECT_EQ(owned.use_count(), 1) << "what waited was dropped";
}

TEST_F(HttpAccessTest, WhatOthersReachNeedsProtection) {
  const auto code_of = [](const HttpOptions& options) {
    try {
      const HttpServer server(options, secret, nullptr);
    } catch (const Error& error) {
      if (error.code() == ExitCode::kConfig) {
        EXPECT_THAT(error.what(), HasSubstr("name a token_file"));
      }
      return error.code();
    }
    return ExitCode::kDone;
  };
  EXPECT_EQ(code_of({.listen = {"0.0.0.0", 0}}), ExitCode::kConfig);
  EXPECT_EQ(code_of({.listen = {"::", 0}}), ExitCode::kConfig);
  EXPECT_EQ(code_of({.listen = {"localhost", 0}}), ExitCode::kDone);
  EXPECT_EQ(code_of({.listen = {"127.8.9.10", 0}}), ExitCode::kDone);
  EXPECT_EQ(code_of({.listen = {"0.0.0.0", 0}, .access = with_token()}), ExitCode::kDone);
  EXPECT_EQ(code_of({.listen = {"0.0.0.0", 0}, .access = with_users()}), ExitCode::kDone);
  std::ofstream(folder.path() / "web.yml") << "http_server_config: {http2: false}\n";
  EXPECT_EQ(code_of({.listen = {"0.0.0.0", 0}, .access = with_users()}), ExitCode::kConfig)
      << "a web config that protects nothing";
  const auto protects = [&](const std::string& client_auth) {
    std::ofstream(folder.path() / "web.yml")
        << "tls_server_config: {cert_file: a, key_file: b, " << client_auth << "}\n";
    return Access(with_users()).protects();
  };
  EXPECT_FALSE(protects("client_auth_type: NoClientCert")) << "TLS hides nothing from who asks";
  EXPECT_TRUE(protects("client_ca_file: c, client_auth_type: RequireAndVerifyClientCert"));
}

TEST_F(HttpAccessTest, TokensThatCanBeGuessedAreRefused) {
  const std::string too_long(4097, 'x');  // no request could carry it
  for (const std::string& weak :
       {std::string(), std::string("short"), std::string("two words of a token"),
        std::string("fifteen-letters"), too_long}) {
    std::ofstream(folder.path() / "token") << weak;
    try {
      const Access access(with_token());
      ADD_FAILURE() << weak;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::kConfig);
      EXPECT_THAT(error.what(), HasSubstr("one line of 16 to 4096"));
    }
  }
}

}  // namespace http_access_test
}  // namespace lockstep::metrics
