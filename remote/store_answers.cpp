// Parsers by expat.
#include "remote/store_answers.h"

#include <algorithm>
#include <array>
#include <ctime>
#include <functional>
#include <memory>
#include <new>
#include <utility>

#include <curl/curl.h>
#include <expat.h>
#include <fmt/format.h>
#include <openssl/evp.h>

#include "base/error.h"
#include "base/yaml/config_reader.h"

namespace lockstep::remote {

namespace {

/// Walker over XML. Calls `on_element` at the end of each element with its path from the root
/// ("Error/Code") and its own text.
class XmlWalk {
 public:
  using OnElement = std::function<void(const std::string& path, const std::string& text)>;

  explicit XmlWalk(OnElement on_element)
      : on_element_(std::move(on_element)), parser_(::XML_ParserCreate(nullptr)) {
    ::XML_SetUserData(parser_.get(), this);
    ::XML_SetElementHandler(parser_.get(), &XmlWalk::begin, &XmlWalk::end);
    ::XML_SetCharacterDataHandler(parser_.get(), &XmlWalk::take);
  }

  /// Parses a text; false if it is not well-formed.
  bool parse(std::string_view xml) {
    return ::XML_Parse(parser_.get(), xml.data(), static_cast<int>(xml.size()), 1) == XML_STATUS_OK;
  }

 private:
  static void begin(void* self, const XML_Char* name, const XML_Char** /*attributes*/) {
    auto* const walk = static_cast<XmlWalk*>(self);
    walk->path_ += (walk->path_.empty() ? "" : "/") + std::string(name);
    walk->text_.clear();
  }
  static void take(void* self, const XML_Char* text, int num_bytes) {
    static_cast<XmlWalk*>(self)->text_.append(text, static_cast<size_t>(num_bytes));
  }
  static void end(void* self, const XML_Char* /*name*/) {
    auto* const walk = static_cast<XmlWalk*>(self);
    walk->on_element_(walk->path_, walk->text_);
    const size_t slash = walk->path_.rfind('/');
    walk->path_.resize(slash == std::string::npos ? 0 : slash);
    walk->text_.clear();
  }

  struct Free {
    void operator()(XML_ParserStruct* parser) const { ::XML_ParserFree(parser); }
  };

