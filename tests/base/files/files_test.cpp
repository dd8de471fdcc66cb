#include "base/files/files.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sys/fsuid.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error.h"
#include "support/temporary_folder.h"

namespace lockstep {
namespace files_test {

ExitCode code_of(const std::function<void()>& body) {
  try {
    body();
  } catch (const Error& fault) {
    return fault.code();
  }
  return ExitCode::kDone;
}

std::string text_of(const std::function<void()>& body) {
  try {
    body();
  } catch (const Error& fault) {
    return fault.what();
  }
  return "";
}

/// Scope in which this thread accesses files as a user who owns none of them.
class Stranger {
 public:
  Stranger() : before_(::setfsuid(65534)) {}
  ~Stranger() { ::setfsuid(static_cast<uid_t>(before_)); }
  Stranger(const Stranger&) = delete;
  Stranger& operator=(const Stranger&) = delete;

 private:
  int before_;
};

TEST(Files, WritesAndReadsBack) {
  const tests::TemporaryFolder folder;
  files::Writer writer(folder.path() / "a");
  writer.append("one");
  writer.append(std::string(3, '\0'));
  writer.sync();
  writer.close();
  EXPECT_EQ(writer.num_bytes(), 6);
  EXPECT_EQ(files::read(folder.path() / "a"), std::string("one\0\0\0", 6));
}

TEST(Files, AtomicWriteReplacesAndLeavesNoTemporary) {
  const tests::TemporaryFolder folder;
  files::write_atomically(folder.path() / "state", "old");
  files::write_atomically(folder.path() / "state", "new");
  EXPECT_EQ(files::read(folder.path() / "state"), "new");
  EXPECT_EQ(files::list(folder.path()), std::vector<std::string>{"state"});
}

TEST(Files, KindsOfFaultHaveTheirExitCodes) {
  const tests::TemporaryFolder folder;
  EXPECT_EQ(code_of([&] { files::read(folder.path() / "absent"); }), ExitCode::kInputMissing);
  EXPECT_EQ(code_of([&] { files::read(folder.path()); }), ExitCode::kInputMissing);
  EXPECT_EQ(code_of([&] { files::Writer(folder.path() / "no" / "folder"); }),
            ExitCode::kCannotCreate);
  files::write_atomically(folder.path() / "large", std::string(100, 'x'));
  EXPECT_EQ(code_of([&] { files::read(folder.path() / "large", 99); }), ExitCode::kIo);
  EXPECT_EQ(code_of([&] { files::require_writable(folder.path() / "large" / "below_a_file"); }),
            ExitCode::kCannotCreate);
}

TEST(Files, WhatMayNotBeReadIsAMissingInput) {
  const tests::TemporaryFolder folder;
  const auto path = folder.path() / "secret";
  files::write_atomically(path, "x");
  ASSERT_EQ(::chmod(path.c_str(), 0), 0);  // root reads it all the same, a stranger does not
  const Stranger while_reading;
  EXPECT_EQ(code_of([&] { files::read(path); }), ExitCode::kInputMissing);
  const std::string text = text_of([&] { files::read(path); });
  EXPECT_THAT(text, ::testing::HasSubstr("secret: cannot be read (Permission denied)"));
  EXPECT_THAT(text, ::testing::HasSubstr("give this user the right to read it"));
  EXPECT_EQ(code_of([&] { files::read(path / "below_a_file"); }), ExitCode::kInputMissing);
}

TEST(Files, WhatMayNotBeWrittenCannotBeCreated) {
  const tests::TemporaryFolder folder;
  ASSERT_EQ(::chmod(folder.path().c_str(), 0500), 0);
  {
    const Stranger while_writing;
    EXPECT_EQ(code_of([&] { files::Writer(folder.path() / "a"); }), ExitCode::kCannotCreate);
  }
  ASSERT_EQ(::chmod(folder.path().c_str(), 0700), 0);
}

TEST(Files, OnlyRegularFilesAreRead) {
  const tests::TemporaryFolder folder;
  const auto pipe = folder.path() / "pipe";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  for (const std::filesystem::path& path : {pipe, std::filesystem::path("/dev/null")}) {
    EXPECT_EQ(code_of([&] { files::read(path); }), ExitCode::kInputMissing) << path;
    EXPECT_THAT(text_of([&] { files::read(path); }), ::testing::HasSubstr("is not a regular file"));
  }
}

TEST(Files, AWriterGoesOnAtTheEndAndCountsWhatItWrote) {
  const tests::TemporaryFolder folder;
  files::write_atomically(folder.path() / "a", "one");
  files::Writer writer(folder.path() / "a", files::Writer::Start::kAtEnd);
  writer.append("two");
  EXPECT_EQ(writer.num_bytes(), 3);
  EXPECT_EQ(files::read(folder.path() / "a"), "onetwo");

  files::Writer full("/dev/full");
  EXPECT_THROW(full.append("x"), Error);
  EXPECT_EQ(full.num_bytes(), 0);
}

TEST(Files, NoSpaceIsAnIoFaultThatNamesTheFile) {
  files::Writer writer("/dev/full");
  try {
    writer.append("x");
    FAIL() << "a full disk must not pass";
  } catch (const Error& fault) {
    EXPECT_EQ(fault.code(), ExitCode::kIo);
    EXPECT_NE(std::string(fault.what()).find("/dev/full"), std::string::npos);
  }
}

}  // namespace files_test
}  // namespace lockstep
