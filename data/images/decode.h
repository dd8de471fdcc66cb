#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "data/images/pixels.h"

namespace lockstep::data {

enum class ImageFormat { kJpeg, kPng };

/// What the first bytes of an image say.
struct ImageHeader {
  ImageFormat format = ImageFormat::kJpeg;
  int64_t height = 0, width = 0;
};

/// Reads the header of a JPEG or PNG file and refuses sizes that the file cannot hold, so that a
/// few false bytes take no memory. Throws Error(kBadData); the text has no place yet.
ImageHeader read_image_header(std::string_view file);

/// Decodes into `storage`, interleaved, 8 bits, with one channel (luma) or three. Whatever the file
/// holds is converted: grey, palettes, CMYK, 16 bits; alpha is left out. A JPEG may be decoded at
/// 1 / denominator of its size (1, 2, 4, 8; rounded up). Throws Error(kBadData) if it is cut or
/// damaged; the text has no place yet.
Pixels decode_image(std::string_view file, const ImageHeader& header, int64_t channels,
                    int denominator, std::vector<uint8_t>* storage);

/// The parts of decode_image().
Pixels decode_jpeg(std::string_view file, int64_t channels, int denominator,
                   std::vector<uint8_t>* storage);
Pixels decode_png(std::string_view file, int64_t channels, std::vector<uint8_t>* storage);

/// RGB to luma in place, with the weights of ITU-R 601, as PIL has them.
void grey_of_rgb(uint8_t* pixels, size_t num_pixels);

/// Throws what the decoders throw.
[[noreturn]] void refuse_image(const std::string& what);

}  // namespace lockstep::data
