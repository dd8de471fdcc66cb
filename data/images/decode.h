#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "data/images/pixel_kernels.h"

namespace lockstep::data {

enum class ImageFormat { kJpeg, kPng };

/// Properties from the first bytes of an image.
struct ImageHeader {
  ImageFormat format = ImageFormat::kJpeg;
  int64_t height = 0, width = 0;
};

/// Reads the header of a JPEG or PNG file. Refuses sizes that the file cannot contain, so that a
/// few false bytes allocate out of memory. Throws Error(kBadData); the text has no place yet.
ImageHeader read_image_header(std::string_view file);

/// Decodes an image into `storage`, interleaved, 8 bits, with one channel (luma) or three. Grey,
/// palettes, CMYK and 16 bits are converted; alpha is dropped. A JPEG may be decoded at 1 /
/// denominator of its size (1, 2, 4, 8; rounded up). Throws Error(kBadData) if it is cut or
/// damaged; the text has no place yet.
Pixels decode_image(std::string_view file, const ImageHeader& header, int64_t channels,
                    int denominator, std::vector<uint8_t>* storage);

/// Implementation of decode_image() for JPEG.
Pixels decode_jpeg(std::string_view file, int64_t channels, int denominator,
                   std::vector<uint8_t>* storage);

/// Returns the luma of a pixel with the weights of ITU-R 601, as PIL does: 0.299, 0.587 and 0.114
/// as 16-bit fixed-point numbers, rounded.
inline uint8_t luma_of(unsigned red, unsigned green, unsigned blue) {
  return static_cast<uint8_t>((19595U * red + 38470U * green + 7471U * blue + 0x8000U) >> 16);
}

/// Converts RGB to luma in place.
void grey_of_rgb(uint8_t* pixels, size_t num_pixels);

/// Throws the error of the decoders.
[[noreturn]] void refuse_image(const std::string& what);

}  // namespace lockstep::data
