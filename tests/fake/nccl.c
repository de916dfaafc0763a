/* A fake NCCL that logs operations. This file: versions, errors, groups and operations. */
#include "library.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum { QUEUE = 256 };

/* NCCL's configuration of one operation. */
struct settings {
  size_t size;
  unsigned magic, version;
  const void *extensions;
  int min_ctas, max_ctas, nvls_ctas, cluster;
  const char *algorithm;
  int forced, policy;
  uint64_t tag;
  intptr_t event;
};

static char last_error[1024];
static _Thread_local int depth, group_error, queued, held, late;
static _Thread_local struct { struct comm *comm; struct fake_work work; } queue[QUEUE];
static _Thread_local struct comm *holding[QUEUE];

/* For the tests: restarts the names. */
void fake_nccl_reset(void) {
  worker_reset();
  communicators_reset();
  objects_reset();
  exchange_reset();
}

int ncclGetVersion(int *version) { return *version = FAKE_VERSION, SUCCESS; }
const char *ncclGetErrorString(int code) { return code == INVALID_ARGUMENT ? "invalid argument" : "fake words"; }
const char *ncclGetLastError(struct comm *comm) { return (void)comm, last_error; }

int refuse(int code, const char *words) {
  fake_lock();
  snprintf(last_error, sizeof last_error, "%s", words);
  fake_unlock();
  if (depth) group_error = code;
  return code;
}

/* Groups. */

int in_group(void) { return depth > 0; }
void hold(struct comm *comm) {
  if (comm->held) return;
  if (held == QUEUE) {
    fake_log("BUG: too many communicators in a group for the fake");
    return;
  }
  comm->held = 1;
  holding[held++] = comm;
}
static void let_go(void) {
  for (int i = 0; i < held; i++) {
    holding[i]->held = holding[i]->managed = 0;
    leave(holding[i]);
  }
  held = 0;
}

int launch(const struct fake_work *work) {
  int captured = fake_capture(work);
  if (captured < 0) return refuse(UNHANDLED_CUDA_ERROR, "the capture is invalid");
  if (captured) return SUCCESS;
  fake_log("launch %s", work->line);
  fake_perform(work);
  if (fake_count_down(FAKE_HANG)) fake_hang(work->stream, work->owner);
  return SUCCESS;
}
/* Outside a group, or at its end. */
static int start(struct comm *comm, const struct fake_work *work) {
  if (!has_worker(comm)) return launch(work);
  comm->owner.busy = 1;
  work_later(comm, work);
  return IN_PROGRESS;
}

int submit(struct comm *comm, const struct fake_work *work) {
  int result = fake_take(FAKE_NCCL_RESULT);
  if (result && result != IN_PROGRESS) return refuse(result, "the fake was told to fail");
  if (!depth) {
    comm->owner.busy = result == IN_PROGRESS;
    int code = start(comm, work);
    return code ? code : result;
  }
  if (result) late = 1;
  if (queued == QUEUE) return fake_log("BUG: too many operations in a group for the fake"), INVALID_USAGE;
  hold(comm);
  queue[queued].comm = comm;
  queue[queued++].work = *work;
  return SUCCESS;
}

/* Drops the queue because of an error. */
static int cancel(int error, int operations) {
  for (int i = 0; i < held; i++) break_promises(holding[i]);
  fake_log("group of %d cancelled", operations);
  let_go();
  return error;
}
/* Management calls of the group, which NCCL continues in the background. */
static int finish_group(int result) {
  for (int i = 0; i < held; i++) {
    if (result == IN_PROGRESS) holding[i]->owner.busy = 1;
    int code = holding[i]->managed ? settle(holding[i]) : SUCCESS;
    if (code) result = code;
  }
  let_go();
  return result;
}

int ncclGroupStart(void) { return depth++, SUCCESS; }
int ncclGroupEnd(void) {
  if (depth == 0) return INVALID_USAGE;
  if (--depth) return SUCCESS;
  int error = group_error, operations = queued;
  int in_progress = late;
  group_error = queued = late = 0;
  if (error) return cancel(error, operations);
  for (int i = 0; i < operations && !error; i++) {
    error = start(queue[i].comm, &queue[i].work);
    if (error == IN_PROGRESS) in_progress = 1, error = SUCCESS;
  }
  if (!error && operations) error = in_progress ? IN_PROGRESS : fake_take(FAKE_NCCL_RESULT);
  return finish_group(error);
}

#if FAKE_VERSION >= 22200
struct simulation {
  size_t size;
  unsigned magic, version;
  float micros;
};
int ncclGroupSimulateEnd(struct simulation *simulation) {
  if (depth == 0) return INVALID_USAGE;
  if (--depth) return SUCCESS;
  int error = group_error, operations = queued;
  group_error = queued = late = 0;
  if (!error && simulation && simulation->magic != 0x74685283) error = INVALID_ARGUMENT;
  if (error) return cancel(error, operations);
  fake_log("simulate %d operations", operations);
  if (simulation) simulation->micros = (float)fake_get(FAKE_SIMULATED_MICROS);
  return finish_group(SUCCESS);
}
#endif

