// A master that listens, and what an administrator asks one.
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <utility>

#include "../store/master_server.h"
#include "../store/remote_link.h"
#include "array.h"
#include "store.h"
#include "store_client.h"
#include "store_values.h"

namespace inlay::bindings {

using namespace nb::literals;
using store::Answer;
using store::Changes;
using store::Drain;
using store::Explain;
using store::List;
using store::MasterServer;
using store::Survey;
using store::Table;

namespace {

nb::dict as_dict(const Survey::Node& node) {
  nb::dict told;
  told["name"] = node.name;
  told["host"] = node.host;
  told["address"] = node.address;
  told["failure_domain"] = node.failure_domain;
  told["ready"] = node.ready;
  told["draining"] = node.draining;
  told["silent_ms"] = node.silent_ms;
  told["memory_bytes"] = node.memory_bytes;
  told["memory_used_bytes"] = node.memory_used_bytes;
  told["disk_bytes"] = node.disk_bytes;
  told["disk_used_bytes"] = node.disk_used_bytes;
  told["fragmentation"] = node.fragmentation;
  return told;
}

nb::dict as_dict(const Survey::Answer& answer) {
  nb::dict counters;
  for (const auto& [name, value] : answer.counters) counters[name.c_str()] = value;
  nb::list nodes;
  for (const auto& node : answer.nodes) nodes.append(as_dict(node));
  nb::dict told;
  told["epoch"] = answer.epoch;
  told["recovering"] = answer.recovering;
  told["objects"] = answer.objects;
  told["counters"] = counters;
  told["nodes"] = nodes;
  return told;
}

nb::list as_list(const Table::Answer& answer) {
  static constexpr char kDigits[] = "0123456789abcdef";
  nb::list segments;
  for (const auto& segment : answer.segments) {
    std::string uuid;
    for (const std::byte byte : segment.uuid) {
      uuid += kDigits[std::to_integer<unsigned>(byte) >> 4];
      uuid += kDigits[std::to_integer<unsigned>(byte) & 15];
    }
    nb::dict told;
    told["id"] = segment.id;
    told["tier"] = segment.tier == store::Tier::kMemory ? "memory" : "disk";
    told["uuid"] = uuid;
    told["bytes"] = segment.bytes;
    told["node"] = segment.node;
    told["host"] = segment.host;
    told["address"] = segment.address;
    told["file"] = segment.file;
    told["ready"] = segment.ready;
    segments.append(told);
  }
  return segments;
}

// (keys, cursor)
nb::tuple as_tuple(const List::Answer& answer) {
  nb::list keys;
  for (const std::string& key : answer.keys) keys.append(nb::bytes(key.data(), key.size()));
  return nb::make_tuple(keys, answer.cursor);
}

// (complete, last, [(stored, key)])
nb::tuple as_tuple(const Changes::Answer& answer) {
  nb::list changes;
  for (const auto& change : answer.changes)
    changes.append(nb::make_tuple(change.stored, nb::bytes(change.key.data(), change.key.size())));
  return nb::make_tuple(answer.complete, answer.last, changes);
}

net::Token token_of(const nb::bytes& token) {
  const auto* begin = reinterpret_cast<const std::byte*>(token.c_str());
  return {begin, begin + token.size()};
}

template <typename Question>
typename Question::Answer ask(const LinkHandle& handle, Question question, double timeout_s) {
  const auto until = deadline_of(timeout_s);
  store::MasterLink& link = handle.get();
  const WithoutGil unlocked;
  return link.ask(std::move(question), until);
}

// The same of the master in this process.
template <typename Question>
typename Question::Answer ask(MasterServer& server, const std::string& tenant, Question question) {
  std::optional<Answer> answer;
  {
    const WithoutGil unlocked;
    answer = server.ask(tenant, question);
  }
  if (!answer) fail("tenant: the master has none named \"", tenant, "\"");
  return std::get<typename Question::Answer>(std::move(*answer));
}

std::shared_ptr<MasterServer> make_server(
    const std::string& listen, const std::vector<std::pair<std::string, nb::bytes>>& tenants,
    uint32_t epoch, std::vector<std::string> expected_nodes, uint32_t location_ttl_ms,
    uint32_t client_timeout_ms, uint32_t node_timeout_ms, uint32_t recover_ms,
    double high_watermark, double low_watermark, const std::string& eviction,
    double serve_until_s) {
  store::MasterServerOptions options;
  options.listen = listen;
  options.serve_until_s = serve_until_s;
  for (const auto& [name, token] : tenants) options.tenants.push_back({token_of(token), name});
  store::MasterOptions& master = options.master;
  net::fill_random({reinterpret_cast<std::byte*>(&master.seed), sizeof(master.seed)});
  master.terms = {epoch, location_ttl_ms, client_timeout_ms, node_timeout_ms};
  master.expected_nodes = std::move(expected_nodes);
  master.recover_ms = recover_ms;
  master.high_watermark = high_watermark;
  master.low_watermark = low_watermark;
  if (!eviction.empty()) master.eviction = eviction;
  const WithoutGil unlocked;
  return std::make_shared<MasterServer>(std::move(options));
}

void set_addresses(const LinkHandle& handle, std::vector<std::string> addresses) {
  auto* link = dynamic_cast<store::RemoteLink*>(&handle.get());
  if (link == nullptr) fail("addresses: the master is in this process");
  link->set_addresses(std::move(addresses));
}

}  // namespace

void register_store_master(nb::module_& m) {
  nb::class_<MasterServer>(m, "MasterServer")
      .def(nb::new_(&make_server), "listen"_a, "tenants"_a, "epoch"_a, "expected_nodes"_a,
           "location_ttl_ms"_a, "client_timeout_ms"_a, "node_timeout_ms"_a, "recover_ms"_a,
           "high_watermark"_a, "low_watermark"_a, "eviction"_a, "serve_until_s"_a)
      .def_prop_ro("address", [](const MasterServer& s) { return s.address(); })
      .def_prop_ro("epoch_seen", &MasterServer::epoch_seen)
      .def("serve_until", &MasterServer::serve_until, "boot_s"_a)
      .def("survey",
           [](MasterServer& s) {
             Survey::Answer answer;
             {
               const WithoutGil unlocked;
               answer = s.survey();
             }
             return as_dict(answer);
           })
      .def(
          "segments",
          [](MasterServer& s, const std::string& tenant) {
            return as_list(ask(s, tenant, Table{}));
          },
          "tenant"_a)
      .def(
          "keys",
          [](MasterServer& s, const std::string& tenant, const std::string& prefix, uint64_t cursor,
             uint32_t limit) { return as_tuple(ask(s, tenant, List{prefix, cursor, limit})); },
          "tenant"_a, "prefix"_a, "cursor"_a, "limit"_a)
      .def(
          "explain",
          [](MasterServer& s, const std::string& tenant, const std::string& key) {
            return ask(s, tenant, Explain{key}).text;
          },
          "tenant"_a, "key"_a)
      .def("stop", &MasterServer::stop, nb::call_guard<nb::gil_scoped_release>());

  m.def("set_addresses", &set_addresses, "link"_a, "addresses"_a);
  m.def(
      "survey",
      [](const LinkHandle& link, double timeout_s) {
        return as_dict(ask(link, Survey{}, timeout_s));
      },
      "link"_a, "timeout_s"_a);
  m.def(
      "keys",
      [](const LinkHandle& link, const std::string& prefix, uint64_t cursor, uint32_t limit,
         double timeout_s) { return as_tuple(ask(link, List{prefix, cursor, limit}, timeout_s)); },
      "link"_a, "prefix"_a, "cursor"_a, "limit"_a, "timeout_s"_a);
  m.def(
      "changes",
      [](const LinkHandle& link, uint64_t after, uint32_t hold_ms, double timeout_s) {
        return as_tuple(ask(link, Changes{after, hold_ms}, timeout_s));
      },
      "link"_a, "after"_a, "hold_ms"_a, "timeout_s"_a);
  m.def(
      "explain",
      [](const LinkHandle& link, const std::string& key, double timeout_s) {
        return ask(link, Explain{key}, timeout_s).text;
      },
      "link"_a, "key"_a, "timeout_s"_a);
  // (known, done, objects left, objects stuck)
  m.def(
      "drain",
      [](const LinkHandle& link, const std::string& node, double timeout_s) {
        const Drain::Answer answer = ask(link, Drain{node}, timeout_s);
        return nb::make_tuple(answer.known, answer.done, answer.objects_left, answer.objects_stuck);
      },
      "link"_a, "node"_a, "timeout_s"_a);
}

}  // namespace inlay::bindings
