// Calls of the store that an event loop awaits: made by threads of the store, step by step, so that
// what needs Python (making the bytes to be filled) is done by the loop's thread.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <exception>
#include <optional>
#include <utility>

#include "array.h"
#include "store.h"
#include "store_client.h"
#include "store_reading.h"

namespace inlay::bindings {

using namespace nb::literals;
using store::Clock;

namespace {

class Call : public std::enable_shared_from_this<Call> {
 public:
  Call(std::shared_ptr<ClientHandle> client, KeyList keys, double timeout_s)
      : client_(std::move(client)),
        keys_(std::move(keys)),
        until_(deadline_of(timeout_s)),
        buffers_(client_->devices()) {
    (void)client_->get();
  }
  virtual ~Call() = default;

  // Begins the next step, after which `key` is told; false: all is done. Raises what a step threw.
  bool begin(const CompletionsHandle& completions, uint64_t key) {
    if (error_) std::rethrow_exception(std::exchange(error_, nullptr));
    if (!prepare()) return false;
    client_->calls().submit([self = shared_from_this(), queue = completions.queue, key]() mutable {
      try {
        self->step();
      } catch (...) {
        self->error_ = std::current_exception();
      }
      // Whoever is told may be the last to hold the store, which ends this very thread.
      self.reset();
      queue->over(key);
    });
    return true;
  }
  virtual nb::object result() = 0;  // a list

 protected:
  virtual bool prepare() = 0;  // with the GIL
  virtual void step() = 0;     // without

  const std::shared_ptr<ClientHandle> client_;
  const KeyList keys_;
  const Clock::time_point until_;
  Buffers buffers_;

 private:
  std::exception_ptr error_;
};

class PutCall final : public Call {
 public:
  PutCall(std::shared_ptr<ClientHandle> client, nb::handle keys, nb::handle values, bool in_parts,
          const PutFields& options, nb::handle parents, double timeout_s)
      : Call(std::move(client), KeyList::of_sequence(keys), timeout_s),
        options_(options_of(options)),
        parents_(KeyList::of_parents(parents, keys_.size())) {
    each_item(values, "values", [&](nb::handle value) {
      auto& of_one = parts_.emplace_back();
      if (!in_parts)
        of_one.push_back(part_of(buffers_, value));
      else
        each_item(value, "parts",
                  [&](nb::handle part) { of_one.push_back(part_of(buffers_, part)); });
    });
    if (parts_.size() != keys_.size())
      fail("values: must be as many as keys, got ", parts_.size(), " for ", keys_.size(), " keys");
  }

  nb::object result() override {
    nb::list outcomes;
    for (const auto& [outcome, generation, on_disk] : results_)
      outcomes.append(nb::make_tuple(static_cast<int>(outcome), generation));
    return outcomes;
  }

 private:
  bool prepare() override { return !std::exchange(begun_, true); }
  void step() override {
    buffers_.fetch(until_);
    std::vector<store::Value> values;
    for (std::size_t i = 0; i < parts_.size(); ++i)
      values.push_back({keys_[i], parts_[i], parents_.parent(i)});
    results_ = client_->get().put(values, options_, until_);
  }

  const store::PutOptions options_;
  const KeyList parents_;
  std::vector<std::vector<store::Part>> parts_;
  std::vector<store::Commit::Result> results_;
  bool begun_ = false;
};

// Into buffers of the caller, or into bytes that are made when the sizes are known.
class GetCall final : public Call {
 public:
  GetCall(std::shared_ptr<ClientHandle> client, nb::handle keys, nb::handle buffers, bool in_parts,
          const std::optional<ByteRanges>& ranges, double timeout_s)
      : Call(std::move(client), KeyList::of_sequence(keys), timeout_s),
        in_parts_(in_parts),
        reading_(
            KeyList::of_sequence(keys),
            [this](std::size_t i, std::string_view key, uint64_t bytes) {
              return made_ ? made_->room_for(i, bytes)
                           : targets_of(key, wanted_[i], bytes, in_parts_);
            },
            timeout_s, &buffers_) {
    if (buffers.is_none())
      made_.emplace(keys_.size());
    else
      wanted_ = wanted_of(buffers_, buffers, keys_.size(), in_parts, ranges);
  }

  nb::object result() override {
    return reading_.list([this](std::size_t i, int64_t bytes) -> nb::object {
      return made_ ? made_->take(i) : nb::object(nb::int_(bytes));
    });
  }

 private:
  bool prepare() override { return reading_.prepare(); }
  void step() override { reading_.step(client_->get()); }

