#include "data/formats/file_list.h"

#include <gtest/gtest.h>

#include "data/formats/file_set.h"

namespace lockstep::data {
namespace found_files_test {

/// A store of nothing but what it was told.
class Told final : public files::FileStore {
 public:
  std::unique_ptr<files::RemoteFile> open(const std::string&) override { return nullptr; }
  std::optional<files::FileFacts> look_at(const std::string& path) override {
    const auto found = facts_.find(path);
    return found == facts_.end() ? std::nullopt : std::optional(found->second);
  }
  std::vector<files::FileFacts> list(const std::string&) override { return {}; }
  void learn(const files::FileFacts& facts) override { facts_[facts.path] = facts; }

 private:
  std::map<std::string, files::FileFacts> facts_;
};

}  // namespace found_files_test

TEST(FoundFiles, TravelAsATextAndAreKnownThen) {
  files::add_store("told", std::make_unique<found_files_test::Told>());
  FoundFiles found;
  found.format = "image_folder";
  found.files = {{"told://b/a\n1.png", 7, "\"tag\""}, {"here/2.png", -1, ""}};
  found.labels = {0, 3};
  found.class_names = {"a", "b\nc", "", "d"};
  found.others = {{"told://b/labels", 0, "t"}};
  EXPECT_THROW((void)files::facts_of("told://b/labels"), Error);
  EXPECT_EQ(FoundFiles::parse(found.text()), found);
  EXPECT_EQ(files::facts_of("told://b/labels"), found.others[0]);
  EXPECT_EQ(FoundFiles::parse(FoundFiles().text()), FoundFiles());
}

TEST(FoundFiles, ATagStandsForTheBytesInADigest) {
  files::add_store("told", std::make_unique<found_files_test::Told>());
  const auto digest = [](const std::string& folder, const std::string& tag) {
    const files::FileFacts facts{"told://" + folder + "/x", 3, tag};
    files::store_of(facts.path)->learn(facts);
    return digest_of_files({facts.path});
  };
  const std::string first = digest("one/deep", "t");
  EXPECT_EQ(digest("two", "t"), first);
  EXPECT_NE(digest("one/deep", "u"), first);
}

}  // namespace lockstep::data
