#include "../net/cuda/stream_words.h"

#include "array.h"
#include "module.h"

namespace inlay::bindings {

using namespace nb::literals;
namespace cuda = net::cuda;

namespace {

const cuda::Driver& started_driver() {
  std::string problem;
  const cuda::Driver* driver = cuda::start_driver(problem);
  if (driver == nullptr) throw ResourceError(problem);
  return *driver;
}

// The words of a hand-over: asked and answered, of each layer.
class StreamWords {
 public:
  StreamWords(nb::handle words_L2, int device)
      : array_(with_own_storage(words_L2), "words_L2", 2, Access::kWrite) {
    array_.require_size(1, 2, "words");
    array_.require_contiguous();
    const uint32_t* words = array_.as<uint32_t>(Kind::kU32);
    words_.emplace(started_driver(), device, words, static_cast<std::size_t>(2 * array_.size(0)));
  }

  void ask(int64_t layer, uint64_t stream) const {
    const std::size_t word = word_of(layer);
    const nb::gil_scoped_release unlocked;
    words_->set(handle(stream), word);
  }
  void wait_answer(int64_t layer, uint64_t stream) const {
    const std::size_t word = word_of(layer) + 1;
    const nb::gil_scoped_release unlocked;
    words_->wait(handle(stream), word);
  }

 private:
  static cuda::StreamHandle handle(uint64_t stream) {
    return reinterpret_cast<cuda::StreamHandle>(stream);
  }
  std::size_t word_of(int64_t layer) const {
    const auto layers = static_cast<int64_t>(words_->count() / 2);
    if (layer < 0 || layer >= layers) fail("layer: must be in 0..", layers - 1, ", got ", layer);
    return static_cast<std::size_t>(2 * layer);
  }

  const Array array_;
  std::optional<cuda::StreamWords> words_;
};

}  // namespace

void register_stream_words(nb::module_& m) {
  nb::class_<StreamWords>(m, "StreamWords")
      .def(nb::init<nb::handle, int>(), "words_L2"_a.none(), "device"_a)
      .def("ask", &StreamWords::ask, "layer"_a, "stream"_a)
      .def("wait_answer", &StreamWords::wait_answer, "layer"_a, "stream"_a);
}

}  // namespace inlay::bindings
