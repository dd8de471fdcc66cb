#include "base/tensors/name_scopes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"

namespace lockstep {
namespace name_scopes_test {

using ::testing::HasSubstr;

NameScopes read(const std::string& value, std::string* faults_text) {
  Diagnostics faults;
  YamlDocument document = YamlDocument::parse("run.yaml", "{scopes: " + value + "}", &faults);
  ConfigReader in(document.root(), "section", document, &faults);
  NameScopes scopes = NameScopes::read(&in, "scopes", "help");
  *faults_text = faults.empty() ? "" : faults.text();
  return scopes;
}

TEST(NameScopes, AreListsOrTextsWithCommas) {
  std::string faults;
  for (const char* value : {"[a/b, c]", "'a/b,c'", "'a/b , c'", "['a/b, c']"}) {
    EXPECT_EQ(read(value, &faults).text(), "a/b, c") << value;
    EXPECT_EQ(faults, "");
  }
  EXPECT_TRUE(read("[]", &faults).empty());
  for (const char* value : {"''", "'a,,b'", "[a, '']", "'/'", "'a,'"}) {
    read(value, &faults);
    EXPECT_THAT(faults, HasSubstr("'section.scopes' contains an empty scope")) << value;
  }
}

TEST(NameScopes, AreBeginningsOfNamesAndWithASlashWholeParts) {
  const NameScopes scopes({"blocks.1", "head/weight", "model/tail/", "neck."});
  for (const char* name :
       {"blocks.1", "blocks.1.conv.weight", "blocks/1/conv/bias", "model/blocks/1/conv/bias",
        "blocks.10.conv.weight", "head.weight", "head.weights", "tail.bias", "neck.bias"})
    EXPECT_TRUE(scopes.cover(name)) << name;
  for (const char* name :
       {"blocks", "head.bias", "tail", "tails.bias", "necks.bias", "a.head.weight"})
    EXPECT_FALSE(scopes.cover(name)) << name;
  EXPECT_FALSE(NameScopes().cover("head.bias"));
}

TEST(NameScopes, WhatMatchesNothingIsAnErrorWithNearNames) {
  const std::vector<std::string> names = {"blocks.0.conv.weight", "head.weight"};
  NameScopes({"blocks", "head.weight"}).require_matches("key", names);
  const auto fault = [&](const std::string& scope) -> std::string {
    try {
      NameScopes({scope}).require_matches("train.trainable_scopes", names);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::kConfig);
      return error.what();
    }
    return "";
  };
  EXPECT_THAT(fault("haed"), HasSubstr("train.trainable_scopes: no variable's name begins with "
                                       "'haed' (nearest: head, "));
  EXPECT_THAT(fault("blocks/0/covn"), HasSubstr("(nearest: blocks/0/conv, "));
  EXPECT_THAT(fault("something_else"), HasSubstr("blocks"));
}

}  // namespace name_scopes_test
}  // namespace lockstep
