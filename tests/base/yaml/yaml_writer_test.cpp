#include "base/yaml/yaml_writer.h"

#include <string>

#include <gtest/gtest.h>
#include <yaml-cpp/yaml.h>

namespace lockstep {
namespace yaml_writer_test {

TEST(YamlWriter, MapsAndSequencesStandInBlocks) {
  EXPECT_EQ(yaml_text(YAML::Load("{a: {b: 1, c: [x, {d: 2, e: 3}]}, f: [], g: {}, h: }")),
            "a:\n"
            "  b: 1\n"
            "  c:\n"
            "    - x\n"
            "    - d: 2\n"
            "      e: 3\n"
            "f:\n"
            "  []\n"
            "g:\n"
            "  {}\n"
            "h: ~\n");
}

TEST(YamlWriter, WhatWasQuotedStaysAText) {
  EXPECT_EQ(yaml_text(YAML::Load("{a: \"2\", b: 2, c: 'true', d: true, e: 'word'}")),
            "a: \"2\"\nb: 2\nc: \"true\"\nd: true\ne: \"word\"\n");
}

TEST(YamlWriter, AnyTextOfAProgramReadsAsItself) {
  for (const std::string text : {"",
                                 "a",
                                 "1",
                                 "-",
                                 "yes",
                                 "Null",
                                 "a: b",
                                 "a #b",
                                 "\"",
                                 "\\",
                                 "'",
                                 "x\ny",
                                 "x\n",
                                 "\n",
                                 "x\n\n",
                                 "  two\n blanks\n",
                                 "\ta\n",
                                 "a\tb",
                                 "\x01",
                                 "{a: 1}",
                                 "*x",
                                 "&x",
                                 "!x",
                                 "@x",
                                 "%",
                                 "a,b",
                                 "- a",
                                 "? a",
                                 "\xC3\xA4 \xE2\x82\xAC",
                                 "registry.example:5000/a/b:1",
                                 "1e3",
                                 "0x10",
                                 "~",
                                 "<<",
                                 "a b ",
                                 " a"}) {
    YAML::Node node;
    node["map"]["key"] = text;
    node["list"].push_back(text);
    node[text.empty() ? "empty" : text]["inner"] = "value";
    const YAML::Node read = YAML::Load(yaml_text(node));
    EXPECT_EQ(read["map"]["key"].as<std::string>(), text) << yaml_text(node);
    EXPECT_EQ(read["list"][0].as<std::string>(), text) << yaml_text(node);
    EXPECT_EQ(read[text.empty() ? "empty" : text]["inner"].as<std::string>(), "value")
        << yaml_text(node);
  }
}

}  // namespace yaml_writer_test
}  // namespace lockstep