  const bool in_parts_;
  std::vector<std::vector<Wanted>> wanted_;
  std::optional<MadeBytes> made_;
  Reading reading_;
};

class ViewCall final : public Call {
 public:
  ViewCall(std::shared_ptr<ClientHandle> client, nb::handle key, bool verify, double timeout_s)
      : Call(std::move(client), KeyList::of_one(key), timeout_s), verify_(verify) {}

  // A View, or none.
  nb::object result() override {
    nb::list views;
    if (found_)
      views.append(nb::cast(ViewHandle{std::move(*found_)}, nb::rv_policy::move));
    else
      views.append(nb::none());
    return views;
  }

 private:
  bool prepare() override { return !std::exchange(begun_, true); }
  void step() override { found_ = client_->get().view(keys_[0], verify_, until_); }

  const bool verify_;
  bool begun_ = false;
  std::optional<store::ObjectView> found_;
};

class StatCall final : public Call {
 public:
  StatCall(std::shared_ptr<ClientHandle> client, nb::handle key, double timeout_s)
      : Call(std::move(client), KeyList::of_one(key), timeout_s) {}

  nb::object result() override {
    nb::list objects;
    objects.append(stat_tuple(answer_, *segments_));
    return objects;
  }

 private:
  bool prepare() override { return !std::exchange(begun_, true); }
  void step() override {
    answer_ = client_->get().stat(keys_.all(), until_);
    segments_ = client_->get().segments(answer_.table_version, until_);
  }

  bool begun_ = false;
  store::Stat::Answer answer_;
  std::shared_ptr<const store::Reaches::List> segments_;
};

// Questions to the master alone.
class AskCall final : public Call {
 public:
  AskCall(std::shared_ptr<ClientHandle> client, nb::handle keys, bool removes, double timeout_s)
      : Call(std::move(client), KeyList::of_sequence(keys), timeout_s), removes_(removes) {}

  nb::object result() override {
    nb::list results;
    for (const bool outcome : outcomes_) results.append(outcome);
    return results;
  }

 private:
  bool prepare() override { return !std::exchange(begun_, true); }
  void step() override {
    if (!removes_) {
      outcomes_ = client_->get().exists(keys_.all(), until_);
      return;
    }
    for (const store::Removed outcome : client_->get().remove(keys_.all(), true, until_))
      outcomes_.push_back(outcome == store::Removed::kRemoved);
  }

  const bool removes_;
  bool begun_ = false;
  std::vector<bool> outcomes_;
};

}  // namespace

void register_store_calls(nb::module_& m) {
  nb::class_<Call>(m, "Call")
      .def("begin", &Call::begin, "completions"_a, "key"_a)
      .def("result", &Call::result);
  m.def(
      "start_put",
      [](std::shared_ptr<ClientHandle> client, nb::handle keys, nb::handle values, bool in_parts,
         const PutFields& options, nb::handle parents, double timeout_s) -> std::shared_ptr<Call> {
        return std::make_shared<PutCall>(std::move(client), keys, values, in_parts, options,
                                         parents, timeout_s);
      },
      "client"_a, "keys"_a, "values"_a, "in_parts"_a, "options"_a, "parents"_a.none(),
      "timeout_s"_a);
  m.def(
      "start_get",
      [](std::shared_ptr<ClientHandle> client, nb::handle keys, nb::handle buffers, bool in_parts,
         const std::optional<ByteRanges>& ranges, double timeout_s) -> std::shared_ptr<Call> {
        return std::make_shared<GetCall>(std::move(client), keys, buffers, in_parts, ranges,
                                         timeout_s);
      },
      "client"_a, "keys"_a, "buffers"_a.none(), "in_parts"_a, "ranges"_a.none(), "timeout_s"_a);
  m.def(
      "start_view",
      [](std::shared_ptr<ClientHandle> client, nb::handle key, bool verify,
         double timeout_s) -> std::shared_ptr<Call> {
        return std::make_shared<ViewCall>(std::move(client), key, verify, timeout_s);
      },
      "client"_a, "key"_a, "verify"_a, "timeout_s"_a);
  m.def(
      "start_stat",
      [](std::shared_ptr<ClientHandle> client, nb::handle key,
         double timeout_s) -> std::shared_ptr<Call> {
        return std::make_shared<StatCall>(std::move(client), key, timeout_s);
      },
      "client"_a, "key"_a, "timeout_s"_a);
  m.def(
      "start_ask",
      [](std::shared_ptr<ClientHandle> client, nb::handle keys, bool removes,
         double timeout_s) -> std::shared_ptr<Call> {
        return std::make_shared<AskCall>(std::move(client), keys, removes, timeout_s);
      },
      "client"_a, "keys"_a, "removes"_a, "timeout_s"_a);
}

}  // namespace inlay::bindings
