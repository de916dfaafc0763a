/* The part of the CUDA driver API that cudarc and the safe layer use. Memory is the host's. Handles are small numbers:
 * the log calls the first stream s1, the first event e1, the primary context of device 0 c0. */
#include "fake.h"

#include <pthread.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { DEVICES = 4, NOT_READY = 600, ILLEGAL_ADDRESS = 700, CAPTURE_IMPLICIT = 906, ATTRIBUTE_MEMORY_POOLS = 115, EXTRA_CONTEXT = 100 };

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static char text[1 << 16];
static size_t length;
static int knobs[FAKE_KNOBS];
static intptr_t streams, events, allocations;
/* What the capture of FAKE_CAPTURED has drawn in: an event recorded on a captured stream, a stream that waits for it. */
static intptr_t captured_event, captured_stream;
static struct { void *memory; int name; } blocks[256];
static _Thread_local intptr_t current;

static void append(const char *format, va_list arguments) {
  if (length < sizeof text - 256) {
    length += (size_t)vsnprintf(text + length, 250, format, arguments);
    text[length++] = '\n';
    text[length] = 0;
  }
}

void fake_log(const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  pthread_mutex_lock(&mutex);
  append(format, arguments);
  pthread_mutex_unlock(&mutex);
  va_end(arguments);
}

int fake_get(int knob) {
  pthread_mutex_lock(&mutex);
  int value = knobs[knob];
  pthread_mutex_unlock(&mutex);
  return value;
}

int fake_take(int knob) {
  pthread_mutex_lock(&mutex);
  int value = knobs[knob];
  knobs[knob] = 0;
  pthread_mutex_unlock(&mutex);
  return value;
}

/* For the tests: the log since the last call, into a buffer of 64 KiB. */
void fake_read(char *into) {
  pthread_mutex_lock(&mutex);
  memcpy(into, text, length);
  into[length] = 0;
  length = 0;
  pthread_mutex_unlock(&mutex);
}

/* For the tests: sets a knob. */
void fake_set(int knob, int value) {
  pthread_mutex_lock(&mutex);
  knobs[knob] = value;
  if (knob == FAKE_CAPTURED) captured_event = captured_stream = 0;
  pthread_mutex_unlock(&mutex);
}

/* For the tests: as freshly loaded, for the calling thread. */
void fake_cuda_reset(void) {
  pthread_mutex_lock(&mutex);
  memset(knobs, 0, sizeof knobs);
  streams = events = allocations = 0;
  captured_event = captured_stream = 0;
  length = 0;
  current = 0;
  pthread_mutex_unlock(&mutex);
}

/* The device whose context is current, -1 without one. */
int fake_device(void) { return current ? (int)((current - 1) % EXTRA_CONTEXT) : -1; }

int cuInit(unsigned flags) { return flags ? 1 : 0; }
int cuDriverGetVersion(int *version) { return *version = 12000, 0; }
int cuDeviceGetCount(int *count) { return *count = DEVICES, 0; }
int cuDeviceGet(int *device, int ordinal) {
  *device = ordinal;
  return ordinal < 0 || ordinal >= DEVICES ? 101 : 0;
}
int cuDeviceGetAttribute(int *value, int attribute, int device) {
  (void)device;
  return *value = attribute == ATTRIBUTE_MEMORY_POOLS, 0;
}
/* Devices 0 to 2 are connected with each other. */
int cuDeviceCanAccessPeer(int *can, int device, int peer) { return *can = device != peer && device < 3 && peer < 3, 0; }
int cuDeviceGetMemPool(intptr_t *pool, int device) { return *pool = 0x3000 + device, 0; }
struct access { int kind, device, flags; };
int cuMemPoolSetAccess(intptr_t pool, const struct access *access, size_t count) {
  for (size_t i = 0; i < count; i++)
    fake_log("pool%d opens to %d%s", (int)(pool - 0x3000), access[i].device,
             access[i].kind == 1 && access[i].flags == 3 ? "" : " BUG");
  return 0;
}
int cuDevicePrimaryCtxRetain(intptr_t *context, int device) { return *context = device + 1, 0; }
int cuDevicePrimaryCtxRelease_v2(int device) { return device < 0; }
int cuCtxCreate_v3(intptr_t *context, void *parameters, int count, unsigned flags, int device) {
  (void)parameters, (void)count, (void)flags;
  return *context = current = device + 1 + EXTRA_CONTEXT, 0;
}
int cuCtxDestroy_v2(intptr_t context) { return context == 0; }
int cuCtxGetCurrent(intptr_t *context) { return *context = current, 0; }
int cuCtxSetCurrent(intptr_t context) { return current = context, 0; }
int cuCtxSynchronize(void) { return 0; }

