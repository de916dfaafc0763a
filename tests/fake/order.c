/* Order of work on streams, and detection of mistakes: use of freed memory, and unordered accesses of which one writes.
 *
 * Every stream has a vector clock: for each stream how much of that stream's work is done before the stream's next piece.
 * An event keeps the clock of the stream that recorded it, and who waits for it takes over what that has. The host is one
 * more, all its threads together: what it has waited for is done before all that it queues afterwards. */
#include "cuda.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>

enum { HOST = STREAMS };
static const unsigned NEVER = UINT_MAX;

static unsigned clocks[STREAMS + 1][STREAMS], events[EVENTS][STREAMS];
static char is_blocking[STREAMS];

void order_reset(void) {
  memset(clocks, 0, sizeof clocks);
  memset(events, 0, sizeof events);
  memset(is_blocking, 0, sizeof is_blocking);
}
void order_new_stream(int stream, int blocking) { is_blocking[stream] = (char)blocking; }
void order_new_event(int event) { memset(events[event], 0, sizeof events[event]); }

static void merge(unsigned *into, const unsigned *from) {
  for (int i = 0; i < STREAMS; i++)
    if (into[i] < from[i]) into[i] = from[i];
}
/* Orders the next work of the stream after everything that the host has waited for. The default stream and blocking ones
 * wait for each other. */
static void next(int stream) {
  merge(clocks[stream], clocks[HOST]);
  if (is_blocking[stream]) merge(clocks[stream], clocks[0]);
  for (int i = 1; !stream && i < STREAMS; i++)
    if (is_blocking[i]) merge(clocks[0], clocks[i]);
}
void order_record(int event, int stream) {
  next(stream);
  memcpy(events[event], clocks[stream], sizeof events[event]);
}
void order_wait(int stream, int event) { merge(clocks[stream], events[event]); }
void order_stream_done(int stream) {
  next(stream);
  merge(clocks[HOST], clocks[stream]);
}
void order_event_done(int event) { merge(clocks[HOST], events[event]); }
int order_host_knows(int event) {
  for (int i = 0; i < STREAMS; i++)
    if (events[event][i] > clocks[HOST][i]) return 0;
  return 1;
}

/* True if the access ended before the next piece of work of the stream, or of the host. */
static int is_before(const struct access *access, int stream) {
  return access->clock <= clocks[stream][access->stream];
}
static int overlap(const struct access *access, size_t from, size_t to) { return access->from < to && from < access->to; }

static void forget(struct block *block, int index) {
  block->count--;
  memmove(&block->accesses[index], &block->accesses[index + 1], sizeof(struct access) * (size_t)(block->count - index));
}
static void remember(struct block *block, const struct access *access) {
  if (block->count == ACCESSES) forget(block, 0);
  block->accesses[block->count++] = *access;
}
/* Work that is ordered after the new access is ordered after these too. */
static void forget_older(struct block *block, const struct access *access) {
  for (int i = block->count - 1; i >= 0; i--) {
    const struct access *older = &block->accesses[i];
    int within = older->from >= access->from && older->to <= access->to && older->clock != NEVER;
    if (within && (access->writes || (!older->writes && older->stream == access->stream))) forget(block, i);
  }
}

/* Logs accesses of the block that conflict with a new one. Announced accesses are launched in order, so one does not
 * conflict with others of its stream. */
static void compare(const struct block *block, const struct access *access, const char *who, int stream) {
  for (int i = 0; i < block->count; i++) {
    const struct access *older = &block->accesses[i];
    int conflict = overlap(older, access->from, access->to) && (older->writes || access->writes);
    int in_turn = access->clock == NEVER && older->clock == NEVER && older->stream == stream;
    if (!conflict || is_before(older, stream) || in_turn) continue;
    fake_log("BUG: %.128s races for m%d with %s%s", who, block->name, older->what,
             older->clock == NEVER ? ", which is yet to be launched" : "");
    return;
  }
}

static struct access access_of(const struct fake_work *work, const struct fake_use *use, unsigned clock) {
  struct access access = {use->from, use->to, use->kind != FAKE_READS, stream_number(work->stream), clock, work->owner, ""};
  snprintf(access.what, sizeof access.what, "%.127s", work->line);
  return access;
}
static void perform_use(const struct fake_work *work, const struct fake_use *use, const char *who) {
  struct block *block = block_of(use->block);
  int stream = stream_number(work->stream);
  if (!block) {
    fake_log("BUG: %.200s uses m%d after it was freed", who, use->block);
    return;
  }
  if (use->known && !work->owner->knows(work->owner, block->start + use->from, use->to - use->from))
    fake_log("BUG: %.200s uses m%d, whose registration or window has ended", who, use->block);
  if (use->kind == FAKE_NAMES) return;
  const struct access access = access_of(work, use, clocks[stream][stream]);
  if (use->kind != FAKE_RECEIVES && !work->late) compare(block, &access, who, stream);
  if (use->kind != FAKE_RECEIVES) forget_older(block, &access);
  remember(block, &access);
}
void perform(const struct fake_work *work, const char *who) {
  fake_lock();
  int stream = stream_number(work->stream);
  next(stream);
  clocks[stream][stream]++;
  for (int i = 0; i < work->count; i++) perform_use(work, &work->uses[i], who);
  struct fake_effect effect = work->effect;
  if (effect.numbers) effect.number = (*effect.numbers)++;
  if (effect.run) fake_do(work->stream, &effect);
  fake_unlock();
}
void fake_perform(const struct fake_work *work) { perform(work, work->line); }

void fake_expect(const struct fake_work *work) {
  fake_lock();
  int stream = stream_number(work->stream);
  next(stream);
  for (int i = 0; i < work->count; i++) {
    const enum fake_kind kind = work->uses[i].kind;
    struct block *block = block_of(work->uses[i].block);
    if (!block || kind == FAKE_NAMES) continue;
    const struct access access = access_of(work, &work->uses[i], NEVER);
    if (kind != FAKE_RECEIVES) compare(block, &access, work->line, stream);
    remember(block, &access);
  }
  fake_unlock();
}
void fake_no_longer_expect(const struct fake_work *work) {
  fake_lock();
  for (int i = 0; i < work->count; i++) {
    struct block *block = block_of(work->uses[i].block);
    const struct access access = access_of(work, &work->uses[i], NEVER);
    for (int k = 0; block && k < block->count; k++) {
      const struct access *expected = &block->accesses[k];
      if (expected->clock != NEVER || expected->from != access.from || strcmp(expected->what, access.what)) continue;
      forget(block, k);
      break;
    }
  }
  fake_unlock();
}

void order_free(const struct block *block, const char *call) {
  char who[64];
  snprintf(who, sizeof who, "%s m%d", call, block->name);
  const struct access access = {.to = block->bytes, .writes = 1};
  compare(block, &access, who, HOST);
}
void fake_must_be_done(const struct fake_owner *owner, const void *start, size_t bytes, const char *call) {
  fake_lock();
  const struct block *block = block_of(fake_block(start));
  size_t from = block ? (size_t)((const char *)start - block->start) : 0;
  for (int i = 0; block && i < block->count; i++) {
    const struct access *access = &block->accesses[i];
    int within = access->from >= from && access->to <= from + bytes;
    if (access->owner != owner || !within || is_before(access, HOST)) continue;
    fake_log("BUG: %s during %s", call, access->what);
    break;
  }
  fake_unlock();
}
