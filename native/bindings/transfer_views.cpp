// Segments, ranges of them, and descriptions of transfers.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>

#include <algorithm>

#include "array.h"
#include "transfer.h"

namespace inlay::bindings {

using namespace nb::literals;
using transfer::Clock;
using transfer::Op;
using transfer::Request;

namespace {

// The range [start, stop) that `key` takes of `size` bytes: a slice without step.
std::pair<uint64_t, uint64_t> byte_range(const nb::slice& key, uint64_t size) {
  Py_ssize_t start = 0;
  Py_ssize_t stop = 0;
  Py_ssize_t step = 0;
  if (PySlice_Unpack(key.ptr(), &start, &stop, &step) < 0) throw nb::python_error();
  if (step != 1) fail("segment[start:stop]: takes no step, got ", step);
  const auto limit = static_cast<Py_ssize_t>(size);
  if (stop == PY_SSIZE_T_MAX) stop = limit;
  if (start < 0) start += limit;
  if (stop < 0) stop += limit;
  // Unlike a list, where less comes back: missing bytes would be a silent loss.
  if (start < 0 || stop > limit || start > stop)
    throw TransferFailure(Status::kSegmentRange,
                          joined("bytes ", start, "..", stop, " of a segment of ", limit));
  return {static_cast<uint64_t>(start), static_cast<uint64_t>(stop - start)};
}

std::string location_of(const net::Location& location) {
  switch (location.place) {
    case net::Place::kHost:
      return "cpu";
    case net::Place::kDevice:
      return "cuda:" + std::to_string(location.index);
    case net::Place::kDisk:
      return "disk";
  }
  return "unknown";
}

LocalView local_view(nb::handle object, const char* name) {
  if (LocalView* view = nullptr; nb::try_cast(object, view) && view != nullptr) return *view;
  if (SegmentHandle* whole = nullptr; nb::try_cast(object, whole) && whole != nullptr)
    return {whole->segment, 0, whole->segment->size};
  fail(name, ": must be a Segment or a range of one, got ", nb::type_name(object.type()).c_str());
}

RemoteView remote_view(nb::handle object, const char* name) {
  if (RemoteView* view = nullptr; nb::try_cast(object, view) && view != nullptr) return *view;
  if (RemoteHandle* whole = nullptr; nb::try_cast(object, whole) && whole != nullptr)
    return {whole->segment, 0, whole->segment->descriptor.size};
  // Far memory of this engine may be the remote side.
  if (LocalView* view = nullptr; nb::try_cast(object, view) && view != nullptr)
    if (view->segment->as_remote != nullptr)
      return {view->segment->as_remote, view->offset, view->size};
  if (SegmentHandle* whole = nullptr; nb::try_cast(object, whole) && whole != nullptr)
    if (whole->segment->as_remote != nullptr)
      return {whole->segment->as_remote, 0, whole->segment->size};
  fail(name,
       ": must be a segment of a peer, a file or device memory of this engine, or a range of one, "
       "got ",
       nb::type_name(object.type()).c_str());
}

Op checked_op(int op) {
  if (op != 0 && op != 1) fail("op: must be Op.READ or Op.WRITE, got ", op);
  return op == 0 ? Op::kRead : Op::kWrite;
}

// Offsets or lengths: unsigned or not negative 64-bit integers.
const uint64_t* counts(const Array& array) {
  if (array.kind() != Kind::kI64)
    fail(array.name(), ": must be int64, got ", kind_name(array.kind()));
  array.require_contiguous();
  const int64_t* values = array.as<const int64_t>(Kind::kI64);
  if (std::any_of(values, values + array.size(0), [](int64_t value) { return value < 0; }))
    fail(array.name(), ": must not be negative, got ",
         *std::min_element(values, values + array.size(0)));
  return reinterpret_cast<const uint64_t*>(values);
}

Request make_ranges(int op, nb::handle local, nb::handle remote, nb::handle local_offsets,
                    nb::handle remote_offsets, nb::handle lengths) {
  const LocalView near = local_view(local, "local");
  const RemoteView far = remote_view(remote, "remote");
  const Array near_offsets(local_offsets, "local_offsets", 1);
  const Array far_offsets(remote_offsets, "remote_offsets", 1);
  const int64_t count = near_offsets.size(0);
  far_offsets.require_size(0, count, "local offsets");
  const uint64_t* near_at = counts(near_offsets);
  const uint64_t* far_at = counts(far_offsets);
  std::optional<Array> varied;
  const uint64_t* length_at = nullptr;
  int64_t same_length = 0;
  if (PyLong_Check(lengths.ptr())) {
    same_length = nb::cast<int64_t>(lengths);
    if (same_length < 0) fail("lengths: must not be negative, got ", same_length);
  } else {
    varied.emplace(lengths, "lengths", 1);
    varied->require_size(0, count, "local offsets");
    length_at = counts(*varied);
  }
  Request request{checked_op(op), near.segment, far.segment, {}};
  request.ranges.reserve(static_cast<std::size_t>(count));
  for (int64_t i = 0; i < count; ++i) {
    const uint64_t length = length_at ? length_at[i] : static_cast<uint64_t>(same_length);
    const bool fits = length <= near.size && near_at[i] <= near.size - length &&
                      length <= far.size && far_at[i] <= far.size - length;
    if (!fits)
      throw TransferFailure(
          Status::kSegmentRange,
          joined("range ", i, " of ", length, " bytes at ", near_at[i], " (local, of ", near.size,
                 " bytes) and ", far_at[i], " (remote, of ", far.size, ") reaches beyond"),
          near.segment->name);
    request.ranges.push_back({near.offset + near_at[i], far.offset + far_at[i], length});
  }
  return request;
}

int export_buffer(PyObject* self, Py_buffer* view, int flags) {
  const auto& handle = *nb::inst_ptr<SegmentHandle>(self);
  if (handle.memory == nullptr) {
    PyErr_SetString(PyExc_BufferError,
                    "only allocated segments are buffers: use the object that was registered");
    return -1;
  }
  return PyBuffer_FillInfo(view, self, handle.memory.get(),
                           static_cast<Py_ssize_t>(handle.segment->size), 0, flags);
}

PyType_Slot segment_slots[] = {{Py_bf_getbuffer, reinterpret_cast<void*>(export_buffer)},
                               {0, nullptr}};

void deregister(SegmentHandle& handle, bool cancel, double timeout_s) {
  transfer::Engine& engine = handle.engine->get();
  const Clock::time_point end =
      Clock::now() + std::chrono::duration_cast<Clock::duration>(
                         std::chrono::duration<double>(checked_seconds("timeout_s", timeout_s)));
  std::shared_ptr<const void> keeper;  // released with the GIL
  const std::shared_ptr<transfer::Segment> segment = handle.segment;
  {
    const WithoutGil unlocked;
    bool first = cancel;
    while (!engine.remove(segment, std::exchange(first, false),
                          std::min(end, Clock::now() + std::chrono::milliseconds(100)))) {
      check_signals();
      if (Clock::now() >= end)
        throw WaitTimeoutError(joined("segment '", segment->name, "' was still in use after ",
                                      timeout_s,
                                      " s; it is closed, its memory must stay until "
                                      "deregister() returns: call it again, or with cancel=True"));
    }
    keeper = segment->take_keeper();
  }
}

}  // namespace

Request make_transfer(int op, nb::handle local, nb::handle remote) {
  const LocalView near = local_view(local, "local");
  const RemoteView far = remote_view(remote, "remote");
  if (near.size != far.size)
    fail("local and remote must be equally long, got ", near.size, " and ", far.size, " bytes");
  return {checked_op(op), near.segment, far.segment, {{near.offset, far.offset, near.size}}};
}

void register_transfer_views(nb::module_& m) {
  nb::class_<LocalView>(m, "SegmentView", "Bytes [offset, offset + size) of a segment.")
      .def_ro("offset", &LocalView::offset)
      .def_ro("size", &LocalView::size)
      .def("__len__", [](const LocalView& view) { return view.size; });

  nb::class_<RemoteView>(m, "RemoteView", "Bytes [offset, offset + size) of a peer's segment.")
      .def_ro("offset", &RemoteView::offset)
      .def_ro("size", &RemoteView::size)
      .def("__len__", [](const RemoteView& view) { return view.size; });

  nb::class_<SegmentHandle>(
      m, "Segment", nb::type_slots(segment_slots),
      "Memory of this process that the engine may use.\n\n"
      "`segment[a:b]` is a range of its bytes (not clipped: SegmentRangeError where it does not\n"
      "reach). Segments from `allocate` are writable buffers: `np.frombuffer(segment, np.uint8)`.\n"
      "It is registered until `deregister`, or the end of a `with`, or until the engine is\n"
      "closed; dropping the object alone does not end it.")
      .def_prop_ro("name", [](const SegmentHandle& h) { return h.segment->name; })
      .def_prop_ro("size", [](const SegmentHandle& h) { return h.segment->size; })
      .def_prop_ro(
          "location", [](const SegmentHandle& h) { return location_of(h.segment->location); },
          "Where its bytes are: 'cpu', 'cuda:0' or 'disk'.")
      .def_prop_ro("registered", [](const SegmentHandle& h) { return h.segment->is_open(); })
      .def("__len__", [](const SegmentHandle& h) { return h.segment->size; })
      .def("__getitem__",
           [](const SegmentHandle& h, const nb::slice& key) {
             const auto [offset, size] = byte_range(key, h.segment->size);
             return LocalView{h.segment, offset, size};
           })
      .def("deregister", deregister, nb::kw_only(), "cancel"_a = false, "timeout_s"_a = 30.0,
           "Take the memory back: nothing touches it after this returns.\n\n"
           "New uses are refused at once. Waits for transfers in progress; with `cancel` it ends\n"
           "them, at the price of the connection of a peer that is reading at this moment.\n\n"
           "Raises:\n"
           "    WaitTimeoutError: still in use after `timeout_s`. It stays closed; its memory\n"
           "        must stay. Call again.")
      .def(
          "grant", grant_pages, "page_ids"_a,
          "Let whoever is told the number that this returns write these pages, until `revoke`.\n\n"
          "Of a segment with `page_bytes`. `page_ids` is a contiguous int32 array. The number has\n"
          "64 bits, is above 0, and nobody guesses it.\n\n"
          "Raises:\n"
          "    ArgumentError: no page, one that there is not, or one that is granted.")
      .def("revoke", revoke_grant, "grant"_a, nb::kw_only(), "timeout_s"_a = 1.0,
           "Take a grant back, whatever its holder does, be it stopped or cut off.\n\n"
           "True: nothing lands under it any more, its pages may be used and granted again. That\n"
           "takes microseconds: no write is waited for, only the pieces of some that are being\n"
           "copied or received at this moment, at most some MiB each. False: such a piece took\n"
           "longer than `timeout_s`, since this process got no processor or the holder's memory\n"
           "could not be read. It may still land, others cannot; leave the pages alone and call\n"
           "again. True, too, for a number that is no grant, or none any more.")
      .def("__enter__", [](nb::object self) { return self; })
      .def(
          "__exit__",
          [](SegmentHandle& h, nb::handle, nb::handle, nb::handle) { deregister(h, false, 30.0); },
          "type"_a.none(), "value"_a.none(), "traceback"_a.none());

  nb::class_<RemoteHandle>(m, "RemoteSegment",
                           "A segment of a peer. `segment[a:b]` is a range of its bytes.")
      .def_prop_ro("name", [](const RemoteHandle& h) { return h.segment->name; })
      .def_prop_ro("size", [](const RemoteHandle& h) { return h.segment->descriptor.size; })
      .def_prop_ro(
          "location",
          [](const RemoteHandle& h) { return location_of(h.segment->descriptor.location); },
          "Where its bytes are, as the peer counts devices: 'cpu', 'cuda:0' or 'disk'.")
      .def_prop_ro("writable", [](const RemoteHandle& h) { return h.segment->descriptor.writable; })
      .def("__len__", [](const RemoteHandle& h) { return h.segment->descriptor.size; })
      .def("__getitem__", [](const RemoteHandle& h, const nb::slice& key) {
        const auto [offset, size] = byte_range(key, h.segment->descriptor.size);
        return RemoteView{h.segment, offset, size};
      });

  nb::class_<TransferHandle>(
      m, "Transfer",
      "One copy between a range here and an equally long range of a peer.\n\n"
      "`Transfer(Op.READ, local=seg[0:n], remote=peer['kv'][0:n])`; whole segments will do, too.\n"
      "A write of pages that their owner granted carries `grant`; GrantError where it is not for\n"
      "all of them, or not any more.")
      .def(
          "__init__",
          [](TransferHandle* self, int op, nb::handle local, nb::handle remote, uint64_t grant) {
            new (self) TransferHandle{make_transfer(op, local, remote)};
            self->request.grant = grant;
          },
          "op"_a, "local"_a.none(), "remote"_a.none(), nb::kw_only(), "grant"_a = 0);

  nb::class_<RangesHandle>(
      m, "Ranges",
      "Thousands of copies between two segments as one transfer.\n\n"
      "Range i is `lengths[i]` bytes (or `lengths`, one int for all) at `local_offsets[i]` of\n"
      "`local` and `remote_offsets[i]` of `remote`: contiguous int64 arrays of one length. They\n"
      "are checked and copied here, in about 11 ns per range. `grant` is as in Transfer.\n\n"
      "Raises:\n"
      "    SegmentRangeError: a range reaches beyond; names the first such.")
      .def(
          "__init__",
          [](RangesHandle* self, int op, nb::handle local, nb::handle remote,
             nb::handle local_offsets, nb::handle remote_offsets, nb::handle lengths,
             uint64_t grant) {
            new (self) RangesHandle{
                make_ranges(op, local, remote, local_offsets, remote_offsets, lengths)};
            self->request.grant = grant;
          },
          "op"_a, "local"_a.none(), "remote"_a.none(), "local_offsets"_a.none(),
          "remote_offsets"_a.none(), "lengths"_a.none(), nb::kw_only(), "grant"_a = 0)
      .def("__len__", [](const RangesHandle& h) { return h.request.ranges.size(); });
}

}  // namespace inlay::bindings
