#include "formats.h"

#include "array.h"

namespace inlay::bindings {

using kernels::Format;

Format parse_format(const std::string& format) {
  std::string known;
  for (const kernels::FormatInfo& info : kernels::kFormats) {
    if (format == info.name) return static_cast<Format>(&info - kernels::kFormats);
    if (info.block.k != 0) continue;  // of files
    known += (known.empty() ? "'" : ", '") + std::string(info.name) + "'";
  }
  fail("format: must be one of ", known, "; got '", format, "'");
}

void require_scales(Format format) {
  if (kernels::has_blocks(format))
    fail("format: '", kernels::info(format).name,
         "' has blocks, which nothing here makes; set_rows_blocks and set_blocks take those of "
         "files");
  if (kernels::info(format).scale == kernels::Scale::kNone)
    fail("format: '", kernels::info(format).name,
         "' has no scales; name one of int8, int4, uint4, fp8 or mxfp4");
}

void require_inner_size(Format format, const char* name, int64_t k) {
  if (kernels::info(format).group == kernels::kWholeRow && k > kernels::kMaxWholeRow)
    fail(name, ": is ", k, ", but format '", kernels::info(format).name,
         "' sums whole rows of at most ", kernels::kMaxWholeRow, " in 32 bits; use 'int8:g32'");
  const int32_t block = kernels::info(format).block.k;
  if (block != 0 && k % block != 0)
    fail(name, ": is ", k, ", but rows of format '", kernels::info(format).name,
         "' are whole blocks of ", block, "; use 'int8:g32'");
}

}  // namespace inlay::bindings
