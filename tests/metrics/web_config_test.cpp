#include "metrics/http/access.h"

#include <fstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "metrics/http/password_checker.h"
#include "temporary_folder.h"

namespace lockstep::metrics {
namespace web_config_test {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pair;

// Vectors of crypt_blowfish (Openwall): the password is "U*U".
constexpr const char* kHash = "$2a$05$CCCCCCCCCCCCCCCCCCCCC.E5YPO9kmyuRGyh0XouQYb4YMJKvyOeW";

class WebConfigTest : public ::testing::Test {
 protected:
  WebConfig read(const std::string& text) const {
    std::ofstream(path()) << text;
    return read_web_config(path());
  }
  std::string fault(const std::string& text) const {
    try {
      (void)read(text);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::kConfig);
      return error.what();
    }
    return "";
  }
  std::string path() const { return (folder.path() / "web.yml").string(); }

  const tests::TemporaryFolder folder;
};

TEST_F(WebConfigTest, ReadsEverySection) {
  const WebConfig config = read(
      "tls_server_config: {cert_file: server.crt, key_file: /keys/server.key, client_ca_file: "
      "ca.crt,\n"
      "  client_auth_type: RequireAndVerifyClientCert, client_allowed_sans: [prometheus.lan],\n"
      "  min_version: TLS13, max_version: TLS13}\n"
      "http_server_config: {http2: false, headers: {X-Frame-Options: deny}}\n"
      "basic_auth_users:\n  ada: " +
      std::string(kHash) + "\n");
  ASSERT_TRUE(config.tls);
  EXPECT_EQ(config.tls->cert_file, (folder.path() / "server.crt").string());
  EXPECT_EQ(config.tls->key_file, "/keys/server.key");
  EXPECT_EQ(config.tls->client_ca_file, (folder.path() / "ca.crt").string());
  EXPECT_THAT(config.tls->client_allowed_sans, ElementsAre("prometheus.lan"));
  EXPECT_EQ(config.tls->min_version, "TLS13");
  EXPECT_THAT(config.headers, ElementsAre(Pair("X-Frame-Options", "deny")));
  EXPECT_THAT(config.hash_by_user, ElementsAre(Pair("ada", kHash)));
}

TEST_F(WebConfigTest, AbsentKeysKeepWhatExportersDo) {
  const WebConfig config = read("tls_server_config: {cert_file: a, key_file: b}\n");
  EXPECT_EQ(config.tls->client_auth_type, "NoClientCert");
  EXPECT_EQ(config.tls->min_version, "TLS12");
  EXPECT_EQ(config.tls->max_version, "TLS13");
  EXPECT_TRUE(config.hash_by_user.empty());
  EXPECT_TRUE(config.headers.empty());
}

TEST_F(WebConfigTest, FaultsNameThePlaceAndWhatToDo) {
  EXPECT_THAT(fault("tls_server_config: {cert_file: a}\n"), HasSubstr("key_file"));
  EXPECT_THAT(fault("tls_server_confg: {}\n"), HasSubstr("did you mean 'tls_server_config'"));
  EXPECT_THAT(fault("tls_server_config: {cert_file: a, key_file: b, min_version: SSL3}\n"),
              HasSubstr("must be one of TLS10"));
  EXPECT_THAT(fault("tls_server_config: {cert_file: a, key_file: b, min_version: TLS13,\n"
                    "  max_version: TLS12}\n"),
              HasSubstr("'min_version' TLS13 is above"));
  EXPECT_THAT(
      fault("tls_server_config: {cert_file: a, key_file: b,\n"
            "  client_auth_type: RequireAndVerifyClientCert}\n"),
      HasSubstr("web.yml:2:21: error: 'RequireAndVerifyClientCert' needs 'client_ca_file'"));
  EXPECT_THAT(fault("tls_server_config: {cert_file: a, key_file: b, client_ca_file: c}\n"),
              HasSubstr("is ignored"));
  EXPECT_THAT(fault("tls_server_config: {cert_file: a, key_file: b, client_allowed_sans: [c]}\n"),
              HasSubstr("needs client_auth_type"));
  EXPECT_THAT(fault("http_server_config: {headers: {X-Frame-Options: \"a\\nSet-Cookie: b\"}}\n"),
              HasSubstr("must be one line"));
  EXPECT_THAT(fault("basic_auth_users: ada\n"), HasSubstr("must be a map"));
  EXPECT_THAT(fault("basic_auth_users: {ada: secret}\n"),
              HasSubstr("web.yml:1:25: error: the password of 'ada' is not a bcrypt hash"));
  EXPECT_THAT(fault("basic_auth_users: {\"a:b\": \"" + std::string(kHash) + "\"}\n"),
              HasSubstr("no colon"));
}

TEST_F(WebConfigTest, AFileThatIsNotThereIsMissing) {
  try {
    (void)read_web_config((folder.path() / "none.yml").string());
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::kInputMissing);
  }
}

TEST(Bcrypt, KnowsThePublishedVectors) {
  EXPECT_TRUE(has_bcrypt_hash("U*U", kHash));
  EXPECT_FALSE(has_bcrypt_hash("U*V", kHash));
  EXPECT_FALSE(has_bcrypt_hash("", kHash));
  EXPECT_TRUE(has_bcrypt_hash("", "$2a$05$CCCCCCCCCCCCCCCCCCCCC.7uG0VCzI2bS7j6ymqJi9CdcdxiRTWNy"));
  std::string newer = kHash;
  newer[2] = 'y';  // what htpasswd writes: the same for plain letters
  EXPECT_TRUE(has_bcrypt_hash("U*U", newer));
  newer[2] = 'b';
  EXPECT_TRUE(has_bcrypt_hash("U*U", newer));
}

TEST(Bcrypt, DoesNotCutPasswords) {
  const std::string long_one(72, 'x');
  EXPECT_FALSE(has_bcrypt_hash(std::string("U*U\0more", 8), kHash));
  EXPECT_FALSE(has_bcrypt_hash(long_one + "y", kHash));
}

TEST(Bcrypt, RefusesOtherHashesAndCostsThatStopTheServer) {
  EXPECT_EQ(fault_of_bcrypt_hash(kHash), "");
  for (const char* wrong : {"", "secret", "$1$abc$def", "$5$salt$hash", "$2b$05$short",
                            "$2x$05$CCCCCCCCCCCCCCCCCCCCC.E5YPO9kmyuRGyh0XouQYb4YMJKvyOeW",
                            "$2a$ 5$CCCCCCCCCCCCCCCCCCCCC.E5YPO9kmyuRGyh0XouQYb4YMJKvyOeW"})
    EXPECT_THAT(fault_of_bcrypt_hash(wrong), HasSubstr("is not a bcrypt hash")) << wrong;
  std::string costly = kHash;
  costly.replace(4, 2, "31");
  EXPECT_THAT(fault_of_bcrypt_hash(costly), HasSubstr("has the cost 31"));
}

}  // namespace web_config_test
}  // namespace lockstep::metrics
