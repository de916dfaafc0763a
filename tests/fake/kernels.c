/* Kernels of the fake CUDA driver: those of src/train/rounding.cu for single precision. */
#include "cuda.h"

#include <stdio.h>
#include <string.h>

enum { MODULE = 0x4000, ENCODE, DECODE, NOT_FOUND = 500 };

int cuModuleLoadData(intptr_t *module, const char *image) {
  fake_log("load a module");
  return *module = MODULE, strstr(image, "encode_f32") ? 0 : INVALID_VALUE;
}
int cuModuleUnload(intptr_t module) { return module == MODULE ? 0 : INVALID_VALUE; }
int cuModuleGetFunction(intptr_t *function, intptr_t module, const char *name) {
  (void)module;
  *function = strcmp(name, "encode_f32") ? DECODE : ENCODE;
  return *function == DECODE && strcmp(name, "decode_f32") ? NOT_FOUND : 0;
}

static int encode(const struct fake_effect *effect) {
  const uint32_t *values = effect->from;
  uint16_t *wire = effect->to;
  for (size_t i = 0; i < effect->count; i++)
    wire[i] = (uint16_t)((values[i] + 0x7fff + (values[i] >> 16 & 1)) >> 16);
  return 1;
}
static int decode(const struct fake_effect *effect) {
  const uint16_t *wire = effect->from;
  uint32_t *values = effect->to;
  for (size_t i = 0; i < effect->count; i++) values[i] = (uint32_t)wire[i] << 16;
  return 1;
}
/* The two addresses, and the number of elements. */
int cuLaunchKernel(intptr_t function, unsigned blocks, unsigned y, unsigned z, unsigned threads, unsigned threads_y,
                   unsigned threads_z, unsigned shared, intptr_t stream, void **arguments, void **extra) {
  (void)y, (void)z, (void)threads_y, (void)threads_z, (void)shared, (void)extra;
  const void *from = *(void **)arguments[0];
  void *to = *(void **)arguments[1];
  const uint64_t count = *(uint64_t *)arguments[2];
  const size_t read = function == ENCODE ? 4 : 2, written = 6 - read;
  struct fake_work work = {.stream = stream};
  snprintf(work.line, sizeof work.line, "%s %s to %s on %s", function == ENCODE ? "encode" : "decode",
           fake_address(from), fake_address(to), fake_stream(stream));
  char who[FAKE_LINE];
  strcpy(who, work.line);
  if (!blocks || !threads) fake_log("BUG: %s with no threads", who);
  fake_use(&work, who, from, count * read, FAKE_READS);
  fake_use(&work, who, to, count * written, FAKE_WRITES);
  int captured = fake_capture(&work);
  if (captured) return captured < 0 ? CAPTURE_INVALIDATED : 0;
  fake_perform(&work);
  if (fake_room(from) < count * read || fake_room(to) < count * written) return ILLEGAL_ADDRESS;
  fake_do(stream, &(struct fake_effect){
                    .run = function == ENCODE ? encode : decode, .from = from, .to = to, .count = count});
  return 0;
}
