#include "metrics/http/listen_address.h"

#include <fstream>

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/error.h"
#include "counting_observer.h"
#include "http_client.h"
#include "metrics/http/http_server.h"
#include "temporary_folder.h"

namespace lockstep::metrics {
namespace unix_socket_test {

using ::testing::HasSubstr;
using ::testing::StartsWith;
using tests::Connection;

HttpResponse echo(std::string_view target) {
  return {200, "text/plain", "you asked for " + std::string(target) + "\n", "/echo"};
}

/// Error of listening on `path`; empty if there is none.
std::string refusal(const std::filesystem::path& path) {
  try {
    const UnixSocket socket(path);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::kCannotCreate);
    EXPECT_THAT(error.what(), HasSubstr(path.string()));
    return error.what();
  }
  return "";
}

class UnixSocketTest : public ::testing::Test {
 protected:
  tests::TemporaryFolder folder;
  const std::filesystem::path path = folder.path() / "control.sock";
};

TEST_F(UnixSocketTest, ServesPagesAndPostsWithoutAPort) {
  tests::CountingObserver observer;
  {
    const HttpServer server({.socket_path = path, .post = echo}, echo, &observer);
    EXPECT_EQ(server.origin(), "unix:" + path.string());
    Connection connection(path);
    connection.send("GET /a HTTP/1.1\r\nHost: localhost\r\n\r\n");
    EXPECT_THAT(connection.read_answer(), HasSubstr("you asked for /a"));
    connection.send("POST /b HTTP/1.1\r\nHost: any.name\r\nX-Lockstep-Control: 1\r\n\r\n");
    EXPECT_THAT(connection.read_answer(), HasSubstr("you asked for /b"));
    connection.send("POST /c HTTP/1.1\r\nHost: localhost\r\n\r\n");
    EXPECT_THAT(connection.read_answer(), StartsWith("HTTP/1.1 403"));
  }
  EXPECT_EQ(observer.answers("/echo 200"), 2);
  EXPECT_FALSE(std::filesystem::exists(path)) << "the file goes with the server";
}

TEST_F(UnixSocketTest, IsForItsOwnerAloneWhateverTheUmaskSays) {
  const mode_t before = ::umask(0);
  const UnixSocket socket(path);
  ::umask(before);
  struct stat facts {};
  ASSERT_EQ(::lstat(path.c_str(), &facts), 0);
  EXPECT_EQ(facts.st_mode, mode_t{S_IFSOCK | S_IRUSR | S_IWUSR});
}

TEST_F(UnixSocketTest, ALivingOneIsRefusedAndStays) {
  const UnixSocket first(path);
  EXPECT_THAT(refusal(path), HasSubstr("another process listens on it"));
  EXPECT_TRUE(Connection(path).connected());
}

TEST_F(UnixSocketTest, TheFileOfADeadProcessIsReplaced) {
  const pid_t child = ::fork();
  if (child == 0) {
    const UnixSocket left_behind(path);
    ::_exit(0);  // without destructors, as after SIGKILL
  }
  ::waitpid(child, nullptr, 0);
  ASSERT_TRUE(std::filesystem::is_socket(path));
  EXPECT_FALSE(Connection(path).connected());
  const UnixSocket socket(path);
  EXPECT_TRUE(Connection(path).connected());
}

TEST_F(UnixSocketTest, WhatIsNoSocketStays) {
  std::ofstream(path) << "a file";
  EXPECT_THAT(refusal(path), HasSubstr("the path exists and is not a socket"));
  EXPECT_EQ(std::filesystem::file_size(path), 6u);
}

TEST_F(UnixSocketTest, AnothersFileOfTheSameNameStays) {
  {
    const UnixSocket first(path);
    std::filesystem::remove(path);
    std::ofstream(path) << "another's";
  }
  EXPECT_TRUE(std::filesystem::exists(path));
}

TEST_F(UnixSocketTest, APathMayBeLongerThanWhatTheSystemTakes) {
  const std::filesystem::path deep = folder.path() / std::string(80, 'x') / std::string(80, 'y');
  std::filesystem::create_directories(deep);
  {
    const UnixSocket socket(deep / "s");
    EXPECT_TRUE(is_listened_at(deep / "s"));
    EXPECT_THAT(refusal(deep / "s"), HasSubstr("another process listens on it"));
  }
  EXPECT_FALSE(std::filesystem::exists(deep / "s"));
}

TEST_F(UnixSocketTest, ALongNameIsRefusedWithItsLimit) {
  EXPECT_EQ(refusal(folder.path() / std::string(kMaxSocketNameBytes, 'x')), "");
  EXPECT_THAT(refusal(folder.path() / std::string(kMaxSocketNameBytes + 1, 'x')),
              HasSubstr("its name is too long; choose one of at most 80 bytes"));
}

TEST_F(UnixSocketTest, ALockOnItsFolderThatNobodyGivesBackIsNotWaitedFor) {
  const int holder = ::open(folder.path().c_str(), O_RDONLY | O_DIRECTORY);
  ASSERT_EQ(::flock(holder, LOCK_EX), 0);
  EXPECT_EQ(refusal(path), "");
  ::close(holder);
}

TEST_F(UnixSocketTest, ItsFolderMustBeThereAndNotOpenToEverybody) {
  EXPECT_THAT(refusal(folder.path() / "missing" / "s"), HasSubstr("No such file or directory"));
  const auto open = folder.path() / "open";
  std::filesystem::create_directory(open);
  ASSERT_EQ(::chmod(open.c_str(), 0777), 0);
  EXPECT_THAT(refusal(open / "s"), HasSubstr("is writable by all users"));
  ASSERT_EQ(::chmod(open.c_str(), 01777), 0);
  EXPECT_EQ(refusal(open / "s"), "") << "as in /tmp, nobody can move another's file";
}

}  // namespace unix_socket_test
}  // namespace lockstep::metrics
