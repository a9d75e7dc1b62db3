// Stands in for the transport where libfabric's headers were missing at build time.
#include "fabric.h"

namespace inlay::transfer {

namespace {

class AbsentFabric final : public Transport {
 public:
  std::string_view name() const override { return "fabric"; }
  std::string problem() const override {
    return "built without libfabric's headers; install them (Debian: libfabric-dev) and build "
           "again";
  }
  Bytes attach(Segment&) override { return {}; }
  bool detach(Segment&, Clock::time_point) override { return true; }
  Bytes offer() override { return {}; }
  Connected connect(const std::shared_ptr<PathOwner>&, std::span<const std::byte>,
                    Clock::time_point) override {
    return {{}, problem()};
  }
  void close() override {}
};

}  // namespace

std::unique_ptr<Transport> make_fabric(const Site&) { return std::make_unique<AbsentFabric>(); }

}  // namespace inlay::transfer
