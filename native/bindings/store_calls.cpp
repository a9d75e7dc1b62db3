// Calls of the store that an event loop awaits: made by threads of the store, step by step, so that
// what needs Python (making the bytes to be filled) is done by the loop's thread.
#include <nanobind/stl/optional.h>
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
#include "store_values.h"

namespace inlay::bindings {

using namespace nb::literals;
using store::Clock;
using store::StoreFailure;
using store::StoreStatus;

namespace {

class Call : public std::enable_shared_from_this<Call> {
 public:
  Call(std::shared_ptr<ClientHandle> client, KeyList keys, double timeout_s)
      : client_(std::move(client)), keys_(std::move(keys)), until_(deadline_of(timeout_s)) {
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
  virtual nb::object result() = 0;

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
          const PutFields& options, double timeout_s)
      : Call(std::move(client), KeyList::of_sequence(keys), timeout_s),
        options_(options_of(options)) {
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
    for (const auto& [outcome, generation] : results_)
      outcomes.append(nb::make_tuple(static_cast<int>(outcome), generation));
    return outcomes;
  }

 private:
  bool prepare() override { return !std::exchange(begun_, true); }
  void step() override {
    std::vector<store::Value> values;
    for (std::size_t i = 0; i < parts_.size(); ++i) values.push_back({keys_[i], parts_[i]});
    results_ = client_->get().put(values, options_, until_);
  }

  const store::PutOptions options_;
  std::vector<std::vector<store::Part>> parts_;
  std::vector<store::Commit::Result> results_;
  bool begun_ = false;
};

// Into buffers of the caller, or into bytes that are made when the sizes are known.
class GetCall final : public Call {
 public:
  GetCall(std::shared_ptr<ClientHandle> client, nb::handle keys, nb::handle buffers,
          double timeout_s)
      : Call(std::move(client), KeyList::of_sequence(keys), timeout_s), sizes_(keys_.size(), -1) {
    for (std::size_t i = 0; i < keys_.size(); ++i) left_.push_back(i);
    if (buffers.is_none()) {
      made_.resize(keys_.size());
      return;
    }
    each_item(buffers, "buffers", [&](nb::handle buffer) {
      wanted_.push_back({{buffers_.add(buffer, true, "buffer"), std::nullopt}});
    });
    if (wanted_.size() != keys_.size())
      fail("buffers: must be as many as keys, got ", wanted_.size(), " for ", keys_.size(),
           " keys");
  }
  ~GetCall() override {
    const nb::gil_scoped_acquire locked;
    made_.clear();
  }

  nb::object result() override {
    nb::list results;
    for (std::size_t i = 0; i < sizes_.size(); ++i) {
      if (sizes_[i] < 0)
        results.append(nb::none());
      else if (wanted_.empty())
        results.append(std::move(made_[i]));
      else
        results.append(sizes_[i]);
    }
    return results;
  }

 private:
  bool prepare() override {
    finding_ = !finding_;
    if (finding_) {
      take_read();
      return !left_.empty();
    }
    reads_.clear();
    targets_.clear();
    found_.clear();
    for (std::size_t i = 0; i < left_.size(); ++i) {
      const store::LocationPtr& location = locations_[i];
      const std::size_t at = left_[i];
      if (location == nullptr) continue;
      found_.push_back(at);
      targets_.push_back(room_for(at, location->payload_bytes));
      reads_.push_back({keys_[at], location, {}});
    }
    for (std::size_t i = 0; i < reads_.size(); ++i) reads_[i].targets = targets_[i];
    left_.clear();
    return !reads_.empty();
  }
  void step() override {
    if (!finding_) {
      done_ = client_->get().read(reads_, until_);
      return;
    }
    std::vector<std::string_view> some;
    for (const std::size_t i : left_) some.push_back(keys_[i]);
    if (Clock::now() >= until_)
      throw StoreFailure(StoreStatus::kTimeout,
                         joined("object '", some.front(), "' was not read in time"));
    locations_ = client_->get().find(some, until_);
  }
  void take_read() {
    for (std::size_t i = 0; i < done_.size(); ++i) {
      if (done_[i])
        sizes_[found_[i]] = static_cast<int64_t>(reads_[i].location->payload_bytes);
      else
        left_.push_back(found_[i]);
    }
    done_.clear();
  }
  std::vector<store::Target> room_for(std::size_t at, uint64_t bytes) {
    if (!wanted_.empty()) return targets_of(keys_[at], wanted_[at], bytes, false);
    made_[at] = nb::steal(PyBytes_FromStringAndSize(nullptr, static_cast<Py_ssize_t>(bytes)));
    if (!made_[at].is_valid()) throw nb::python_error();
    return {{0, reinterpret_cast<std::byte*>(PyBytes_AS_STRING(made_[at].ptr())), bytes}};
  }

  std::vector<std::vector<Wanted>> wanted_;
  std::vector<nb::object> made_;
  std::vector<int64_t> sizes_;
  std::vector<std::size_t> left_;
  std::vector<store::LocationPtr> locations_;
  std::vector<std::size_t> found_;
  std::vector<std::vector<store::Target>> targets_;
  std::vector<store::Read> reads_;
  std::vector<bool> done_;
  bool finding_ = false;
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
         const PutFields& options, double timeout_s) -> std::shared_ptr<Call> {
        return std::make_shared<PutCall>(std::move(client), keys, values, in_parts, options,
                                         timeout_s);
      },
      "client"_a, "keys"_a, "values"_a, "in_parts"_a, "options"_a, "timeout_s"_a);
  m.def(
      "start_get",
      [](std::shared_ptr<ClientHandle> client, nb::handle keys, nb::handle buffers,
         double timeout_s) -> std::shared_ptr<Call> {
        return std::make_shared<GetCall>(std::move(client), keys, buffers, timeout_s);
      },
      "client"_a, "keys"_a, "buffers"_a.none(), "timeout_s"_a);
  m.def(
      "start_ask",
      [](std::shared_ptr<ClientHandle> client, nb::handle keys, bool removes,
         double timeout_s) -> std::shared_ptr<Call> {
        return std::make_shared<AskCall>(std::move(client), keys, removes, timeout_s);
      },
      "client"_a, "keys"_a, "removes"_a, "timeout_s"_a);
}

}  // namespace inlay::bindings
