/* Memory of the fake CUDA driver: blocks of host memory, named m1, m2 and so on in the log. */
#include "cuda.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Freed blocks above this size are released immediately. */
enum { BLOCKS = 512, LARGE = 1 << 20 };

static struct block blocks[BLOCKS];
static int allocations;

/* Forgets the blocks of a test. Only freed ones are released: the others may still be in use. */
void memory_reset(void) {
  for (int i = 0; i < BLOCKS; i++) {
    if (blocks[i].freed) free(blocks[i].start);
    blocks[i].start = NULL;
    blocks[i].count = 0;
  }
  allocations = 0;
}

/* Under the lock. Blocks are not adjacent, since the allocator keeps its own data between them: the end address is unique. */
struct block *block_at(const void *address) {
  const char *wanted = address;
  for (int i = 0; i < BLOCKS; i++) {
    struct block *block = &blocks[i];
    if (block->start && wanted >= block->start && wanted <= block->start + block->bytes) return block;
  }
  return NULL;
}
static struct block *find_live(const void *address) {
  struct block *block = block_at(address);
  return block && !block->freed ? block : NULL;
}
struct block *block_of(int name) {
  for (int i = 0; i < BLOCKS; i++)
    if (blocks[i].start && !blocks[i].freed && blocks[i].name == name) return &blocks[i];
  return NULL;
}

int fake_block(const void *address) {
  fake_lock();
  const struct block *block = find_live(address);
  int name = block ? block->name : 0;
  fake_unlock();
  return name;
}
size_t fake_room(const void *address) {
  fake_lock();
  const struct block *block = find_live(address);
  size_t room = block ? (size_t)(block->start + block->bytes - (const char *)address) : 0;
  fake_unlock();
  return room;
}
const char *fake_address(const void *address) {
  static _Thread_local char texts[4][40];
  static _Thread_local int next;
  if (!address) return "null";
  char *text = texts[next++ % 4];
  fake_lock();
  const struct block *block = block_at(address);
  const char *freed = block && block->freed ? "freed " : "";
  if (!block) strcpy(text, "unknown");
  else if (address == block->start) sprintf(text, "%sm%d", freed, block->name);
  else sprintf(text, "%sm%d+%zu", freed, block->name, (size_t)((const char *)address - block->start));
  fake_unlock();
  return text;
}

/* A free slot: an unused one, or that of the oldest freed block which no effect uses. */
static struct block *place(void) {
  struct block *found = NULL;
  for (int i = 0; i < BLOCKS; i++) {
    struct block *block = &blocks[i];
    if (!block->start) return block;
    if (block->freed && !block->effects && (!found || block->name < found->name)) found = block;
  }
  if (found) free(found->start);
  return found;
}
void *fake_allocate(size_t bytes, int by_nccl) {
  char *memory = malloc(bytes ? bytes : 1);
  fake_lock();
  struct block *block = place();
  if (block) {
    memset(block, 0, offsetof(struct block, accesses));
    block->start = memory;
    block->bytes = bytes;
    block->name = ++allocations;
    block->by_nccl = by_nccl;
  } else {
    fake_log("BUG: too many blocks of memory for the fake");
  }
  fake_unlock();
  return memory;
}
/* Under the lock. */
static void release(struct block *block) {
  if (block->pins) fake_log("BUG: m%d freed while registered, in a window, or an operator's scalar", block->name);
  if (block->graphs) fake_log("BUG: m%d freed while a graph can use it", block->name);
  block->freed = 1;
  if (block->bytes <= LARGE || block->effects) return;
  free(block->start);
  block->start = NULL;
  block->freed = 0;
}
/* The block that a call frees, or NULL if that is a mistake. Under the lock. */
static struct block *victim(void *memory, int by_nccl, const char *call) {
  struct block *block = find_live(memory);
  if (!block || block->start != memory) {
    fake_log("BUG: %s of %s, which is no block", call, fake_address(memory));
    return NULL;
  }
  if (block->by_nccl != by_nccl) fake_log("BUG: %s of m%d, which is of another kind", call, block->name);
  return block;
}
void fake_free(void *memory, int by_nccl, const char *call) {
  fake_lock();
  struct block *block = victim(memory, by_nccl, call);
  if (block) {
    order_free(block, call);
    release(block);
  }
  fake_unlock();
}
void fake_pin(int name) {
  fake_lock();
  struct block *block = block_of(name);
  if (block) block->pins++;
  fake_unlock();
}
void fake_unpin(int name) {
  fake_lock();
  struct block *block = block_of(name);
  if (block) block->pins--;
  fake_unlock();
}

/* The work's other use of the same bytes, if any. */
static struct fake_use *same_use(struct fake_work *work, const struct fake_use *use) {
  for (int i = 0; i < work->count; i++) {
    struct fake_use *other = &work->uses[i];
    int writable = other->kind <= FAKE_WRITES && use->kind <= FAKE_WRITES;
    if (writable && other->block == use->block && other->from == use->from && other->to == use->to) return other;
  }
  return NULL;
}
void fake_use(struct fake_work *work, const char *who, const void *start, size_t bytes, enum fake_kind kind) {
  if (!bytes) return;
  fake_lock();
  const struct block *block = find_live(start);
  if (bytes > fake_room(start)) {
    fake_log("BUG: %s uses %zu bytes at %s, which has %zu", who, bytes, fake_address(start), fake_room(start));
    fake_unlock();
    return;
  }
  const struct fake_owner *owner = work->owner;
  const size_t from = (size_t)((const char *)start - block->start);
  const int known = owner && owner->knows && owner->knows(owner, start, bytes);
  const struct fake_use use = {block->name, from, from + bytes, kind, known};
  struct fake_use *same = same_use(work, &use);
  if (same) same->kind = kind > same->kind ? kind : same->kind;
  else if (work->count < FAKE_USES) work->uses[work->count++] = use;
  else fake_log("BUG: %s uses too much memory for the fake", who);
  fake_unlock();
}

