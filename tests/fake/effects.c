/* Effects of work on memory, in the order of the streams. They come at once, unless one must wait: for other ranks, or
 * for an event of a stream that waits. */
#include "cuda.h"

#include <stdlib.h>
#include <string.h>

struct queued {
  struct queued *next;
  struct fake_effect effect;
  struct block *blocks[2]; /* not released before */
  void *staged;            /* copy of host memory */
};
static struct queue {
  struct queued *first, *last;
  unsigned long queued, done; /* numbers of all effects that have waited */
} queues[STREAMS];
static int waiting;

static void append(struct queue *queue, const struct fake_effect *effect) {
  struct queued *queued = calloc(1, sizeof *queued);
  queued->effect = *effect;
  if (effect->from_host)
    queued->effect.from = queued->staged = memcpy(malloc(effect->bytes), effect->from, effect->bytes);
  const void *const used[] = {effect->from, effect->to};
  for (int i = 0; i < 2; i++) {
    queued->blocks[i] = used[i] ? block_at(used[i]) : NULL;
    if (queued->blocks[i]) queued->blocks[i]->effects++;
  }
  if (queue->first) queue->last->next = queued;
  else queue->first = queued;
  queue->last = queued;
  queue->queued++;
  waiting++;
}
static void pop(struct queue *queue) {
  struct queued *queued = queue->first;
  queue->first = queued->next;
  for (int i = 0; i < 2; i++)
    if (queued->blocks[i]) queued->blocks[i]->effects--;
  free(queued->staged);
  free(queued);
  queue->done++;
  waiting--;
}
void effects_reset(void) {
  for (int i = 0; i < STREAMS; i++) {
    while (queues[i].first) pop(&queues[i]);
    queues[i] = (struct queue){0};
  }
}

void fake_proceed(void) {
  for (int moved = 1; moved && waiting;) {
    moved = 0;
    for (int i = 0; i < STREAMS; i++)
      for (struct queued *first; (first = queues[i].first) && first->effect.run(&first->effect); moved = 1)
        pop(&queues[i]);
  }
  fake_tell();
}
void fake_do(intptr_t stream, const struct fake_effect *effect) {
  fake_lock();
  struct queue *queue = &queues[stream_number(stream)];
  if (queue->first || !effect->run(effect)) append(queue, effect);
  else if (waiting) fake_proceed();
  fake_unlock();
}

int fake_copy(const struct fake_effect *effect) {
  return memmove(effect->to, effect->from, effect->bytes), 1;
}
int fake_fill(const struct fake_effect *effect) {
  return memset(effect->to, effect->value, effect->bytes), 1;
}

unsigned long effects_queued(int stream) { return queues[stream].queued; }
int effects_done(int stream, unsigned long queued) { return queues[stream].done >= queued; }
int effects_wait(int stream) { return queues[stream].first != NULL; }
static int has_come(const struct fake_effect *effect) { return effects_done(effect->value, effect->number); }
void effects_await(intptr_t stream, int other, unsigned long queued) {
  const struct fake_effect effect = {.run = has_come, .value = other, .number = queued};
  if (!effects_done(other, queued)) fake_do(stream, &effect);
}