int cuStreamCreate(intptr_t *stream, unsigned flags) {
  (void)flags;
  pthread_mutex_lock(&mutex);
  *stream = 0x1000 + ++streams;
  pthread_mutex_unlock(&mutex);
  return 0;
}
int cuStreamDestroy_v2(intptr_t stream) { return stream == 0; }
int cuStreamQuery(intptr_t stream) {
  (void)stream;
  pthread_mutex_lock(&mutex);
  int busy = knobs[FAKE_STREAM_BUSY] != 0;
  knobs[FAKE_STREAM_BUSY] -= busy;
  pthread_mutex_unlock(&mutex);
  return busy ? NOT_READY : 0;
}
static const char *stream_name(intptr_t stream) {
  static _Thread_local char name[24];
  snprintf(name, sizeof name, stream ? "s%d" : "default", (int)(stream - 0x1000));
  return name;
}
static int captured(intptr_t stream) {
  return knobs[FAKE_CAPTURED] > 0 && (stream == 0x1000 + knobs[FAKE_CAPTURED] || stream == captured_stream);
}
int cuStreamIsCapturing(intptr_t stream, int *status) {
  pthread_mutex_lock(&mutex);
  int implicit = !stream && knobs[FAKE_CAPTURED] < 0;
  *status = captured(stream);
  pthread_mutex_unlock(&mutex);
  return implicit ? CAPTURE_IMPLICIT : 0;
}
int cuStreamSynchronize(intptr_t stream) {
  fake_log("synchronize %s", stream_name(stream));
  return 0;
}
int cuStreamWaitEvent(intptr_t stream, intptr_t event, unsigned flags) {
  (void)flags;
  pthread_mutex_lock(&mutex);
  if (captured_event && event == captured_event) captured_stream = stream;
  pthread_mutex_unlock(&mutex);
  fake_log("%s waits e%d", stream_name(stream), (int)(event - 0x2000));
  return 0;
}
int cuEventCreate(intptr_t *event, unsigned flags) {
  (void)flags;
  pthread_mutex_lock(&mutex);
  *event = 0x2000 + ++events;
  pthread_mutex_unlock(&mutex);
  return 0;
}
int cuEventDestroy_v2(intptr_t event) { return event == 0; }
int cuEventRecord(intptr_t event, intptr_t stream) {
  pthread_mutex_lock(&mutex);
  int fails = knobs[FAKE_EVENT_FAILS] == 1;
  knobs[FAKE_EVENT_FAILS] -= knobs[FAKE_EVENT_FAILS] > 0;
  if (!fails && captured(stream)) captured_event = event;
  pthread_mutex_unlock(&mutex);
  if (fails) return ILLEGAL_ADDRESS;
  fake_log("e%d records %s", (int)(event - 0x2000), stream_name(stream));
  return 0;
}

/* The name of the block that an address lies in, for the log; 0 for none. */
int fake_block(const void *address) {
  int name = 0;
  pthread_mutex_lock(&mutex);
  for (size_t i = 0; i < sizeof blocks / sizeof *blocks; i++)
    if (blocks[i].memory == address) name = blocks[i].name;
  pthread_mutex_unlock(&mutex);
  return name;
}
void *fake_allocate(size_t bytes) {
  void *memory = malloc(bytes ? bytes : 1);
  pthread_mutex_lock(&mutex);
  for (size_t i = 0; i < sizeof blocks / sizeof *blocks; i++)
    if (!blocks[i].memory) {
      blocks[i].memory = memory;
      blocks[i].name = (int)++allocations;
      break;
    }
  pthread_mutex_unlock(&mutex);
  return memory;
}
void fake_free(void *memory) {
  pthread_mutex_lock(&mutex);
  for (size_t i = 0; i < sizeof blocks / sizeof *blocks; i++)
    if (blocks[i].memory == memory) blocks[i].memory = NULL;
  pthread_mutex_unlock(&mutex);
  free(memory);
}

int cuMemAlloc_v2(uintptr_t *address, size_t bytes) {
  *address = (uintptr_t)fake_allocate(bytes);
  fake_log("cuMemAlloc m%d", fake_block((void *)*address));
  return 0;
}
int cuMemFree_v2(uintptr_t address) {
  fake_log("cuMemFree m%d", fake_block((void *)address));
  fake_free((void *)address);
  return 0;
}
int cuMemAllocAsync(uintptr_t *address, size_t bytes, intptr_t stream) {
  (void)stream;
  *address = (uintptr_t)fake_allocate(bytes);
  return 0;
}
int cuMemFreeAsync(uintptr_t address, intptr_t stream) {
  fake_log("free m%d on %s", fake_block((void *)address), stream_name(stream));
  fake_free((void *)address);
  return 0;
}
int cuMemsetD8Async(uintptr_t address, unsigned char value, size_t bytes, intptr_t stream) {
  (void)stream;
  memset((void *)address, value, bytes);
  return 0;
}
int cuMemcpyHtoDAsync_v2(uintptr_t to, const void *from, size_t bytes, intptr_t stream) {
  (void)stream;
  memcpy((void *)to, from, bytes);
  return 0;
}
int cuMemcpyDtoHAsync_v2(void *to, uintptr_t from, size_t bytes, intptr_t stream) {
  (void)stream;
  memcpy(to, (void *)from, bytes);
  return 0;
}
int cuGetErrorName(int code, const char **name) {
  (void)code;
  return *name = "FAKE_ERROR", 0;
}
int cuGetErrorString(int code, const char **words) {
  (void)code;
  return *words = "a failure of the fake driver", 0;
}
