// Runs the layer of the peers' moe_ggml.cpp and lets us ask for single calls: the same messages as
// peer_driver.py. Compiled by peer_layers.py against that file and ggml's headers and libraries.
//
//     ggml_driver FD CHECK TYPE HIDDEN/INTERMEDIATE/EXPERTS/TOP_K THREADS
#define main moe_ggml_main
#include "moe_ggml.cpp"
#undef main

#include <arpa/inet.h>
#include <unistd.h>

#include <fstream>
#include <memory>

namespace {

// Messages of Python's multiprocessing.connection: a length of four bytes, big-endian, and the
// bytes.
struct Connection {
  int fd;

  void send(const std::string& text) const {
    const uint32_t length = htonl(static_cast<uint32_t>(text.size()));
    if (write(fd, &length, 4) != 4 || write(fd, text.data(), text.size()) != ssize_t(text.size()))
      exit(1);
  }
  std::vector<char> receive() const {
    uint32_t length = 0;
    take(reinterpret_cast<char*>(&length), 4);
    std::vector<char> bytes(ntohl(length));
    take(bytes.data(), bytes.size());
    return bytes;
  }

 private:
  void take(char* to, size_t left) const {
    while (left > 0) {
      const ssize_t got = read(fd, to, left);
      if (got <= 0) exit(1);
      to += got;
      left -= static_cast<size_t>(got);
    }
  }
};

// Graphs of some layers for one number of tokens, and the tensors that they read.
class Graphs {
 public:
  Graphs(ggml_backend_t backend, const std::vector<Layer>& layers, const Shape& s, int64_t tokens)
      : backend_(backend), tokens_(tokens) {
    context_ =
        ggml_init({ggml_tensor_overhead() * 4096 + ggml_graph_overhead() * 8, nullptr, true});
    x_ = ggml_new_tensor_2d(context_, GGML_TYPE_F32, s.hidden, tokens);
    ids_ = ggml_new_tensor_2d(context_, GGML_TYPE_I32, s.top_k, tokens);
    weights_ = ggml_new_tensor_3d(context_, GGML_TYPE_F32, 1, s.top_k, tokens);
    inputs_ = ggml_backend_alloc_buffer(
        backend, ggml_nbytes(x_) + ggml_nbytes(ids_) + ggml_nbytes(weights_) + 1024);
    ggml_tallocr place = ggml_tallocr_new(inputs_);
    for (ggml_tensor* tensor : {x_, ids_, weights_}) {
      ggml_set_input(tensor);
      ggml_tallocr_alloc(&place, tensor);
    }
    for (const Layer& layer : layers) {
      graphs_.push_back(ggml_new_graph(context_));
      outs_.push_back(moe(context_, layer, x_, ids_, weights_, s, tokens));
      ggml_set_output(outs_.back());
      ggml_build_forward_expand(graphs_.back(), outs_.back());
      places_.push_back(ggml_gallocr_new(ggml_backend_cpu_buffer_type()));
      ggml_gallocr_alloc_graph(places_.back(), graphs_.back());
    }
  }
  ~Graphs() {
    for (ggml_gallocr_t place : places_) ggml_gallocr_free(place);
    ggml_backend_buffer_free(inputs_);
    ggml_free(context_);
  }
  Graphs(const Graphs&) = delete;
  Graphs& operator=(const Graphs&) = delete;

  int64_t tokens() const { return tokens_; }

  // Milliseconds of one call.
  double call(int64_t index, const std::vector<float>& x, const std::vector<int32_t>& ids,
              const float* weights) {
    ggml_backend_tensor_set(x_, x.data(), 0, ggml_nbytes(x_));
    ggml_backend_tensor_set(ids_, ids.data(), 0, ggml_nbytes(ids_));
    ggml_backend_tensor_set(weights_, weights, 0, ggml_nbytes(weights_));
    const double start = now();
    ggml_backend_graph_compute(backend_, graphs_[static_cast<size_t>(index) % graphs_.size()]);
    return (now() - start) * 1e3;
  }
  std::vector<float> output() const {
    std::vector<float> out(static_cast<size_t>(ggml_nelements(outs_[0])));
    ggml_backend_tensor_get(outs_[0], out.data(), 0, out.size() * sizeof(float));
    return out;
  }