/* Operations. */

size_t type_size(int type) {
  static const size_t sizes[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1};
  return type >= 0 && type < 12 ? sizes[type] : 0;
}

struct operation {
  const char *what;
  const void *from;
  void *to;
  size_t count;
  int type, op;
  const char *role; /* of the other rank: its root or peer */
  int other;
  struct comm *comm;
  intptr_t stream;
  enum extent reads, writes;
  const struct settings *settings;
  int with_settings;
};

/* False if the memory is too short. */
static int use(struct fake_work *work, const struct operation *operation, const void *address, enum extent extent,
               enum fake_kind kind) {
  const struct comm *comm = operation->comm;
  if (extent == NEITHER || (extent >= ONE_AT_ROOT && operation->other != comm->rank)) return 1;
  size_t counts = extent == ALL || extent == ALL_AT_ROOT ? (size_t)comm->size : 1;
  size_t bytes = operation->count * counts * type_size(operation->type);
  char who[64];
  snprintf(who, sizeof who, "%s comm%d", operation->what, comm->name);
  fake_use(work, who, address, bytes, kind);
  return fake_room(address) >= bytes;
}
/* The effect of the operation's work, whose uses are complete. */
static void affect(struct fake_work *work, const struct operation *operation) {
  struct comm *comm = operation->comm;
  if (fake_get(FAKE_MOVES_DATA)) {
    work->effect = (struct fake_effect){
      .from = operation->from, .to = operation->to, .what = operation->what, .count = operation->count,
      .type = operation->type, .op = operation->op, .other = operation->other, .reads = operation->reads,
      .writes = operation->writes};
    exchange(comm, &work->effect);
  } else if (comm->size == 1 && operation->from && operation->to) {
    work->effect = (struct fake_effect){.run = fake_copy, .from = operation->from, .to = operation->to,
                                        .bytes = operation->count * type_size(operation->type)};
  }
}

void append(char *line, const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  size_t length = strlen(line);
  vsnprintf(line + length, FAKE_LINE - length, format, arguments);
  va_end(arguments);
}

/* The fields that are set, as text for the log. */
static int describe(char *line, const struct settings *settings) {
  if (!settings) return append(line, " without settings"), SUCCESS;
  if (settings->magic != (unsigned)MAGIC || settings->size != sizeof *settings) return INVALID_ARGUMENT;
  append(line, " with settings");
  const struct { const char *name; int value; } numbers[] = {
    {"min_ctas", settings->min_ctas}, {"max_ctas", settings->max_ctas}, {"nvls_ctas", settings->nvls_ctas},
    {"cluster", settings->cluster},   {"policy", settings->policy},
  };
  for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
    if (numbers[i].value != UNDEFINED) append(line, " %s %d", numbers[i].name, numbers[i].value);
  if (settings->algorithm) append(line, " algorithm %s", settings->algorithm);
  if (settings->forced != 1) append(line, " forced %d", settings->forced);
  if (settings->tag) append(line, " tag %llu", (unsigned long long)settings->tag);
  if (settings->event) append(line, " event e%d", (int)(settings->event - 0x2000));
  return SUCCESS;
}

int begin_operation(struct comm *comm, const char *what) {
  int code = enter(comm, what, ACTIVE);
  if (code) return code;
  if (comm->finalized) fake_log("BUG: %s on comm%d after it was finalized", what, comm->name);
  if (comm->revoked) return leave(comm), refuse(INVALID_USAGE, "the communicator was revoked");
  fake_stay("NCCL");
  return SUCCESS;
}

/* Device of work: NCCL makes its own device current, and restores the previous one afterwards. However, the default stream
 * and a single rank's kernel use the current device, and without a context NCCL would create one on the first device. */
int device_of(const struct comm *comm, int op, intptr_t stream) {
  int kernel = comm->size == 1 && op >= 4, current = fake_device();
  return !stream || kernel || current < 0 ? current : comm->device;
}

/* NCCL up to 2.29.3 has a kernel that scales a single rank's elements, in blocks that may not cover the last ones. It has
 * none for 8-bit floating-point numbers. */
static int scale_alone(const struct operation *operation) {
  size_t bytes = type_size(operation->type), blocks = (operation->count * bytes + 16383) / 16384;
  if (operation->type >= 10) return INVALID_ARGUMENT;
  if (blocks > 32) blocks = 32;
  if (!blocks) return SUCCESS;
  size_t pack = 16 / bytes, share = (operation->count / blocks + pack - 1) / pack * pack;
  if (FAKE_VERSION < 22907 && share * blocks < operation->count)
    fake_log("BUG: %zu of %zu elements are not scaled", operation->count - share * blocks, operation->count);
  return SUCCESS;
}

