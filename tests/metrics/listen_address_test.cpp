#include "metrics/http/listen_address.h"

#include <gtest/gtest.h>

namespace lockstep::metrics {
namespace listen_address_test {

TEST(ListenAddress, ReadsHostAndPort) {
  EXPECT_EQ(parse_listen_address("127.0.0.1:9464")->text(), "127.0.0.1:9464");
  EXPECT_EQ(parse_listen_address("node7.cluster:0")->port, 0);
  EXPECT_EQ(parse_listen_address(":9464")->host, "0.0.0.0");
}

TEST(ListenAddress, KeepsIPv6InBrackets) {
  const auto address = parse_listen_address("[::1]:80");
  ASSERT_TRUE(address);
  EXPECT_EQ(address->host, "::1");
  EXPECT_EQ(address->text(), "[::1]:80");
}

TEST(ListenAddress, RefusesOtherTexts) {
  for (const char* text : {"", "9464", "host", "host:", "host:port", "host:65536", "host:-1",
                           "host:+1", "::1:80", "[::1:80", "::1]:80", "[]:80", "a b:80",
                           "http://host:80", "host:80/metrics", "user@host:80"})
    EXPECT_FALSE(parse_listen_address(text)) << text;
}

TEST(ListenAddress, EachLocalRankTakesTheNextPort) {
  EXPECT_EQ(address_of_local_rank({"h", 9464}, 3).port, 9467);
  EXPECT_EQ(address_of_local_rank({"h", 0}, 3).port, 0);
  EXPECT_EQ(address_of_local_rank({"h", 65535}, 1).port, 0);
}

TEST(ListenAddress, OthersCallTheNodeWhereEveryInterfaceListens) {
  EXPECT_EQ(reachable_address({"0.0.0.0", 9464}, "n1"), "n1:9464");
  EXPECT_EQ(reachable_address({"::", 9464}, "n1"), "n1:9464");
  EXPECT_EQ(reachable_address({"127.0.0.1", 9464}, "n1"), "127.0.0.1:9464");
}

}  // namespace listen_address_test
}  // namespace lockstep::metrics
