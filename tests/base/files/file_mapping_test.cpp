#include "base/files/large_files.h"

#include <string>
#include <string_view>

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "base/error.h"
#include "support/temporary_folder.h"

namespace lockstep {
namespace file_mapping_test {

using ::testing::HasSubstr;

/// Bytes that tell where they lie.
std::string bytes_of(int64_t num_bytes) {
  std::string bytes(static_cast<size_t>(num_bytes), '\0');
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<char>(i * 2654435761U >> 16);
  return bytes;
}

class FileMapping : public ::testing::Test {
 protected:
  /// A file of so many bytes, not in the page cache if the file system lets them go.
  void write(const std::string& bytes) {
    files::Writer writer(path_);
    writer.append(bytes);
    writer.sync();
    writer.close();
    const int descriptor = ::open(path_.c_str(), O_RDONLY | O_CLOEXEC);
    ::posix_fadvise(descriptor, 0, 0, POSIX_FADV_DONTNEED);
    ::close(descriptor);
  }

  tests::TemporaryFolder folder_;
  const std::filesystem::path path_ = folder_.path() / "file";
};

TEST_F(FileMapping, GivesTheBytesOfAnyRangeAlsoAfterARelease) {
  const std::string bytes = bytes_of(1'000'003);  // the last page is not full
  write(bytes);
  const files::Reader file(path_);
  files::Mapping mapping(file);
  for (const auto& [offset, num_bytes] : {std::pair<int64_t, int64_t>{0, 1},
                                          {4095, 2},
                                          {4096, 4096},
                                          {12'345, 700'000},
                                          {1'000'002, 1},
                                          {0, 1'000'003},
                                          {1'000'003, 0}}) {
    const char* found = mapping.fetch(offset, num_bytes);
    EXPECT_TRUE(
        std::string_view(found, static_cast<size_t>(num_bytes)) ==
        std::string_view(bytes).substr(static_cast<size_t>(offset), static_cast<size_t>(num_bytes)))
        << offset << " " << num_bytes;
    mapping.release(offset, num_bytes);
  }
  mapping.release();
  EXPECT_EQ(*mapping.fetch(77, 1), bytes[77]);
}

TEST_F(FileMapping, OfAnEmptyFileHoldsNothing) {
  write("");
  const files::Reader file(path_);
  files::Mapping mapping(file);
  EXPECT_NO_THROW(mapping.fetch(0, 0));
  EXPECT_NO_THROW(mapping.release());
}

TEST_F(FileMapping, AFileThatWasCutIsAnErrorAndNoSignal) {
  constexpr int64_t kBytes = 600'000, kLeft = 200'000;
  write(bytes_of(kBytes));
  const files::Reader file(path_);
  const files::Mapping mapping(file);
  ASSERT_EQ(::truncate(path_.c_str(), kLeft), 0);
  try {
    mapping.fetch(0, kBytes);
    ADD_FAILURE() << "bytes that are gone were given";
  } catch (const Error& fault) {
    EXPECT_EQ(fault.code(), ExitCode::kIo);
    EXPECT_THAT(fault.what(), HasSubstr(path_.string() + ": ends at byte 200000"));
  }
  EXPECT_NO_THROW(mapping.fetch(0, kLeft));
}

}  // namespace file_mapping_test
}  // namespace lockstep
