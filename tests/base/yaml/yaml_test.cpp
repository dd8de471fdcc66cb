#include <fstream>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "base/yaml/config_reader.h"
#include "base/yaml/yaml_document.h"
#include "tests/support/temporary_folder.h"

namespace lockstep {
namespace yaml_test {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

/// Result of a program that reads a text with one or more keys of each type.
struct Reading {
  explicit Reading(const std::string& text) {
    YamlDocument document = YamlDocument::parse("run.yaml", text, &faults);
    ConfigReader in(document.root(), "", document, &faults);
    in.read("rate", &rate, more_than(0), "a rate");
    in.read("steps", &steps, between(1, 100), "steps");
    in.read("shuffle", &shuffle, "order");
    in.read("name", &name, "name");
    in.read("params", &params, "params");
    in.read("epoch", &epoch, at_least(0), "an epoch");
    in.read_choice("wire", &wire, {"fp32", "bf16"}, "wire");
    ConfigReader nested = in.section("sync");
    nested.read("bytes", &bytes, at_least(1), "bytes");
    nested.done();
    in.done();
  }
  Diagnostics faults;
  double rate = 0.5;
  int64_t steps = 10, bytes = 1;
  bool shuffle = false;
  std::string name, wire = "fp32";
  std::vector<std::string> params;
  Decimal epoch;
};

std::string faults_of(const std::string& text) { return Reading(text).faults.text(); }

TEST(Yaml, ReadsEveryType) {
  const Reading got(
      "rate: 1e-3\nsteps: 7\nshuffle: True\nname: a b\nparams: [x, y]\nepoch: 2.5\nwire: "
      "bf16\nsync: {bytes: 4}\n");
  EXPECT_THAT(got.faults.list(), IsEmpty());
  EXPECT_EQ(got.rate, 1e-3);
  EXPECT_EQ(got.steps, 7);
  EXPECT_TRUE(got.shuffle);
  EXPECT_EQ(got.name, "a b");
  EXPECT_EQ(got.params, (std::vector<std::string>{"x", "y"}));
  EXPECT_EQ(got.epoch.text(), "2.5");
  EXPECT_EQ(got.wire, "bf16");
  EXPECT_EQ(got.bytes, 4);
}

TEST(Yaml, AnAbsentKeyKeepsTheDefault) {
  const Reading got("name: x\n");
  EXPECT_THAT(got.faults.list(), IsEmpty());
  EXPECT_EQ(got.rate, 0.5);
}

TEST(Yaml, AnUnknownKeyHasPlaceCaretAndSuggestion) {
  EXPECT_EQ(faults_of("name: x\nsync:\n  bites: 4\n"),
            "run.yaml:3:3: error: unknown key 'bites' in 'sync' (did you mean 'bytes'?)\n"
            "    bites: 4\n"
            "    ^\n"
            "1 error; nothing was started");
}

TEST(Yaml, AllFaultsComeInOnePass) {
  const Reading got("rate: -1\nsteps: many\nshuffle: y\nwire: fp8\nextra: 1\n");
  EXPECT_EQ(got.faults.list().size(), 5U);
  EXPECT_THAT(got.faults.text(), HasSubstr("5 errors; nothing was started"));
}

TEST(Yaml, ReadsNumbersAndTruthValuesAsPeopleWriteThem) {
  EXPECT_EQ(parse_number(".5"), 0.5);
  EXPECT_EQ(parse_number("-.001"), -0.001);
  EXPECT_EQ(parse_number("+.5e1"), 5.0);
  EXPECT_EQ(parse_number("5."), 5.0);
  for (const char* text : {".", "-.", "..5", ".inf", "-.inf", ".nan", "--5", "-+5", "+-5", ".e5"})
    EXPECT_EQ(parse_number(text), std::nullopt) << text;
  for (const char* text : {"yes", "Yes", "ON", "true", "TRUE"})
    EXPECT_EQ(parse_bool(text), true) << text;
  for (const char* text : {"no", "No", "off", "False"}) EXPECT_EQ(parse_bool(text), false) << text;
  for (const char* text : {"y", "n", "1", "0", "", "yess", "t"})
    EXPECT_EQ(parse_bool(text), std::nullopt) << text;
}

TEST(Yaml, WrongTypesAndRangesAreRefused) {
  EXPECT_THAT(faults_of("rate: .nan"),
              HasSubstr("run.yaml:1:7: error: 'rate' must be a finite decimal number, not '.nan'"));
  EXPECT_THAT(faults_of("rate: .inf"), HasSubstr("finite"));
  EXPECT_THAT(faults_of("rate: 0x10"), HasSubstr("finite decimal number"));
  EXPECT_THAT(faults_of("rate: 0"), HasSubstr("it must be > 0"));
  EXPECT_THAT(faults_of("steps: 5.0"), HasSubstr("a whole number"));
  EXPECT_THAT(faults_of("steps: 012"), HasSubstr("a whole number"));
  EXPECT_THAT(faults_of("steps: 101"), HasSubstr(">= 1 and <= 100"));
  EXPECT_THAT(faults_of("shuffle: 1"), HasSubstr("true or false"));
  EXPECT_THAT(faults_of("name: [a]"), HasSubstr("must be a string, not a list"));
  EXPECT_THAT(faults_of("sync: 3"), HasSubstr("'sync' must be a map"));
  EXPECT_THAT(faults_of("wire: bf61"), HasSubstr("did you mean 'bf16'"));
  EXPECT_THAT(faults_of("params: [re: .*conv]"), HasSubstr("list of strings"));
}

TEST(Yaml, DocumentsThatTheParserWouldLetPassAreRefused) {
  EXPECT_THAT(faults_of(""), HasSubstr("run.yaml: error: is empty"));
  EXPECT_THAT(faults_of("# only a comment\n"), HasSubstr("is empty"));
  EXPECT_THAT(faults_of("name: a\n---\nname: b\n"), HasSubstr("second document"));
  EXPECT_THAT(faults_of("name: a\nname: b\n"),
              HasSubstr("run.yaml:2:1: error: duplicate key 'name'"));
  EXPECT_THAT(faults_of("sync:\n\tbytes: 3\n"), HasSubstr("this line contains a tab"));
  EXPECT_THAT(faults_of("sync:\n  <<: {bytes: 3}\n"), HasSubstr("merge keys"));
  EXPECT_THAT(faults_of("params: *.conv\n"), HasSubstr("must be quoted"));
  EXPECT_THAT(faults_of("name: \"\xff\"\n"), HasSubstr("not valid UTF-8"));
  EXPECT_THAT(faults_of(std::string(2 << 20, ' ')), HasSubstr("more than 1 MiB"));
  EXPECT_THAT(faults_of("- a\n- b\n"), HasSubstr("must be a map of keys"));
}

TEST(Yaml, AnAliasBombAndDeepNestingEndQuickly) {
  std::string bomb = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n";
  for (int i = 1; i < 9; ++i) {
    bomb += fmt::format("a{}: &a{} [", i, i);
    for (int k = 0; k < 10; ++k) bomb += fmt::format("{}*a{}", k ? ", " : "", i - 1);
    bomb += "]\n";
  }
  EXPECT_THAT(faults_of(bomb), HasSubstr("more than 100,000 nodes"));
  EXPECT_FALSE(Reading(std::string(100'000, '[')).faults.empty());
  EXPECT_THAT(faults_of("name: &a [*a]\n"), HasSubstr("refers to itself"));
  EXPECT_THAT(faults_of("name: &a {name: *a}\n"), HasSubstr("refers to itself"));
}

TEST(Yaml, FieldsDescribeThemselves) {
  Diagnostics faults;
  YamlDocument document = YamlDocument::parse("x", "{}", &faults);
  std::vector<FieldDoc> docs;
  ConfigReader in(document.root(), "sync", document, &faults, &docs);
  int64_t bytes = 25;
  in.read("bytes", &bytes, at_least(1), "bytes that travel together");
  ASSERT_EQ(docs.size(), 1U);
  EXPECT_EQ(docs[0].path, "sync.bytes");
  EXPECT_EQ(docs[0].default_text, "25");
  EXPECT_EQ(docs[0].range, ">= 1");
}

TEST(Yaml, ARequiredKeyIsListedAsSuch) {
  Diagnostics faults;
  YamlDocument document = YamlDocument::parse("x", "{}", &faults);
  std::vector<FieldDoc> docs;
  ConfigReader in(document.root(), "", document, &faults, &docs);
  std::string name;
  in.require("name");
  in.read("name", &name, "a name");
  in.read_choice("type", &name, {"a", "b"}, "a type");
  ASSERT_EQ(docs.size(), 2U);
  EXPECT_EQ(docs[0].default_text, "required");
  EXPECT_EQ(docs[1].choices, (std::vector<std::string>{"a", "b"}));
}

TEST(Yaml, NullIsAnAbsentKeyAndNothingIsAFault) {
  for (const char* null : {"null", "~", "Null", "NULL", "&a null", "null # so"}) {
    const Reading got(std::string("rate: ") + null + "\nsteps: 7\n");
    EXPECT_THAT(got.faults.list(), IsEmpty()) << null;
    EXPECT_EQ(got.rate, 0.5);
  }
  EXPECT_THAT(Reading("{rate: null,steps: ~}").faults.list(), IsEmpty());
  EXPECT_THAT(Reading("name: x\nrate:   \t null\n").faults.list(), IsEmpty());
  EXPECT_THAT(Reading(fmt::format("{:300}rate: null\n", "")).faults.list(), IsEmpty());
  EXPECT_THAT(Reading("\xEF\xBB\xBF"
                      "rate: null\n")
                  .faults.list(),
              IsEmpty());
  EXPECT_THAT(faults_of("rate:\nsteps: 7\n"), HasSubstr("'rate' must be a finite decimal number"));
  EXPECT_THAT(faults_of("{rate: , steps: 7}"), HasSubstr("not nothing"));
  EXPECT_THAT(faults_of("rate: 'null'"), HasSubstr("not 'null'"));
  EXPECT_THAT(faults_of("rate: nullx"), HasSubstr("not 'nullx'"));
}

TEST(Yaml, ThrowsAsAConfigurationError) {
  try {
    Reading("extra: 1").faults.throw_if_any("config");
    FAIL();
  } catch (const Error& fault) {
    EXPECT_EQ(fault.code(), ExitCode::kConfig);
  }
  EXPECT_NO_THROW(Diagnostics().throw_if_any("config"));
}

}  // namespace yaml_test
TEST(PathBeside, IsWhereTheFileOrAMatchIs) {
  const tests::TemporaryFolder folder;
  std::ofstream(folder.path() / "lockstep-a.csv") << "x";
  Diagnostics faults;
  const YamlDocument document =
      YamlDocument::parse((folder.path() / "run.yaml").string(), "a: 1", &faults);
  for (const char* name : {"lockstep-a.csv", "lockstep-*.csv"})
    EXPECT_EQ(path_beside(document, name), folder.path() / name);
  for (const char* name :
       {"lockstep-b.csv", "lockstep-*.txt", "s3://bucket/lockstep-a.csv", "", "/"})
    EXPECT_EQ(path_beside(document, name), name);
}

}  // namespace lockstep
