// Writes llama.cpp's logits of every position of a prompt. Compiled by gguf_logits.py against the
// headers and libraries of llama.cpp's build.
//
//     llama_logits MODEL OUT THREADS TOKEN...
#include <llama.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <vector>

int main(int argc, char** argv) {
  if (argc < 5) return 2;
  std::vector<llama_token> tokens;
  for (int i = 4; i < argc; ++i) tokens.push_back(std::atoi(argv[i]));
  const auto count = static_cast<int32_t>(tokens.size());

  llama_backend_init();
  llama_model_params options = llama_model_default_params();
  options.use_extra_bufts = false;  // with AMX its own layout crashes (llama-cpp-python 0.3.36)
  llama_model* model = llama_model_load_from_file(argv[1], options);
  if (model == nullptr) return 1;
  llama_context_params params = llama_context_default_params();
  params.n_ctx = params.n_batch = params.n_ubatch = static_cast<uint32_t>(count);
  params.n_threads = params.n_threads_batch = std::atoi(argv[3]);
  // Keys and values as they are: what remains is the rounding of activations.
  params.type_k = params.type_v = GGML_TYPE_F32;
  params.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_DISABLED;
  llama_context* context = llama_init_from_model(model, params);
  if (context == nullptr) return 1;

  llama_batch batch = llama_batch_init(count, 0, 1);
  for (int32_t i = 0; i < count; ++i) {
    batch.token[i] = tokens[static_cast<size_t>(i)];
    batch.pos[i] = i;
    batch.n_seq_id[i] = 1;
    batch.seq_id[i][0] = 0;
    batch.logits[i] = 1;
  }
  batch.n_tokens = count;
  if (llama_decode(context, batch) != 0) return 1;
  const auto width = static_cast<size_t>(llama_vocab_n_tokens(llama_model_get_vocab(model)));
  std::ofstream out(argv[2], std::ios::binary);
  for (int32_t i = 0; i < count; ++i)
    out.write(reinterpret_cast<const char*>(llama_get_logits_ith(context, i)),
              static_cast<std::streamsize>(width * sizeof(float)));
  out.close();
  llama_batch_free(batch);
  llama_free(context);
  llama_model_free(model);
  return out.good() ? 0 : 1;
}
