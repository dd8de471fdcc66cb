#include "remote/credentials.h"

#include <gtest/gtest.h>

namespace lockstep::remote {
namespace signature_test {

// The key, the time and the requests of Amazon's page "Authenticating Requests: Using the
// Authorization Header", whose signatures stand below.
const Credentials kKey{"AKIAIOSFODNN7EXAMPLE", "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY", "", ""};
constexpr std::time_t kTime = 1369353600;  // 2013-05-24 00:00:00 UTC

std::string signature_of(Request request) {
  request.headers["host"] = "examplebucket.s3.amazonaws.com";
  sign({.credentials = kKey, .region = "us-east-1"}, kTime, &request);
  const std::string& text = request.headers["authorization"];
  return text.substr(text.rfind('=') + 1);
}

}  // namespace signature_test

TEST(Signature, IsThatOfAmazonsExamples) {
  EXPECT_EQ(
      signature_test::signature_of({.path = "/test.txt", .headers = {{"range", "bytes=0-9"}}}),
      "f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41");
  EXPECT_EQ(
      signature_test::signature_of({.path = "/", .query = {{"max-keys", "2"}, {"prefix", "J"}}}),
      "34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7");
}

TEST(Signature, EncodesPathAndQueryOnce) {
  const Request request{.origin = "http://h", .path = "/a b/%+~", .query = {{"prefix", "x/é"}}};
  EXPECT_EQ(request.url(), "http://h/a%20b/%25%2B~?prefix=x%2F%C3%A9");
}

TEST(Signature, IsLeftOutWithoutAKey) {
  Request request{.path = "/"};
  sign({}, signature_test::kTime, &request);
  EXPECT_TRUE(request.headers.empty());
}

}  // namespace lockstep::remote
