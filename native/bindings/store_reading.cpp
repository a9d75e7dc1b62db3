#include "store_reading.h"

#include "../core/huge_pages.h"
#include "array.h"

namespace inlay::bindings {

Reading::Reading(KeyList keys, RoomFor room_for, double timeout_s, Buffers* held)
    : keys_(std::move(keys)),
      room_for_(std::move(room_for)),
      held_(held),
      timeout_s_(timeout_s),
      until_(deadline_of(timeout_s)),
      results_(keys_.size()),
      left_(keys_.size()) {
  for (std::size_t i = 0; i < left_.size(); ++i) left_[i] = i;
}

bool Reading::prepare() {
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
    try {
      targets_.push_back(room_for_(at, keys_[at], location->payload_bytes));
    } catch (const ArgumentError& error) {
      results_[at] = {-1, "ArgumentError", error.what()};
      continue;
    }
    found_.push_back(at);
    reads_.push_back({keys_[at], location, {}});
  }
  for (std::size_t i = 0; i < reads_.size(); ++i) reads_[i].targets = targets_[i];
  left_.clear();
  return !reads_.empty();
}

void Reading::step(store::StoreClient& client) {
  if (!finding_) {
    done_ = client.read(reads_, until_, &damaged_);
    if (held_ == nullptr) return;
    std::vector<store::Target> filled;
    for (std::size_t i = 0; i < done_.size(); ++i)
      if (done_[i]) filled.insert(filled.end(), targets_[i].begin(), targets_[i].end());
    held_->send(filled, until_);
    return;
  }
  std::vector<std::string_view> some;
  for (const std::size_t i : left_) some.push_back(keys_[i]);
  if (store::Clock::now() >= until_)
    throw store::StoreFailure(
        store::StoreStatus::kTimeout,
        joined("object '", some.front(), "' was not read within ", timeout_s_, " s"));
  locations_ = client.find(some, until_);
}

void Reading::take_read() {
  for (const store::Damage& damage : damaged_)
    results_[found_[damage.index]] = {-1, store::python_class(store::StoreStatus::kDamaged),
                                      damage.text};
  for (std::size_t i = 0; i < done_.size(); ++i) {
    Result& result = results_[found_[i]];
    if (done_[i])
      result.bytes = static_cast<int64_t>(reads_[i].location->payload_bytes);
    else if (result.error == nullptr)
      left_.push_back(found_[i]);
  }
  done_.clear();
  damaged_.clear();
}

nb::list Reading::list(const std::function<nb::object(std::size_t, int64_t)>& value_of) const {
  nb::list values;
  for (std::size_t i = 0; i < results_.size(); ++i) {
    const Result& result = results_[i];
    if (result.error != nullptr)
      values.append(error_object(result.error, result.text));
    else
      values.append(result.bytes < 0 ? nb::object(nb::none()) : value_of(i, result.bytes));
  }
  return values;
}

nb::object Reading::only(const std::function<nb::object(std::size_t, int64_t)>& value_of) const {
  const Result& result = results_.at(0);
  if (result.error != nullptr) {
    const nb::object error = error_object(result.error, result.text);
    PyErr_SetObject(error.type().ptr(), error.ptr());
    throw nb::python_error();
  }
  return result.bytes < 0 ? nb::object(nb::none()) : value_of(0, result.bytes);
}

MadeBytes::~MadeBytes() {
  const nb::gil_scoped_acquire locked;
  made_.clear();
}

std::vector<store::Target> MadeBytes::room_for(std::size_t at, uint64_t bytes) {
  // Nobody else has seen it yet.
  made_[at] = nb::steal(PyBytes_FromStringAndSize(nullptr, static_cast<Py_ssize_t>(bytes)));
  if (!made_[at].is_valid()) throw nb::python_error();
  char* const room = PyBytes_AS_STRING(made_[at].ptr());
  prefer_huge_pages(room, bytes);
  return {{0, reinterpret_cast<std::byte*>(room), bytes}};
}

std::vector<std::vector<Wanted>> wanted_of(Buffers& held, nb::handle buffers, std::size_t num_keys,
                                           bool in_parts, const std::optional<ByteRanges>& ranges) {
  std::vector<std::vector<Wanted>> wanted;
  wanted.reserve(num_keys);
  each_item(buffers, "buffers", [&](nb::handle item) {
    auto& of_one = wanted.emplace_back();
    const auto add = [&](nb::handle buffer) {
      of_one.push_back({held.add(buffer, true, "buffer"), std::nullopt});
    };
    if (in_parts)
      each_item(item, "buffers", add);
    else
      add(item);
  });
  if (wanted.size() != num_keys)
    fail("buffers: must be ", in_parts ? "a list for each key" : "as many as keys", ", got ",
         wanted.size(), " for ", num_keys, " keys");
  for (std::size_t i = 0; ranges && i < wanted.size(); ++i) {
    if (ranges->size() != wanted.size() || (*ranges)[i].size() != wanted[i].size())
      fail("ranges: must be a pair (offset, length) for each buffer");
    for (std::size_t j = 0; j < wanted[i].size(); ++j) wanted[i][j].range = (*ranges)[i][j];
  }
  return wanted;
}

}  // namespace inlay::bindings
