// Choosing a kernel variant. With an argument: the name of the one that has to be the best here.
#include <algorithm>
#include <string>

#include "../core/errors.h"
#include "../kernels/isa.h"
#include "check.h"

namespace {

using namespace inlay::kernels;

bool refused(const char* name) {
  request_isa(name);
  try {
    selected();
  } catch (const inlay::ArgumentError& error) {
    CHECK(std::string(error.what()).find(name) != std::string::npos);
    return true;
  }
  return false;
}

}  // namespace

int main(int count, char** arguments) {
  const std::vector<std::string> available = available_isas();
  CHECK(available.back() != "amx_emulated");
  CHECK(count < 2 || available.back() == arguments[1]);
  CHECK(std::string(selected().isa) == available.back());
  for (const std::string& name : compiled_isas()) {
    const bool runs = std::find(available.begin(), available.end(), name) != available.end();
    CHECK(refused(name.c_str()) == !runs);
    if (runs) CHECK(selected().isa == name);
  }
  CHECK(refused("pentium"));
  request_isa("");
  CHECK(std::string(selected().isa) == available.back());
}
