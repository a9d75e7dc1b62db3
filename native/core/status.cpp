#include "status.h"

namespace inlay {

const char* python_class(Status status) {
  switch (status) {
#define INLAY_STATUS(code, constant, python_class) \
  case Status::constant:                           \
    return python_class;
#include "status.def"
#undef INLAY_STATUS
  }
  return nullptr;
}

}  // namespace inlay
