#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "base/tensors/safetensors_format.h"

/// Parsers of the bytes of files: arrays, CSV, tf.train.Example, tar. Free of LibTorch, since
/// tests/data/fuzz compiles them alone.
namespace lockstep::data {

/// Throws Error(kBadData) about a file's content. `what` states the fault and what would be right.
[[noreturn]] inline void refuse_file(const std::filesystem::path& path, const std::string& what) {
  throw Error(ExitCode::kBadData, "data", path.string() + ": " + what);
}

/// Array in a file, row-major.
struct ArrayHeader {
  NumberType type = NumberType::kF32;
  std::vector<int64_t> shape;
  int64_t offset = 0;     ///< position in the file of its first number
  int64_t num_bytes = 0;  ///< size of all its numbers
};

/// Parses the header of a .npy file, versions 1 to 3. `bytes`: the start of the file,
/// kMaxNpyHeaderBytes or all of it. Throws Error(kBadData) with the name `file`. Reasons are Python
/// objects, big-endian numbers, Fortran order, a cut header, and a file shorter than its array.
ArrayHeader parse_npy_header(std::string_view bytes, int64_t file_bytes, const std::string& file);
inline constexpr int64_t kMaxNpyHeaderBytes = int64_t{1} << 16;

/// Parses the header of a safetensors file and returns one tensor. `bytes`: the start of the file
/// with the length and the entire header. Throws Error(kBadData) with the name `file`. If there is
/// no tensor `name`, the message has the nearest names. base/tensors/safetensors_format.h defines
/// the limits.
ArrayHeader parse_safetensors_header(std::string_view bytes, int64_t file_bytes,
                                     const std::string& name, const std::string& file);
/// Returns the size of the file up to the end of its header; `bytes`: the first 8.
int64_t safetensors_header_end(std::string_view bytes, int64_t file_bytes, const std::string& file);

/// Start of an IDX file of uint8 values. It has the bytes 0, 0, 8 (uint8) and the number of axes,
/// then their sizes as big-endian uint32.
struct IdxHeader {
  std::vector<int64_t> sizes;
  int64_t num_bytes = 0;  ///< position of the first value
};

inline constexpr int64_t kMaxIdxHeaderBytes = 4 + 4 * 8;

/// Parses a header. `bytes`: the start of the file, kMaxIdxHeaderBytes or all of it. Throws
/// Error(kBadData) with the name `file` unless the file has exactly the size that the header
/// implies.
IdxHeader parse_idx_header(std::string_view bytes, int64_t file_bytes, const std::string& file);

/// One record of a CSV file.
struct CsvRow {
  int64_t line = 0;  ///< line on which it begins, from 1
  std::vector<std::string> fields;
};

/// Parses a text by RFC 4180. Fields are separated by commas. Fields with commas, quotes (doubled)
/// or line breaks are in double quotes. Lines end with \n or \r\n. Empty lines are skipped. Throws
/// Error(kBadData) with the name `file` and the line.
std::vector<CsvRow> parse_csv(std::string_view text, const std::string& file);

/// Messages of data/formats/tf_example.proto.
namespace pb {
class Example;
class Feature;
}  // namespace pb

/// Parses a tf.train.Example. Throws Error(kBadData), without a place, if it is malformed.
pb::Example parse_example(std::string_view bytes);
/// Finds a feature by name, the last if there are two; null if there is none with a list.
pb::Feature* find_feature(std::string_view name, pb::Example* example);
/// Takes the only value of a BytesList. Throws Error(kBadData) if there are none or several.
std::string only_bytes(pb::Feature* feature);

/// Regular file in a tar archive.
struct TarMember {
  std::string name;
  int64_t offset = 0;  ///< position of its bytes in the archive
  int64_t num_bytes = 0;
};

/// Function that returns bytes [offset, offset + num_bytes) of the archive, which are inside it.
using ReadArchive = std::function<std::string_view(int64_t offset, int64_t num_bytes)>;

/// Lists the archive's regular files in order. Supported are ustar and long names of GNU and pax.
/// Only headers are read. Throws Error(kBadData) with `file` and offset. Reasons are a wrong
/// checksum, a cut archive, an absolute name and a name with `..`.
std::vector<TarMember> list_tar(const ReadArchive& read, int64_t file_bytes,
                                const std::string& file);

}  // namespace lockstep::data
