// Stands in for the transport where libfabric's headers were missing at build time.
#include "fabric.h"

namespace inlay::transfer {

namespace {

constexpr const char* kProblem =
    "built without libfabric's headers; install them (Debian: libfabric-dev) and build again";

class AbsentFabric final : public Transport {
 public:
  std::string_view name() const override { return "fabric"; }
  std::string problem() const override { return kProblem; }
  Bytes attach(Segment&) override { return {}; }
  bool detach(Segment&, Clock::time_point) override { return true; }
  Bytes offer() override { return {}; }
  Connected connect(const std::shared_ptr<PathOwner>&, std::span<const std::byte>,
                    Clock::time_point) override {
    return {{}, kProblem};
  }
  void close() override {}
};

}  // namespace

FabricFound find_fabric() { return {kProblem, {}}; }

std::unique_ptr<Transport> make_fabric(const Site&) { return std::make_unique<AbsentFabric>(); }

std::unique_ptr<Transport> make_unconnected_fabric(const Site& site) { return make_fabric(site); }

}  // namespace inlay::transfer