/* The driver's own work with one or two parts of memory. In a capture it becomes a node, which the fake's graphs only
 * log. Returns NOW if it must be executed now, or the call's result. */
enum { NOW = -1 };
static int work_on(intptr_t stream, const char *what, const void *to, const void *from, size_t bytes) {
  struct fake_work work = {.stream = stream};
  snprintf(work.line, sizeof work.line, "%s %s", what, fake_address(to ? to : from));
  if (to && from) snprintf(work.line, sizeof work.line, "%s %s to %s", what, fake_address(from), fake_address(to));
  char who[FAKE_LINE / 2];
  snprintf(who, sizeof who, "%.100s on %s", work.line, fake_stream(stream));
  if (from) fake_use(&work, who, from, bytes, FAKE_READS);
  if (to) fake_use(&work, who, to, bytes, FAKE_WRITES);
  int captured = fake_capture(&work);
  if (captured) return captured < 0 ? CAPTURE_INVALIDATED : 0;
  strcpy(work.line, who);
  fake_perform(&work);
  /* Memory that is not allocated is not accessed. */
  int there = (!to || fake_room(to) >= bytes) && (!from || fake_room(from) >= bytes);
  return !bytes || there ? NOW : ILLEGAL_ADDRESS;
}

int cuMemAlloc_v2(uintptr_t *address, size_t bytes) {
  int code = capture_refuses_unsafe("cuMemAlloc");
  if (code) return code;
  if (fake_count_down(FAKE_FAILING_ALLOC) && !fake_get(FAKE_FAILING_ALLOC)) {
    fake_log("cuMemAlloc fails");
    return OUT_OF_MEMORY;
  }
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
  if (fake_get(FAKE_NO_MEMORY)) return OUT_OF_MEMORY;
  *address = (uintptr_t)fake_allocate(bytes, 0);
  int code = work_on(stream, "alloc", (void *)*address, NULL, bytes);
  return code == NOW ? 0 : code;
}
int cuMemFreeAsync(uintptr_t address, intptr_t stream) {
  fake_lock();
  void *memory = (void *)address;
  struct block *block = find_live(memory);
  int code = work_on(stream, "free", memory, NULL, block && block->start == memory ? block->bytes : 0);
  if (code == NOW) {
    fake_log("free %s on %s", fake_address(memory), fake_stream(stream));
    block = victim(memory, 0, "cuMemFreeAsync");
    if (block) release(block);
  }
  fake_unlock();
  return code == NOW ? 0 : code;
}
int cuMemsetD8Async(uintptr_t address, unsigned char value, size_t bytes, intptr_t stream) {
  if (!address && bytes) return INVALID_VALUE;
  int code = work_on(stream, "set", (void *)address, NULL, bytes);
  if (code != NOW) return code;
  if (bytes == 1) fake_log("a byte is written on %s", fake_stream(stream));
  fake_do(stream, &(struct fake_effect){
                    .run = fake_fill, .to = (void *)address, .bytes = bytes, .value = value});
  return 0;
}
static int copy(uintptr_t to, const void *from, size_t bytes, int from_host, intptr_t stream, int code) {
  if (code != NOW) return code;
  fake_do(stream, &(struct fake_effect){
                    .run = fake_copy, .to = (void *)to, .from = from, .bytes = bytes, .from_host = from_host});
  return 0;
}
int cuMemcpyHtoDAsync_v2(uintptr_t to, const void *from, size_t bytes, intptr_t stream) {
  if (!to && bytes) return INVALID_VALUE;
  return copy(to, from, bytes, 1, stream, work_on(stream, "copy to", (void *)to, NULL, bytes));
}
/* The last copy to the host that the host could not wait for (FAKE_WAITS_FAIL). */
static struct { void *to; size_t bytes; char data[64]; } late;
void copy_late(void) {
  if (late.to) memcpy(late.to, late.data, late.bytes);
  late.to = NULL;
}
int cuMemcpyDtoHAsync_v2(void *to, uintptr_t from, size_t bytes, intptr_t stream) {
  if (!from && bytes) return INVALID_VALUE;
  int code = work_on(stream, "copy from", NULL, (void *)from, bytes);
  if (code != NOW) return code;
  if (fake_get(FAKE_WAITS_FAIL) && bytes <= sizeof late.data) {
    late.to = to, late.bytes = bytes;
    return memcpy(late.data, (void *)from, bytes), 0;
  }
  copy_blocks(stream);
  return memcpy(to, (void *)from, bytes), 0;
}
int cuMemcpyDtoDAsync_v2(uintptr_t to, uintptr_t from, size_t bytes, intptr_t stream) {
  if ((!to || !from) && bytes) return INVALID_VALUE;
  return copy(to, (void *)from, bytes, 0, stream, work_on(stream, "copy", (void *)to, (void *)from, bytes));
}
int cuMemcpyPeerAsync(uintptr_t to, intptr_t to_context, uintptr_t from, intptr_t from_context, size_t bytes,
                      intptr_t stream) {
  (void)to_context, (void)from_context;
  return cuMemcpyDtoDAsync_v2(to, from, bytes, stream);
}
