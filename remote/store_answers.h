#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/files/store.h"
#include "remote/credentials.h"

/// XML answers of a store with the S3 interface.
namespace lockstep::remote {

/// Page of a ListObjectsV2 answer.
struct ListingPage {
  std::vector<files::FileFacts> objects;  ///< `path` is the key
  std::string next_token;                 ///< of the next page; empty: none
};

/// Parses a page. Throws Error(kIo) with `place` if the text is not a valid one.
ListingPage parse_listing(std::string_view xml, const std::string& place);

/// Error that a store returns for a refused request.
struct StoreFault {
  std::string code, message;  ///< empty if the text is not such XML
};
StoreFault parse_fault(std::string_view xml);

/// Page of a ListMultipartUploads answer.
struct UploadsPage {
  std::vector<files::Upload> uploads;  ///< `path` is the key
  std::string next_key, next_id;       ///< markers of the next page; empty: none
};
UploadsPage parse_uploads(std::string_view xml, const std::string& place);

/// Returns the id of an InitiateMultipartUpload answer. Throws Error(kIo) if the text is none.
std::string parse_upload_id(std::string_view xml, const std::string& place);

/// Returns the key of an AssumeRoleWithWebIdentity answer; empty if the text is none.
Credentials parse_role_key(std::string_view xml, const std::string& source);

/// Returns the body of a CompleteMultipartUpload request.
std::string completion_text(std::span<const files::SentPart> parts, bool with_checksums);

/// Returns the base64 form in which stores exchange a crc32c.
std::string crc32c_text(uint32_t crc);

/// Returns the seconds since 1970 of "2026-11-30T04:22:47.000Z", or of the HTTP form of a date;
/// 0 if the text is neither.
int64_t parse_time(const std::string& text);

}  // namespace lockstep::remote
