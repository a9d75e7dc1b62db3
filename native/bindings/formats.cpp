#include "formats.h"

#include "array.h"

namespace inlay::bindings {

using kernels::Format;

Format parse_format(const std::string& format) {
  std::string known;
  for (const kernels::FormatInfo& info : kernels::kFormats) {
    if (format == info.name) return static_cast<Format>(&info - kernels::kFormats);
    known += (known.empty() ? "'" : ", '") + std::string(info.name) + "'";
  }
  fail("format: must be one of ", known, "; got '", format, "'");
}

void require_integers(Format format) {
  if (kernels::info(format).operand != kernels::Operand::kI8)
    fail("format: '", kernels::info(format).name, "' holds no integers; name an int8 or int4 one");
}

void require_inner_size(Format format, const char* name, int64_t k) {
  if (kernels::info(format).group == kernels::kWholeRow && k > kernels::kMaxWholeRow)
    fail(name, ": is ", k, ", but format '", kernels::info(format).name,
         "' sums whole rows of at most ", kernels::kMaxWholeRow, " in 32 bits; use 'int8:g32'");
}

}  // namespace inlay::bindings
