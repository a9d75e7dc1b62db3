// Ways to a master: one in this process, or one over TCP.
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "../store/local_link.h"
#include "../store/remote_link.h"
#include "array.h"
#include "store.h"
#include "store_client.h"
#include "store_values.h"

namespace inlay::bindings {

using namespace nb::literals;

namespace {

// In a forked child it is left behind: its thread does not exist there.
struct MasterHandle {
  std::shared_ptr<store::LocalMaster> master;
  unsigned generation = net::fork_generation();

  ~MasterHandle() {
    if (generation != net::fork_generation()) {
      new std::shared_ptr<store::LocalMaster>(std::move(master));
      return;
    }
    const nb::gil_scoped_release unlocked;
    master.reset();
  }
};

}  // namespace

void register_store_link(nb::module_& m) {
  nb::class_<LinkHandle>(m, "Link")
      .def_prop_ro("address", [](const LinkHandle& l) { return l.get().address(); })
      .def_prop_ro("connected", [](const LinkHandle& l) { return l.get().connected(); })
      .def_prop_ro("made_here", &LinkHandle::made_here);
  nb::class_<MasterHandle>(m, "LocalMaster")
      .def(
          "__init__",
          [](MasterHandle* self, uint32_t epoch, std::vector<std::string> expected_nodes) {
            store::MasterOptions options;
            options.terms.epoch = epoch;
            options.expected_nodes = std::move(expected_nodes);
            new (self) MasterHandle{std::make_shared<store::LocalMaster>(std::move(options))};
          },
          "epoch"_a, "expected_nodes"_a);
  m.def(
      "local_link",
      [](const MasterHandle& master, const std::string& tenant) {
        return std::make_shared<LinkHandle>(
            std::make_unique<store::LocalLink>(master.master, tenant));
      },
      "master"_a, "tenant"_a);
  m.def(
      "remote_link",
      [](std::vector<std::string> addresses, const nb::bytes& token, double timeout_s) {
        const auto until = deadline_of(timeout_s);
        const auto* bytes = static_cast<const std::byte*>(token.data());
        const Waiting waiting;
        auto link = std::make_unique<store::RemoteLink>(store::RemoteLinkOptions{
            .addresses = std::move(addresses), .token = {bytes, bytes + token.size()}});
        // Who cannot be reached, or refuses, is told now.
        (void)link->ask(store::Exists{}, until);
        return std::make_shared<LinkHandle>(std::move(link));
      },
      "addresses"_a, "token"_a, "timeout_s"_a);
}

}  // namespace inlay::bindings