  OnElement on_element_;
  std::unique_ptr<XML_ParserStruct, Free> parser_;
  std::string path_, text_;
};

/// Decodes a key of "encoding-type=url", where a plus sign is a space as in a form.
std::string decoded(std::string key) {
  std::replace(key.begin(), key.end(), '+', ' ');
  int num_bytes = 0;
  char* const text =
      ::curl_easy_unescape(nullptr, key.data(), static_cast<int>(key.size()), &num_bytes);
  if (text == nullptr) throw std::bad_alloc();
  key.assign(text, static_cast<size_t>(num_bytes));
  ::curl_free(text);
  return key;
}

}  // namespace

ListingPage parse_listing(std::string_view xml, const std::string& place) {
  ListingPage page;
  files::FileFacts object;
  bool has_root = false, has_more = false, has_sizes = true, is_encoded = false;
  XmlWalk walk([&](const std::string& path, const std::string& text) {
    if (path == "ListBucketResult/Contents/Key") object.path = text;
    if (path == "ListBucketResult/Contents/ETag") object.tag = text;
    if (path == "ListBucketResult/Contents/LastModified") object.written_s = parse_time(text);
    if (path == "ListBucketResult/Contents/Size")
      object.num_bytes = parse_integer(text).value_or(-1);
    if (path == "ListBucketResult/Contents") {
      has_sizes = has_sizes && object.num_bytes >= 0 && !object.path.empty();
      page.objects.push_back(std::exchange(object, {}));
    }
    if (path == "ListBucketResult/EncodingType") is_encoded = text == "url";
    if (path == "ListBucketResult/IsTruncated") has_more = text == "true";
    if (path == "ListBucketResult/NextContinuationToken") page.next_token = text;
    if (path == "ListBucketResult") has_root = true;
  });
  if (!walk.parse(xml) || !has_root || !has_sizes || (has_more && page.next_token.empty()))
    throw Error(ExitCode::kIo, "remote",
                place +
                    ": the store's answer is not a listing (ListObjectsV2); check that its address "
                    "is an S3 endpoint");
  if (!has_more) page.next_token.clear();
  // Decoded at the end, since EncodingType may follow the keys.
  for (files::FileFacts& found : page.objects)
    if (is_encoded) found.path = decoded(std::move(found.path));
  return page;
}

StoreFault parse_fault(std::string_view xml) {
  StoreFault fault;
  XmlWalk walk([&](const std::string& path, const std::string& text) {
    if (path == "Error/Code") fault.code = text;
    if (path == "Error/Message") fault.message = text;
  });
  return walk.parse(xml) ? fault : StoreFault{};
}

UploadsPage parse_uploads(std::string_view xml, const std::string& place) {
  UploadsPage page;
  files::Upload upload;
  bool has_root = false, has_more = false, is_encoded = false;
  XmlWalk walk([&](const std::string& path, const std::string& text) {
    if (path == "ListMultipartUploadsResult/Upload/Key") upload.path = text;
    if (path == "ListMultipartUploadsResult/Upload/UploadId") upload.id = text;
    if (path == "ListMultipartUploadsResult/Upload/Initiated") upload.begun_s = parse_time(text);
    if (path == "ListMultipartUploadsResult/Upload")
      page.uploads.push_back(std::exchange(upload, {}));
    if (path == "ListMultipartUploadsResult/EncodingType") is_encoded = text == "url";
    if (path == "ListMultipartUploadsResult/IsTruncated") has_more = text == "true";
    if (path == "ListMultipartUploadsResult/NextKeyMarker") page.next_key = text;
    if (path == "ListMultipartUploadsResult/NextUploadIdMarker") page.next_id = text;
    if (path == "ListMultipartUploadsResult") has_root = true;
  });
  if (!walk.parse(xml) || !has_root || (has_more && page.next_key.empty()))
    throw Error(ExitCode::kIo, "remote",
                place + ": the store's answer is not a list of uploads (ListMultipartUploads)");
  if (!has_more) page.next_key.clear();
  if (is_encoded) {
    page.next_key = decoded(std::move(page.next_key));
    for (files::Upload& found : page.uploads) found.path = decoded(std::move(found.path));
  }
  return page;
}

std::string parse_upload_id(std::string_view xml, const std::string& place) {
  std::string id;
  XmlWalk walk([&](const std::string& path, const std::string& text) {
    if (path.ends_with("/UploadId")) id = text;  // the name of the root differs between stores
  });
  if (walk.parse(xml) && !id.empty()) return id;
  throw Error(ExitCode::kIo, "remote",
              place + ": the store's answer has no id of an upload (CreateMultipartUpload)");
}

Credentials parse_role_key(std::string_view xml, const std::string& source) {
  Credentials key;
  XmlWalk walk([&](const std::string& path, const std::string& text) {
    const std::string name = path.substr(path.rfind('/') + 1);
    if (name == "AccessKeyId") key.key_id = text;
    if (name == "SecretAccessKey") key.secret = text;
    if (name == "SessionToken") key.session_token = text;
    if (name == "Expiration") key.expires_s = parse_time(text);
  });
  if (!walk.parse(xml) || key.key_id.empty() || key.secret.empty()) return {};
  key.source = source;
  return key;
}

std::string completion_text(std::span<const files::SentPart> parts, bool with_checksums) {
  std::string text = "<CompleteMultipartUpload xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\">";
  for (size_t i = 0; i < parts.size(); ++i)
    text += fmt::format("<Part>{}<ETag>{}</ETag><PartNumber>{}</PartNumber></Part>",
                        with_checksums ? fmt::format("<ChecksumCRC32C>{}</ChecksumCRC32C>",
                                                     crc32c_text(parts[i].crc32c))
                                       : "",
                        parts[i].tag, i + 1);
  return text + "</CompleteMultipartUpload>";
}

std::string crc32c_text(uint32_t crc) {
  const std::array<unsigned char, 4> bytes{
      static_cast<unsigned char>(crc >> 24), static_cast<unsigned char>(crc >> 16),
      static_cast<unsigned char>(crc >> 8), static_cast<unsigned char>(crc)};
  std::array<unsigned char, 9> text{};
  const int size = ::EVP_EncodeBlock(text.data(), bytes.data(), bytes.size());
  return {reinterpret_cast<const char*>(text.data()), static_cast<size_t>(size)};
}

int64_t parse_time(const std::string& text) {
  std::tm parts{};
  const char* const end = ::strptime(text.c_str(), "%Y-%m-%dT%H:%M:%S", &parts);
  if (end != nullptr) return ::timegm(&parts);
  const std::time_t time = ::curl_getdate(text.c_str(), nullptr);
  return time < 0 ? 0 : time;
}

}  // namespace lockstep::remote