 private:
  ggml_backend_t backend_;
  int64_t tokens_;
  ggml_context* context_;
  ggml_tensor *x_, *ids_, *weights_;
  ggml_backend_buffer_t inputs_;
  std::vector<ggml_cgraph*> graphs_;
  std::vector<ggml_tensor*> outs_;
  std::vector<ggml_gallocr_t> places_;
};

std::vector<float> gaussian(int64_t count, float deviation, std::mt19937& rng) {
  std::normal_distribution<float> normal(0, deviation);
  std::vector<float> values(static_cast<size_t>(count));
  for (float& value : values) value = normal(rng);
  return values;
}

Layer make_layer(ggml_backend_dev_t device, ggml_type type, const Shape& s, std::mt19937& rng) {
  const ggml_type down = s.intermediate % ggml_blck_size(type) ? GGML_TYPE_Q4_0 : type;
  return {make_weight(device, type, s.hidden, s.intermediate, s, true, rng),
          make_weight(device, type, s.hidden, s.intermediate, s, true, rng),
          make_weight(device, down, s.intermediate, s.hidden, s, true, rng)};
}

template <typename T>
std::vector<T> read_array(const std::string& folder, const char* name) {
  std::ifstream file(folder + "/" + name, std::ios::binary | std::ios::ate);
  std::vector<T> values(static_cast<size_t>(file.tellg()) / sizeof(T));
  file.seekg(0);
  file.read(reinterpret_cast<char*>(values.data()), std::streamsize(values.size() * sizeof(T)));
  return values;
}

void fill(ggml_tensor* weight, const std::vector<float>& values) {
  const int64_t columns = weight->ne[0], rows = weight->ne[1] * weight->ne[2];
  std::vector<char> packed(ggml_nbytes(weight));
  ggml_quantize_chunk(weight->type, values.data(), packed.data(), 0, rows, columns, nullptr);
  ggml_backend_tensor_set(weight, packed.data(), 0, packed.size());
}

// Leaves the layer's output for the folder's weights and inputs there.
void answer_check(ggml_backend_t backend, const Layer& layer, const Shape& s,
                  const std::string& folder) {
  fill(layer.gate, read_array<float>(folder, "gate"));
  fill(layer.up, read_array<float>(folder, "up"));
  fill(layer.down, read_array<float>(folder, "down"));
  const std::vector<float> x = read_array<float>(folder, "x");
  const std::vector<int64_t> ids = read_array<int64_t>(folder, "ids");
  Graphs graphs(backend, {layer}, s, int64_t(x.size()) / s.hidden);
  graphs.call(0, x, {ids.begin(), ids.end()}, read_array<float>(folder, "weights").data());
  const std::vector<float> out = graphs.output();
  std::ofstream(folder + "/out", std::ios::binary)
      .write(reinterpret_cast<const char*>(out.data()),
             std::streamsize(out.size() * sizeof(float)));
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 6) return 2;
  const Connection connection{atoi(argv[1])};
  const ggml_type type = parse_type(argv[3]);
  long hidden, intermediate, experts, top_k;
  if (sscanf(argv[4], "%ld/%ld/%ld/%ld", &hidden, &intermediate, &experts, &top_k) != 4) return 2;
  const Shape s{hidden, intermediate, experts, top_k};
  ggml_backend_t backend = ggml_backend_cpu_init();
  ggml_backend_cpu_set_n_threads(backend, atoi(argv[5]));

  std::mt19937 rng(1);
  std::vector<Layer> layers;
  const ggml_backend_dev_t device = ggml_backend_get_device(backend);
  layers.push_back(make_layer(device, type, s, rng));
  if (3 * ggml_nbytes(layers[0].gate) < 1000000000)
    layers.push_back(make_layer(device, type, s, rng));
  if (argv[2] != std::string("-")) answer_check(backend, layers[0], s, argv[2]);
  char about[200];
  snprintf(about, sizeof about, "{\"peer\": \"ggml\", \"version\": \"%s\", \"variant\": \"%s\"}",
           ggml_version(), argv[3]);
  connection.send(about);

  std::unique_ptr<Graphs> graphs;
  for (int64_t done = 0;;) {
    std::vector<char> request = connection.receive();
    if (request.empty()) return 0;
    request.push_back(0);
    long calls, tokens;
    if (sscanf(request.data(), "[%ld, %ld", &calls, &tokens) != 2) return 1;
    const std::vector<char> ids = connection.receive(), weights = connection.receive();
    if (!graphs || graphs->tokens() != tokens)
      graphs = std::make_unique<Graphs>(backend, layers, s, tokens);
    std::string taken;
    for (long c = 0; c < calls; ++c) {
      const int64_t chosen = tokens * s.top_k;
      const int64_t* begin = reinterpret_cast<const int64_t*>(ids.data()) + c * chosen;
      const std::vector<int32_t> call_ids(begin, begin + chosen);
      const double ms = graphs->call(done++, gaussian(s.hidden * tokens, 1.0f, rng), call_ids,
                                     reinterpret_cast<const float*>(weights.data()) + c * chosen);
      taken += (c ? ", " : "[") + std::to_string(ms);
    }
    connection.send(taken + "]");
  }
}
