// Puts and reads of objects.
#include "store_client.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <array>
#include <optional>
#include <thread>
#include <tuple>
#include <vector>

#include "../core/blake2b.h"
#include "array.h"
#include "store.h"
#include "store_reading.h"

namespace inlay::bindings {

using namespace nb::literals;
using store::Clock;
using store::StoreFailure;
using store::StoreStatus;

// As many awaited calls are under way at once: most of their time is that of others.
constexpr std::size_t kCallThreads = 4;
// How long a thread that waits for a device looks before it sleeps.
constexpr int kSpin_us = 20;

LinkHandle::~LinkHandle() {
  if (!made_here()) return;
  const nb::gil_scoped_release unlocked;
  link->close();
  delete link;
}

store::MasterLink& LinkHandle::get() const {
  if (!made_here())
    throw StoreFailure(StoreStatus::kClosed,
                       "this store was opened before a fork, by the parent process; open one in "
                       "the child");
  return *link;
}

ClientHandle::ClientHandle(std::shared_ptr<LinkHandle> link, std::shared_ptr<EngineHandle> engine,
                           bool may_map)
    : link_(std::move(link)),
      engine_(std::move(engine)),
      devices_(std::make_shared<transfer::CudaDevices>(kSpin_us)),
      client_(new store::StoreClient(link_->get(), engine_ ? &engine_->get() : nullptr,
                                     {.may_map = may_map})),
      calls_(new store::CallQueue(kCallThreads)) {}

ClientHandle::~ClientHandle() {
  if (!link_->made_here()) return;
  const nb::gil_scoped_release unlocked;
  delete calls_;
  delete client_;
}

store::StoreClient& ClientHandle::get() const {
  (void)link_->get();
  return *client_;
}

void ClientHandle::close() {
  if (link_->made_here()) client_->close();
}

namespace {

uint64_t group_of(const std::string& name) {
  if (name.empty()) return 0;
  std::array<uint8_t, 8> digest{};
  blake2b({reinterpret_cast<const uint8_t*>(name.data()), name.size()}, {}, digest);
  uint64_t group = 0;
  for (const uint8_t byte : digest) group = group << 8 | byte;
  return std::max<uint64_t>(group, 1);
}

}  // namespace

store::PutOptions options_of(const PutFields& fields) {
  const auto& [replicas, all_replicas, preferred_node, require_preferred, if_exists, flags, group,
               on_disk, recompute_us] = fields;
  if (replicas < 1 || replicas > static_cast<int>(store::kMaxReplicas))
    fail("replicas: must be in 1..", store::kMaxReplicas, ", got ", replicas);
  return {
      .placement = {static_cast<uint16_t>(replicas), all_replicas, preferred_node,
                    require_preferred},
      .if_exists = static_cast<store::IfExists>(if_exists),
      .flags = static_cast<uint16_t>(flags),
      .group = group_of(group),
      .recompute_us = recompute_us,
      .on_disk = on_disk,
  };
}

namespace {

using ValueParts = std::vector<std::vector<store::Part>>;
using Outcomes = std::vector<std::tuple<int, uint64_t>>;

// How a put with many values takes that some have no room: tells of them, and waits so long.
struct LeavesOut {
  std::vector<store::LeftOut> values;
  std::chrono::milliseconds room_wait;
};

Outcomes put(const ClientHandle& handle, const KeyList& keys, Buffers& buffers,
             const ValueParts& parts, const store::PutOptions& options, nb::handle parents,
             double timeout_s, LeavesOut* left_out = nullptr) {
  if (keys.size() != parts.size())
    fail("values: must be as many as keys, got ", parts.size(), " for ", keys.size(), " keys");
  const KeyList parent_keys = KeyList::of_parents(parents, keys.size());
  const Clock::time_point until = deadline_of(timeout_s);
  store::StoreClient& client = handle.get();
  Outcomes outcomes;
  const Waiting waiting;
  buffers.fetch(until);
  std::vector<store::Value> values;
  for (std::size_t i = 0; i < parts.size(); ++i)
    values.push_back({keys[i], parts[i], parent_keys.parent(i)});
  const auto results = left_out == nullptr ? client.put(values, options, until)
                                           : client.put(values, options, until, &left_out->values,
                                                        left_out->room_wait);
  for (const auto& [outcome, generation, on_disk] : results)
    outcomes.emplace_back(static_cast<int>(outcome), generation);
  return outcomes;
}

std::tuple<int, uint64_t> put_one(const ClientHandle& handle, nb::handle key, nb::handle value,
                                  const PutFields& options, nb::handle parents, double timeout_s) {
  Buffers buffers(handle.devices());
  return put(handle, KeyList::of_one(key), buffers, {{part_of(buffers, value)}},
             options_of(options), parents, timeout_s)
      .front();
}

Outcomes put_many(const ClientHandle& handle, nb::handle keys, nb::handle values,
                  const PutFields& options, nb::handle parents, double timeout_s) {
  Buffers buffers(handle.devices());
  ValueParts parts;
  each_item(values, "values",
            [&](nb::handle value) { parts.push_back({part_of(buffers, value)}); });
  return put(handle, KeyList::of_sequence(keys), buffers, parts, options_of(options), parents,
             timeout_s);
}

ValueParts value_parts_of(Buffers& buffers, nb::handle values) {
  ValueParts parts;
  each_item(values, "values", [&](nb::handle value) {
    auto& of_one = parts.emplace_back();
    each_item(value, "parts", [&](nb::handle part) { of_one.push_back(part_of(buffers, part)); });
  });
  return parts;
}

Outcomes put_parts(const ClientHandle& handle, nb::handle keys, nb::handle values,
                   const PutFields& options, nb::handle parents, double timeout_s) {
  Buffers buffers(handle.devices());
  const ValueParts parts = value_parts_of(buffers, values);
  return put(handle, KeyList::of_sequence(keys), buffers, parts, options_of(options), parents,
             timeout_s);
}

nb::list put_parts_each(const ClientHandle& handle, nb::handle keys, nb::handle values,
                        const PutFields& options, nb::handle parents, double room_s,
                        double timeout_s) {
  if (!(room_s >= 0 && room_s <= 1e6)) fail("room_s: must be in 0..1e6 seconds, got ", room_s);
  Buffers buffers(handle.devices());
  const ValueParts parts = value_parts_of(buffers, values);
  LeavesOut left_out{{}, std::chrono::milliseconds(static_cast<int64_t>(room_s * 1000))};
  const Outcomes outcomes = put(handle, KeyList::of_sequence(keys), buffers, parts,
                                options_of(options), parents, timeout_s, &left_out);
  nb::list told;
  for (const auto& [outcome, generation] : outcomes)
    told.append(nb::make_tuple(outcome, generation));
  for (const auto& [index, for_good, text] : left_out.values)
    told[index] =
        error_object(for_good ? "ArgumentError" : store::python_class(StoreStatus::kFull), text);
  return told;
}

void read_all(const ClientHandle& handle, Reading& reading) {
  store::StoreClient& client = handle.get();
  while (reading.prepare()) {
    const Waiting waiting;
    reading.step(client);
  }
}

nb::list get_many(const ClientHandle& handle, nb::handle keys, double timeout_s) {
  KeyList list = KeyList::of_sequence(keys);
  MadeBytes made(list.size());
  Reading reading(
      std::move(list),
      [&](std::size_t i, std::string_view, uint64_t bytes) { return made.room_for(i, bytes); },
      timeout_s);
  read_all(handle, reading);
  return reading.list([&](std::size_t i, int64_t) { return made.take(i); });
}

nb::object get_one(const ClientHandle& handle, nb::handle key, double timeout_s) {
  MadeBytes made(1);
  Reading reading(
      KeyList::of_one(key),
      [&](std::size_t i, std::string_view, uint64_t bytes) { return made.room_for(i, bytes); },
      timeout_s);
  read_all(handle, reading);
  return reading.only([&](std::size_t i, int64_t) { return made.take(i); });
}

nb::object get_into_one(const ClientHandle& handle, nb::handle key, nb::handle buffer,
                        uint64_t offset, double timeout_s) {
  Buffers held(handle.devices());
  const auto memory = held.add(buffer, true, "buffer");
  if (offset > memory.size())
    fail("offset: must be in 0..", memory.size(), ", the buffer's size, got ", offset);
  const std::vector<Wanted> wanted{{memory.subspan(offset), std::nullopt}};
  Reading reading(
      KeyList::of_one(key),
      [&](std::size_t, std::string_view name, uint64_t bytes) {
        return targets_of(name, wanted, bytes, false);
      },
      timeout_s, &held);
  read_all(handle, reading);
  return reading.only([](std::size_t, int64_t bytes) { return nb::int_(bytes); });
}

nb::list get_into(const ClientHandle& handle, nb::handle keys, nb::handle buffers, bool in_parts,
                  const std::optional<ByteRanges>& ranges, double timeout_s) {
  Buffers held(handle.devices());
  KeyList list = KeyList::of_sequence(keys);
  const auto wanted = wanted_of(held, buffers, list.size(), in_parts, ranges);
  Reading reading(
      std::move(list),
      [&](std::size_t i, std::string_view name, uint64_t bytes) {
        return targets_of(name, wanted[i], bytes, in_parts);
      },
      timeout_s, &held);
  read_all(handle, reading);
  return reading.list([](std::size_t, int64_t bytes) { return nb::int_(bytes); });
}

int export_view(PyObject* self, Py_buffer* buffer, int flags) {
  const auto& handle = *nb::inst_ptr<ViewHandle>(self);
  return PyBuffer_FillInfo(buffer, self, const_cast<std::byte*>(handle.view.bytes.data()),
                           static_cast<Py_ssize_t>(handle.view.bytes.size()), 1, flags);
}

PyType_Slot view_slots[] = {{Py_bf_getbuffer, reinterpret_cast<void*>(export_view)}, {0, nullptr}};

std::unique_ptr<ViewHandle> view_object(const ClientHandle& handle, nb::handle key, bool verify,
                                        double timeout_s) {
  const KeyList list = KeyList::of_one(key);
  const Clock::time_point until = deadline_of(timeout_s);
  store::StoreClient& client = handle.get();
  const Waiting waiting;
  auto found = client.view(list[0], verify, until);
  return found ? std::make_unique<ViewHandle>(std::move(*found)) : nullptr;
}

nb::list exists(const ClientHandle& handle, nb::handle keys, double timeout_s) {
  const KeyList list = KeyList::of_sequence(keys);
  const Clock::time_point until = deadline_of(timeout_s);
  store::StoreClient& client = handle.get();
  std::vector<bool> there;
  {
    const Waiting waiting;
    there = client.exists(list.all(), until);
  }
  const nb::object made = nb::steal(PyList_New(static_cast<Py_ssize_t>(there.size())));
  for (std::size_t i = 0; i < there.size(); ++i)
    PyList_SET_ITEM(made.ptr(), static_cast<Py_ssize_t>(i),
                    Py_NewRef(there[i] ? Py_True : Py_False));
  return nb::cast<nb::list>(made);
}

std::vector<int> remove(const ClientHandle& handle, nb::handle keys, bool force, double timeout_s) {
  const KeyList list = KeyList::of_sequence(keys);
  const Clock::time_point until = deadline_of(timeout_s);
  store::StoreClient& client = handle.get();
  const Waiting waiting;
  std::vector<int> outcomes;
  for (const store::Removed outcome : client.remove(list.all(), force, until))
    outcomes.push_back(static_cast<int>(outcome));
  return outcomes;
}

uint64_t remove_group(const ClientHandle& handle, const std::string& group, double timeout_s) {
  if (group.empty()) fail("group: must not be empty");
  const uint64_t number = group_of(group);
  const Clock::time_point until = deadline_of(timeout_s);
  store::StoreClient& client = handle.get();
  const Waiting waiting;
  return client.remove_groups({&number, 1}, until);
}

uint64_t remove_prefix(const ClientHandle& handle, nb::handle prefix, double timeout_s) {
  const KeyList list = KeyList::of_one(prefix);
  const Clock::time_point until = deadline_of(timeout_s);
  store::StoreClient& client = handle.get();
  const Waiting waiting;
  return client.remove_prefix(list[0], until);
}

nb::object stat(const ClientHandle& handle, nb::handle key, double timeout_s) {
  const KeyList list = KeyList::of_one(key);
  const Clock::time_point until = deadline_of(timeout_s);
  store::StoreClient& client = handle.get();
  store::Stat::Answer answer;
  std::shared_ptr<const store::Reaches::List> segments;
  {
    const Waiting waiting;
    answer = client.stat(list.all(), until);
    segments = client.segments(answer.table_version, until);
  }
  return stat_tuple(answer, *segments);
}

nb::dict counts_of(const ClientHandle& handle) {
  const store::ClientCounts& counts = handle.get().counts();
  nb::dict told;
  told["known"] = counts.known.value();
  told["asked"] = counts.asked.value();
  told["absent"] = counts.absent.value();
  told["read"] = counts.read.value();
  told["read_bytes"] = counts.read_bytes.value();
  told["again"] = counts.again.value();
  told["damaged"] = counts.damaged.value();
  told["stored"] = counts.stored.value();
  told["stored_bytes"] = counts.stored_bytes.value();
  told["kept"] = counts.kept.value();
  return told;
}

}  // namespace

nb::object stat_tuple(const store::Stat::Answer& answer, const store::Reaches::List& segments) {
  const auto& object = answer.objects.at(0);
  if (object.presence != store::Presence::kPresent) return nb::none();
  nb::list replicas;
  for (uint32_t p = 0; p < object.num_places; ++p) {
    const store::SegmentId id = answer.places.at(object.first_place + p).segment;
    if (id >= segments.size() || segments[id] == nullptr) continue;
    const auto& about = segments[id]->about;
    replicas.append(nb::make_tuple(about.node, static_cast<int>(about.tier)));
  }
  return nb::make_tuple(object.generation, object.payload_bytes, object.flags,
                        object.wanted_replicas, object.lease_left_ms, object.hits, replicas);
}

void register_store_client(nb::module_& m) {
  nb::class_<ViewHandle>(m, "View", nb::type_slots(view_slots))
      .def_prop_ro("generation", [](const ViewHandle& v) { return v.view.generation; })
      .def_prop_ro("in_place", [](const ViewHandle& v) { return v.view.copy == nullptr; });

  nb::class_<ClientHandle>(m, "Client")
      .def(nb::init<std::shared_ptr<LinkHandle>, std::shared_ptr<EngineHandle>, bool>(), "link"_a,
           "engine"_a.none(), "may_map"_a)
      .def("put", put_one, "key"_a, "value"_a.none(), "options"_a, "parents"_a.none(),
           "timeout_s"_a)
      .def("put_many", put_many, "keys"_a, "values"_a, "options"_a, "parents"_a.none(),
           "timeout_s"_a)
      .def("put_parts", put_parts, "keys"_a, "values"_a, "options"_a, "parents"_a.none(),
           "timeout_s"_a)
      .def("put_parts_each", put_parts_each, "keys"_a, "values"_a, "options"_a, "parents"_a.none(),
           "room_s"_a, "timeout_s"_a)
      .def("get", get_one, "key"_a, "timeout_s"_a)
      .def("get_many", get_many, "keys"_a, "timeout_s"_a)
      .def("get_into", get_into_one, "key"_a, "buffer"_a, "offset"_a, "timeout_s"_a)
      .def("get_into_many", get_into, "keys"_a, "buffers"_a, "in_parts"_a, "ranges"_a.none(),
           "timeout_s"_a)
      .def("view", view_object, "key"_a, "verify"_a, "timeout_s"_a)
      .def("exists", exists, "keys"_a, "timeout_s"_a)
      .def("stat", stat, "key"_a, "timeout_s"_a)
      .def("remove", remove, "keys"_a, "force"_a, "timeout_s"_a)
      .def("remove_group", remove_group, "group"_a, "timeout_s"_a)
      .def("remove_prefix", remove_prefix, "prefix"_a, "timeout_s"_a)
      .def("counts", counts_of)
      .def("close", [](ClientHandle& handle) {
        const WithoutGil unlocked;
        handle.close();
      });
}

}  // namespace inlay::bindings
