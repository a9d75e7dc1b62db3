// Nodes: memory, and a disk, that this process contributes.
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>

#include <functional>
#include <mutex>
#include <optional>

#include "../store/node.h"
#include "array.h"
#include "store.h"
#include "store_client.h"
#include "store_values.h"

namespace inlay::bindings {

using namespace nb::literals;

namespace {

// Until a node has it. In a forked child it is left behind: its threads do not exist there.
class DiskHandle {
 public:
  DiskHandle(const std::string& path, uint64_t bytes, const std::string& tenant) {
    const WithoutGil unlocked;
    disk_ = std::make_unique<store::NodeDisk>(path, bytes, tenant);
  }
  DiskHandle(const DiskHandle&) = delete;
  DiskHandle& operator=(const DiskHandle&) = delete;
  ~DiskHandle() {
    if (generation_ != net::fork_generation()) {
      (void)disk_.release();
      return;
    }
    const nb::gil_scoped_release unlocked;
    disk_.reset();
  }

  uint32_t epoch() const {
    if (disk_ == nullptr) fail("disk: a node has it");
    return disk_->epoch();
  }
  std::unique_ptr<store::NodeDisk> take() {
    if (disk_ == nullptr || generation_ != net::fork_generation())
      fail("disk: a node has it, or it was opened before a fork");
    return std::move(disk_);
  }

 private:
  std::unique_ptr<store::NodeDisk> disk_;
  const unsigned generation_ = net::fork_generation();
};

// In a forked child it is left behind, as its link is.
class NodeHandle {
 public:
  NodeHandle(std::shared_ptr<LinkHandle> link, std::shared_ptr<EngineHandle> engine,
             store::StoreNode::Options options, DiskHandle* disk, double timeout_s,
             const nb::object& on_name_taken)
      : link_(std::move(link)), engine_(std::move(engine)) {
    const auto until = deadline_of(timeout_s);
    if (options.directory.empty())
      options.directory = store::store_directory() + "/" + options.name;
    store::MasterLink& link_used = link_->get();
    transfer::Engine* native = engine_ ? &engine_->get() : nullptr;
    auto taken = disk == nullptr ? nullptr : disk->take();
    std::function<void()> tell;
    if (!on_name_taken.is_none())
      tell = [&on_name_taken, &link_used] {
        const nb::gil_scoped_acquire locked;
        on_name_taken(link_used.address());
      };
    const WithoutGil unlocked;
    store::StoreSegment::clear_abandoned();
    node_ =
        new store::StoreNode(link_used, native, std::move(options), until, std::move(taken), tell);
  }
  NodeHandle(const NodeHandle&) = delete;
  NodeHandle& operator=(const NodeHandle&) = delete;
  ~NodeHandle() {
    if (!link_->made_here()) return;
    const nb::gil_scoped_release unlocked;
    delete node_;
  }

  store::StoreNode& get() const {
    (void)link_->get();
    return *node_;
  }
  void close() {
    if (!link_->made_here()) return;
    const WithoutGil unlocked;
    const std::lock_guard lock(closing_);
    node_->close();
  }
  std::optional<store::NodeDisk::Figures> disk_figures() {
    store::StoreNode& node = get();
    const WithoutGil unlocked;
    const std::lock_guard lock(closing_);
    return node.disk_figures();
  }

 private:
  std::shared_ptr<LinkHandle> link_;
  std::shared_ptr<EngineHandle> engine_;
  store::StoreNode* node_ = nullptr;
  std::mutex closing_;
};

nb::dict dict_of(const store::NodeDisk::Moved& moved) {
  nb::dict told;
  told["records"] = moved.records;
  told["bytes"] = moved.bytes;
  told["missing"] = moved.missing;
  told["seconds"] = moved.seconds;
  nb::list calls;
  for (const uint64_t count : moved.calls) calls.append(count);
  told["calls"] = calls;
  return told;
}

nb::object disk_dict(NodeHandle& node) {
  const auto figures = node.disk_figures();
  if (!figures) return nb::none();
  nb::dict told;
  told["objects"] = figures->log.records;
  told["living_bytes"] = figures->log.living_bytes;
  told["extents"] = figures->log.extents;
  told["free_extents"] = figures->log.free_extents;
  told["damaged"] = figures->log.damaged;
  told["read"] = dict_of(figures->read);
  told["written"] = dict_of(figures->written);
  return told;
}

std::shared_ptr<NodeHandle> make_node(std::shared_ptr<LinkHandle> link,
                                      std::shared_ptr<EngineHandle> engine, std::string name,
                                      std::string tenant, std::string failure_domain,
                                      std::string directory, int64_t memory_bytes, bool keeps,
                                      DiskHandle* disk, double timeout_s,
                                      const nb::object& on_name_taken) {
  if (memory_bytes < 1) fail("memory: must be at least 1 byte, got ", memory_bytes);
  return std::make_shared<NodeHandle>(std::move(link), std::move(engine),
                                      store::StoreNode::Options{
                                          .name = std::move(name),
                                          .tenant = std::move(tenant),
                                          .failure_domain = std::move(failure_domain),
                                          .directory = std::move(directory),
                                          .memory_bytes = static_cast<uint64_t>(memory_bytes),
                                          .keeps = keeps,
                                      },
                                      disk, timeout_s, on_name_taken);
}

}  // namespace

void register_store_node(nb::module_& m) {
  nb::class_<DiskHandle>(m, "Disk")
      .def(nb::init<const std::string&, uint64_t, const std::string&>(), "path"_a, "bytes"_a,
           "tenant"_a)
      .def_prop_ro("epoch", &DiskHandle::epoch);
  nb::class_<NodeHandle>(m, "Node")
      .def(nb::new_(&make_node), "link"_a, "engine"_a.none(), "name"_a, "tenant"_a,
           "failure_domain"_a, "directory"_a, "memory_bytes"_a, "keeps"_a, "disk"_a.none(),
           "timeout_s"_a, "on_name_taken"_a.none() = nb::none())
      .def_prop_ro("name", [](const NodeHandle& n) { return n.get().name(); })
      .def_prop_ro("memory_bytes", [](const NodeHandle& n) { return n.get().memory_bytes(); })
      .def_prop_ro("adopted_records", [](const NodeHandle& n) { return n.get().adopted_records(); })
      .def("disk_figures", &disk_dict)
      .def("close", &NodeHandle::close);
}

}  // namespace inlay::bindings
