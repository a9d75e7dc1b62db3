/* Two processes exchange a line through each other's memory.
 *
 *   hello TOKEN_FILE            offers a greeting, prints its address, and at the end of its input
 *                               what was written into its inbox
 *   hello TOKEN_FILE ADDRESS    prints the greeting of that process and answers into its inbox
 *
 * cc -std=c99 hello.c -IPREFIX/include -LPREFIX/lib -Wl,-rpath,PREFIX/lib -linlay_transfer
 */
#include <inlay/transfer.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LINE = 64 };

static inlay_error error = {.size = sizeof(inlay_error)};

static void need(inlay_status status) {
  if (status == INLAY_OK) return;
  fprintf(stderr, "%s\n", error.text);
  exit(1);
}

static inlay_engine* open_engine(const char* token_file) {
  char token[64];
  FILE* file = fopen(token_file, "rb");
  if (file == NULL) {
    perror(token_file);
    exit(1);
  }
  inlay_engine_options options = {.size = sizeof options, .token = token};
  options.token_bytes = fread(token, 1, sizeof token, file);
  fclose(file);
  inlay_engine* engine;
  need(inlay_engine_open(&options, &engine, &error));
  return engine;
}

static inlay_segment* allocate(inlay_engine* engine, const char* name, int32_t access,
                               const char* text) {
  inlay_segment* segment;
  need(inlay_segment_allocate(engine, LINE, name, access, &segment, &error));
  strncpy(inlay_segment_data(segment), text, LINE - 1);
  return segment;
}

static void offer(inlay_engine* engine) {
  inlay_segment* greeting = allocate(engine, "greeting", INLAY_ACCESS_READ, "hello from C");
  inlay_segment* inbox = allocate(engine, "inbox", INLAY_ACCESS_WRITE, "");
  printf("%s\n", inlay_engine_address(engine));
  fflush(stdout);
  while (getchar() != EOF) continue;
  printf("%s\n", (const char*)inlay_segment_data(inbox));
  inlay_segment_release(greeting);
  inlay_segment_release(inbox);
}

static void visit(inlay_engine* engine, const char* address) {
  inlay_segment* got = allocate(engine, NULL, INLAY_ACCESS_NONE, "");
  inlay_segment* answer = allocate(engine, NULL, INLAY_ACCESS_NONE, "C was here");
  inlay_peer* peer;
  inlay_remote *greeting, *inbox;
  need(inlay_peer_connect(engine, address, 5, &peer, &error));
  need(inlay_peer_segment(peer, "greeting", 5, &greeting, &error));
  need(inlay_peer_segment(peer, "inbox", 5, &inbox, &error));

  const inlay_range line = {0, 0, LINE};
  inlay_request requests[2] = {{.op = INLAY_READ, .local = got, .remote = greeting},
                               {.op = INLAY_WRITE, .local = answer, .remote = inbox}};
  for (int i = 0; i < 2; ++i) {
    requests[i].size = sizeof requests[i];
    requests[i].ranges = &line;
    requests[i].num_ranges = 1;
  }
  inlay_batch* batch;
  need(inlay_submit(engine, requests, 2, NULL, &batch, &error));
  need(inlay_batch_wait(batch, -1, &error));
  printf("%s\n", (const char*)inlay_segment_data(got));

  inlay_batch_release(batch);
  inlay_remote_release(greeting);
  inlay_remote_release(inbox);
  inlay_peer_release(peer);
  inlay_segment_release(got);
  inlay_segment_release(answer);
}

int main(int argc, char** argv) {
  if (argc < 2 || argc > 3) {
    fprintf(stderr, "usage: hello TOKEN_FILE [ADDRESS]\n");
    return 2;
  }
  inlay_engine* engine = open_engine(argv[1]);
  if (argc == 2) {
    offer(engine);
  } else {
    visit(engine, argv[2]);
  }
  need(inlay_engine_close(engine, 5, &error));
  return 0;
}
