#include <csetjmp>

#include <jpeglib.h>
// after jpeglib.h, which it needs
#include <jerror.h>

#include <fmt/format.h>

#include "data/images/decode.h"

namespace lockstep::data {
namespace {

/// Error state. libjpeg's errors end in longjmp, so functions on the way must have no destructors.
struct JpegFault {
  jpeg_error_mgr manager;  // first: libjpeg sees only this member
  std::jmp_buf end;
  char text[JMSG_LENGTH_MAX];
};

/// Error handler: stores the message and jumps back to the reader.
[[noreturn]] void end_decoding(j_common_ptr codec) {
  auto* fault = reinterpret_cast<JpegFault*>(codec->err);
  fault->manager.format_message(codec, fault->text);
  std::longjmp(fault->end, 1);
}

/// Treats warnings about lost pixels as errors. Others (stray bytes between parts) are common in
/// intact collections.
void judge_message(j_common_ptr codec, int level) {
  const int code = codec->err->msg_code;
  if (level < 0 && (code == JWRN_JPEG_EOF || code == JWRN_HIT_MARKER || code == JWRN_HUFF_BAD_CODE))
    end_decoding(codec);
}

/// Decoder of the rows after jpeg_start_decompress(). Functions return false after an error.
class JpegReader {
 public:
  JpegReader(std::string_view file, int64_t channels, int denominator) {
    codec_.err = jpeg_std_error(&fault_.manager);
    fault_.manager.error_exit = end_decoding;
    fault_.manager.emit_message = judge_message;
    begun_ = begin(file, channels, denominator);
  }
  ~JpegReader() { jpeg_destroy_decompress(&codec_); }
  JpegReader(const JpegReader&) = delete;
  JpegReader& operator=(const JpegReader&) = delete;

  bool begun() const { return begun_; }
  const jpeg_decompress_struct& codec() const { return codec_; }
  std::string fault() const { return fault_.text; }

  bool read_rows(uint8_t* pixels) {
    // Every function that calls libjpeg needs its own setjmp: the frame must still exist at
    // longjmp.
    if (setjmp(fault_.end) != 0) return false;
    const size_t row_bytes =
        size_t{codec_.output_width} * static_cast<size_t>(codec_.output_components);
    while (codec_.output_scanline < codec_.output_height) {
      JSAMPROW rows[4];
      for (size_t i = 0; i < 4; ++i)
        rows[i] = pixels + (codec_.output_scanline + i) * row_bytes;  // not written past the end
      jpeg_read_scanlines(&codec_, rows, 4);
    }
    jpeg_finish_decompress(&codec_);
    return true;
  }

 private:
  bool begin(std::string_view file, int64_t channels, int denominator) {
    if (setjmp(fault_.end) != 0) return false;
    jpeg_create_decompress(&codec_);
    jpeg_mem_src(&codec_, reinterpret_cast<const unsigned char*>(file.data()), file.size());
    jpeg_read_header(&codec_, TRUE);
    const bool has_key = codec_.jpeg_color_space == JCS_CMYK || codec_.jpeg_color_space == JCS_YCCK;
    codec_.out_color_space = has_key ? JCS_CMYK : channels == 1 ? JCS_GRAYSCALE : JCS_RGB;
    codec_.scale_num = 1;
    codec_.scale_denom = static_cast<unsigned>(denominator);
    jpeg_start_decompress(&codec_);
    return true;
  }

  jpeg_decompress_struct codec_{};
  JpegFault fault_{};
  bool begun_ = false;
};

/// Returns a * b / 255, rounded.
uint8_t product_of_parts(unsigned a, unsigned b) {
  return static_cast<uint8_t>((a * b + 127) / 255);
}

/// Converts in place. Adobe's files store the white that remains, others the ink.
void rgb_of_cmyk(uint8_t* pixels, size_t num_pixels, bool is_inverted) {
  for (size_t i = 0; i < num_pixels; ++i) {
    const uint8_t* from = pixels + 4 * i;
    const unsigned ink = is_inverted ? 0 : 255, key = ink ^ from[3];
    for (size_t c = 0; c < 3; ++c) pixels[3 * i + c] = product_of_parts(ink ^ from[c], key);
  }
}

}  // namespace

Pixels decode_jpeg(std::string_view file, int64_t channels, int denominator,
                   std::vector<uint8_t>* storage) {
  JpegReader reader(file, channels, denominator);
  if (!reader.begun()) refuse_image(reader.fault());
  const jpeg_decompress_struct& codec = reader.codec();
  const size_t num_pixels = size_t{codec.output_width} * codec.output_height;
  const auto components = static_cast<size_t>(codec.output_components);
  // Resized between the two setjmp frames: a vector must not be resized on a longjmp path.
  storage->resize(num_pixels * components);
  if (!reader.read_rows(storage->data())) refuse_image(reader.fault());
  if (components == 4) {
    rgb_of_cmyk(storage->data(), num_pixels, codec.saw_Adobe_marker != 0);
    if (channels == 1) grey_of_rgb(storage->data(), num_pixels);
  }
  return {storage->data(), codec.output_height, codec.output_width, channels, true};
}

}  // namespace lockstep::data
