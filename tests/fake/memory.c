/* Memory of the fake CUDA driver: blocks of the host's, called m1, m2 and so on in the log. */
#include "cuda.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct block {
  char *start;
  size_t bytes;
  int name, pins, by_nccl;
} blocks[256];
static int allocations;

/* What a test has left behind is forgotten. */
void memory_reset(void) {
  memset(blocks, 0, sizeof blocks);
  allocations = 0;
}

/* Under the lock. Blocks do not touch: the allocator keeps its own data between them. So the end of one is its. */
static struct block *find(const void *address) {
  const char *wanted = address;
  for (size_t i = 0; i < sizeof blocks / sizeof *blocks; i++) {
    struct block *block = &blocks[i];
    if (block->start && wanted >= block->start && wanted <= block->start + block->bytes) return block;
  }
  return NULL;
}
static struct block *named(int name) {
  for (size_t i = 0; i < sizeof blocks / sizeof *blocks; i++)
    if (blocks[i].start && blocks[i].name == name) return &blocks[i];
  return NULL;
}

int fake_block(const void *address) {
  fake_lock();
  const struct block *block = find(address);
  int name = block ? block->name : 0;
  fake_unlock();
  return name;
}
size_t fake_room(const void *address) {
  fake_lock();
  const struct block *block = find(address);
  size_t room = block ? (size_t)(block->start + block->bytes - (const char *)address) : 0;
  fake_unlock();
  return room;
}
const char *fake_address(const void *address) {
  static _Thread_local char texts[4][32];
  static _Thread_local int next;
  if (!address) return "null";
  char *text = texts[next++ % 4];
  fake_lock();
  const struct block *block = find(address);
  if (!block) strcpy(text, "unknown");
  else if (address == block->start) sprintf(text, "m%d", block->name);
  else sprintf(text, "m%d+%zu", block->name, (size_t)((const char *)address - block->start));
  fake_unlock();
  return text;
}
int memory_is_live(int block) { return named(block) != NULL; }

void *fake_allocate(size_t bytes, int by_nccl) {
  char *memory = malloc(bytes ? bytes : 1);
  fake_lock();
  size_t i = 0;
  while (i < sizeof blocks / sizeof *blocks && blocks[i].start) i++;
  if (i < sizeof blocks / sizeof *blocks) blocks[i] = (struct block){memory, bytes, ++allocations, 0, by_nccl};
  else fake_log("BUG: too many blocks of memory for the fake");
  fake_unlock();
  return memory;
}
void fake_free(void *memory, int by_nccl, const char *call) {
  fake_lock();
  struct block *block = find(memory);
  if (!block || block->start != memory) fake_log("BUG: %s of %s, which is no block", call, fake_address(memory));
  else {
    if (block->by_nccl != by_nccl) fake_log("BUG: %s of m%d, which is of another kind", call, block->name);
    if (block->pins) fake_log("BUG: m%d freed while registered, in a window, or an operator's scalar", block->name);
    block->start = NULL;
    free(memory);
  }
  fake_unlock();
}
void fake_pin(int name) {
  fake_lock();
  struct block *block = named(name);
  if (block) block->pins++;
  fake_unlock();
}
void fake_unpin(int name) {
  fake_lock();
  struct block *block = named(name);
  if (block) block->pins--;
  fake_unlock();
}

/* What would become a node of a graph: the graphs of the fake do not repeat it, they only say so. */
static int captured(intptr_t stream, const char *what, const void *address) {
  char line[64];
  snprintf(line, sizeof line, "%s %s", what, fake_address(address));
  return fake_capture(stream, NULL, address, NULL, line);
}
#define UNLESS_CAPTURED(stream, what, address) \
  do { \
    int captures = captured(stream, what, (const void *)(address)); \
    if (captures) return captures < 0 ? CAPTURE_INVALIDATED : 0; \
  } while (0)

int cuMemAlloc_v2(uintptr_t *address, size_t bytes) {
  int code = capture_refuses_unsafe("cuMemAlloc");
  if (code) return code;
  *address = (uintptr_t)fake_allocate(bytes, 0);
  fake_log("cuMemAlloc %s", fake_address((void *)*address));
  return 0;
}
int cuMemFree_v2(uintptr_t address) {
  int code = capture_refuses_unsafe("cuMemFree");
  if (code) return code;
  fake_log("cuMemFree %s", fake_address((void *)address));
  fake_free((void *)address, 0, "cuMemFree");
  return 0;
}
int cuMemAllocAsync(uintptr_t *address, size_t bytes, intptr_t stream) {
  *address = (uintptr_t)fake_allocate(bytes, 0);
  UNLESS_CAPTURED(stream, "alloc", *address);
  return 0;
}
int cuMemFreeAsync(uintptr_t address, intptr_t stream) {
  UNLESS_CAPTURED(stream, "free", address);
  fake_log("free %s on %s", fake_address((void *)address), fake_stream(stream));
  fake_free((void *)address, 0, "cuMemFreeAsync");
  return 0;
}
int cuMemsetD8Async(uintptr_t address, unsigned char value, size_t bytes, intptr_t stream) {
  UNLESS_CAPTURED(stream, "set", address);
  if (bytes == 1) fake_log("a byte is written on %s", fake_stream(stream));
  memset((void *)address, value, bytes);
  return 0;
}
int cuMemcpyHtoDAsync_v2(uintptr_t to, const void *from, size_t bytes, intptr_t stream) {
  UNLESS_CAPTURED(stream, "copy to", to);
  memcpy((void *)to, from, bytes);
  return 0;
}
int cuMemcpyDtoHAsync_v2(void *to, uintptr_t from, size_t bytes, intptr_t stream) {
  UNLESS_CAPTURED(stream, "copy from", from);
  memcpy(to, (void *)from, bytes);
  return 0;
}
