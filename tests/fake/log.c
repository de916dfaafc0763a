/* Log and settings of the fakes. */
#include "cuda.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

enum { PATIENCE = 20000 };

pthread_mutex_t fake_mutex = PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP;
static char text[1 << 16];
static size_t length;
static int full;
static int knobs[FAKE_KNOBS];

void fake_lock(void) { pthread_mutex_lock(&fake_mutex); }
void fake_unlock(void) { pthread_mutex_unlock(&fake_mutex); }

void fake_log(const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  fake_lock();
  if (!full) {
    full = length + 2 * FAKE_LINE > sizeof text;
    char line[FAKE_LINE];
    vsnprintf(line, sizeof line, format, arguments);
    int kept = full || !knobs[FAKE_ONLY_MISTAKES] || strstr(line, "BUG") || strstr(line, "INSIDE A GROUP");
    if (kept) length += (size_t)sprintf(text + length, "%s\n", full ? "BUG: the log is full" : line);
  }
  fake_unlock();
  va_end(arguments);
}

int fake_get(int knob) {
  fake_lock();
  int value = knobs[knob];
  fake_unlock();
  return value;
}

int fake_take(int knob) {
  fake_lock();
  int value = knobs[knob];
  knobs[knob] = 0;
  fake_unlock();
  return value;
}

int fake_count_down(int knob) {
  fake_lock();
  int positive = knobs[knob] > 0;
  knobs[knob] -= positive;
  fake_unlock();
  return positive;
}

void fake_stay(const char *where) {
  int millis = fake_get(FAKE_CALL_MILLIS), rounds = 0;
  if (!millis) return;
  if (millis < 0) fake_log("inside %s", where);
  const struct timespec time = {0, (millis < 0 ? 1 : millis) * 1000000L};
  do nanosleep(&time, NULL);
  while (fake_get(FAKE_CALL_MILLIS) < 0 && ++rounds < PATIENCE);
  if (rounds < PATIENCE) fake_log("leaving %s", where);
  else fake_log("BUG: nobody ends the stay inside %s", where);
}

/* For the tests: the log since the last call, into a buffer of 64 KiB. */
void fake_read(char *into) {
  fake_lock();
  memcpy(into, text, length);
  into[length] = 0;
  length = 0;
  full = 0;
  fake_unlock();
}

void fake_set(int knob, int value) {
  fake_lock();
  knobs[knob] = value;
  if (knob == FAKE_CAPTURED) captured_reset();
  fake_tell();
  fake_unlock();
}

/* For the tests: resets the fakes, for the calling thread. */
void fake_cuda_reset(void) {
  fake_lock();
  memset(knobs, 0, sizeof knobs);
  length = 0;
  full = 0;
  effects_reset();
  streams_reset();
  memory_reset();
  graphs_reset();
  order_reset();
  fake_unlock();
}
