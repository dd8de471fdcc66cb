#include "remote/http.h"

#include <gtest/gtest.h>

namespace lockstep::remote {

// Codes of curl/curl.h, which this test does not see.
TEST(Http, WhatAConnectionLosesIsTriedAgainAndWhatIsWrongIsNot) {
  constexpr int kRefusedHost = 7, kHttp2 = 16, kNothing = 52, kReceive = 56, kHttp2Stream = 92;
  for (const int code : {kRefusedHost, kHttp2, kNothing, kReceive, kHttp2Stream})
    EXPECT_TRUE(is_passing_fault(code)) << code;
  constexpr int kNoFault = 0, kUrl = 3, kWrite = 23, kCertificate = 60;
  for (const int code : {kNoFault, kUrl, kWrite, kCertificate})
    EXPECT_FALSE(is_passing_fault(code)) << code;
}

}  // namespace lockstep::remote