static int operate(const struct operation *operation) {
  struct comm *comm = operation->comm;
  int code = begin_operation(comm, operation->what);
  if (code) return code;
  struct fake_work work = {.owner = &comm->owner, .stream = operation->stream};
  char *line = work.line;
  snprintf(line, FAKE_LINE, "%s comm%d %s->%s count %zu type %d op %d", operation->what, comm->name,
           fake_address(operation->from), fake_address(operation->to), operation->count, operation->type,
           operation->op);
  if (operation->role) append(line, " %s %d", operation->role, operation->other);
  append(line, " s%d device %d", operation->stream ? (int)(operation->stream - 0x1000) : 0,
         device_of(comm, operation->op, operation->stream));
  if (operation->with_settings) code = describe(line, operation->settings);
  if (operation->role && (operation->other < 0 || operation->other >= comm->size)) code = INVALID_ARGUMENT;
  if (!type_size(operation->type)) code = INVALID_ARGUMENT;
  else if (comm->size == 1 && operation->op >= 4) code = scale_alone(operation);
  if (code) code = refuse(code, "an argument is wrong");
  else {
    const int readable = use(&work, operation, operation->from, operation->reads, FAKE_READS);
    const int writable = use(&work, operation, operation->to, operation->writes, FAKE_WRITES);
    if (operation->op > 4) check_operator(comm, operation->op, operation->type);
    if (readable && writable) affect(&work, operation);
    code = submit(comm, &work);
  }
  leave(comm);
  return code;
}

/* A collective and its variant with a configuration. The second argument selects further parameters. */
#define FURTHER_NONE
#define FURTHER_OP , int op
#define FURTHER_ROOT , int root
#define FURTHER_OP_AND_ROOT , int op, int root
#define FURTHER_SETTINGS , const struct settings *settings
#define OPERATION(name, further, last, ...) \
  int name(const void *from, void *to, size_t count, int type FURTHER_##further, struct comm *comm, \
           intptr_t stream FURTHER_##last) { \
    return operate(&(struct operation){.from = from, .to = to, .count = count, .type = type, .comm = comm, \
                                       .stream = stream, __VA_ARGS__}); \
  }
#if FAKE_VERSION >= 23100
#define COLLECTIVE(name, further, ...) \
  OPERATION(nccl##name, further, NONE, __VA_ARGS__) \
  OPERATION(nccl##name##Config, further, SETTINGS, __VA_ARGS__, .settings = settings, .with_settings = 1)
#else
#define COLLECTIVE(name, further, ...) OPERATION(nccl##name, further, NONE, __VA_ARGS__)
#endif
#define AT_ROOT .role = "root", .other = root

COLLECTIVE(AllReduce, OP, .what = "all_reduce", .op = op, .reads = ONE, .writes = ONE)
COLLECTIVE(Reduce, OP_AND_ROOT, .what = "reduce", .op = op, AT_ROOT, .reads = ONE, .writes = ONE_AT_ROOT)
COLLECTIVE(ReduceScatter, OP, .what = "reduce_scatter", .op = op, .reads = ALL, .writes = ONE)
COLLECTIVE(AllGather, NONE, .what = "all_gather", .op = -1, .reads = ONE, .writes = ALL)
COLLECTIVE(Broadcast, ROOT, .what = "broadcast", .op = -1, AT_ROOT, .reads = ONE_AT_ROOT, .writes = ONE)
#if FAKE_VERSION >= 22800
COLLECTIVE(AlltoAll, NONE, .what = "all_to_all", .op = -1, .reads = ALL, .writes = ALL)
COLLECTIVE(Gather, ROOT, .what = "gather", .op = -1, AT_ROOT, .reads = ONE, .writes = ALL_AT_ROOT)
COLLECTIVE(Scatter, ROOT, .what = "scatter", .op = -1, AT_ROOT, .reads = ALL_AT_ROOT, .writes = ONE)
#endif

int ncclSend(const void *from, size_t count, int type, int peer, struct comm *comm, intptr_t stream) {
  return operate(&(struct operation){.what = "send", .from = from, .count = count, .type = type, .op = -1,
                                     .role = "peer", .other = peer, .comm = comm, .stream = stream, .reads = ONE});
}
int ncclRecv(void *to, size_t count, int type, int peer, struct comm *comm, intptr_t stream) {
  return operate(&(struct operation){.what = "recv", .to = to, .count = count, .type = type, .op = -1, .role = "peer",
                                     .other = peer, .comm = comm, .stream = stream, .writes = ONE});
}
