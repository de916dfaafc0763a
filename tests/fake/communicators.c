/* Communicators of the fake NCCL: creation, from an id or from others, changes and end. */
#include "library.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PROMISES = 256, NO_COLOR = -1, SHRINK_ABORT = 1 };

struct id { char bytes[128]; };
/* First fields of NCCL's configuration. Those up to `network` have the same offsets in every version. */
struct config {
  size_t size;
  unsigned magic, version;
  int blocking, cluster, min_ctas, max_ctas;
  const char *network;
  int split_share, traffic_class;
  const char *name; /* NCCL 2.27 */
};

static int communicators, unique_ids;
static struct promise {
  struct comm *parent, *child;
  void **place, *value;
} promises[PROMISES];
static _Thread_local char me;

void communicators_reset(void) {
  communicators = unique_ids = 0;
  memset(promises, 0, sizeof promises);
}

/* Calls inside NCCL. */

static int bug(const struct comm *comm, const char *call, const char *why) {
  fake_log("BUG: %s on comm%d %s", call, comm->name, why);
  return INVALID_ARGUMENT;
}
int enter(struct comm *comm, const char *call, enum needs needs) {
  if (!comm) return refuse(INVALID_ARGUMENT, "the communicator is null");
  const void *user = NULL;
  if (!atomic_compare_exchange_strong(&comm->user, &user, &me) && user != &me)
    return bug(comm, call, "while another thread is inside NCCL with it");
  int code = SUCCESS;
  if (comm->owner.dead) code = bug(comm, call, "which is dead");
  else if (needs >= READY && comm->owner.busy) code = bug(comm, call, "before the call before has completed");
  else if (needs >= ACTIVE && comm->suspended) code = bug(comm, call, "which is suspended");
  if (code) leave(comm);
  return code;
}
void leave(struct comm *comm) {
  if (comm->held) return;
  comm->late = 0;
  atomic_store(&comm->user, NULL);
}

int begin(struct comm *comm, const char *call, enum needs needs) {
  int code = enter(comm, call, needs);
  if (code) return code;
  fake_stay("NCCL");
  int told = fake_take(FAKE_MANAGEMENT_RESULT);
  comm->late = told == IN_PROGRESS;
  if (!told || comm->late) return SUCCESS;
  leave(comm);
  return refuse(told, "the fake was told to fail");
}
int settle(struct comm *comm) {
  int code = comm->late ? IN_PROGRESS : comm->blocking ? SUCCESS : fake_get(FAKE_ASYNC_RESULT);
  if (!code && has_worker(comm)) {
    work_later(comm, NULL);
    code = IN_PROGRESS;
  }
  comm->late = 0;
  if (code == IN_PROGRESS) comm->owner.busy = 1;
  else if (code) break_promises(comm);
  else keep_promises(comm);
  return code;
}
int finish(struct comm *comm) {
  int code = SUCCESS;
  if (in_group()) {
    hold(comm);
    comm->managed = 1;
  } else {
    code = settle(comm);
  }
  leave(comm);
  return code;
}

void promise(struct comm *parent, void *place, void *value, struct comm *child) {
  int i = 0;
  *(void **)place = NULL;
  fake_lock();
  while (i < PROMISES && promises[i].parent) i++;
  if (i < PROMISES) promises[i] = (struct promise){parent, child, place, value};
  else fake_log("BUG: too many results under way for the fake");
  fake_unlock();
}
/* The slot belongs to NCCL until then: it is null, and nothing else may be written into it. */
static void end_promises(struct comm *parent, int kept) {
  fake_lock();
  for (int i = 0; i < PROMISES; i++) {
    struct promise *promise = &promises[i];
    if (promise->parent != parent) continue;
    if (kept && promise->child) read_texts(promise->child);
    if (kept && *promise->place) fake_log("BUG: a place was reused before NCCL wrote to it");
    else if (kept) __atomic_store_n(promise->place, promise->value, __ATOMIC_RELEASE);
    else if (promise->child) promise->child->owner.dead = 1;
    else if (promise->value) never_made(promise->value);
    promise->parent = NULL;
  }
  fake_unlock();
}
void write_promises(struct comm *parent) { end_promises(parent, 1); }
void keep_promises(struct comm *parent) {
  parent->owner.busy = 0;
  end_promises(parent, 1);
}
void break_promises(struct comm *parent) { end_promises(parent, 0); }

/* Creation. */

int ncclGetUniqueId(struct id *id) {
  memset(id, 0, sizeof *id);
  strcpy(id->bytes, "fake id");
  fake_lock();
  const uint64_t key = (uint64_t)++unique_ids;
  fake_unlock();
  memcpy(id->bytes + sizeof id->bytes - sizeof key, &key, sizeof key);
  return SUCCESS;
}
/* Number of the id. */
static uint64_t key_of(const struct id *id) {
  uint64_t key;
  return memcpy(&key, id->bytes + sizeof id->bytes - sizeof key, sizeof key), key;
}
static int is_id(const struct id *id, const char *kind) { return id && !strcmp(id->bytes, kind); }

/* A communicator without a configuration inherits its parent's pointers. */
static void keep_texts(struct comm *comm, const struct config *config, const struct comm *parent) {
  if (!config) {
    memcpy(comm->texts, parent->texts, sizeof comm->texts);
    return;
  }
  const char *const given[] = {config->network, FAKE_VERSION >= 22700 ? config->name : NULL};
  for (int i = 0; i < 2; i++)
    if (given[i]) comm->texts[i] = (struct text){given[i], strdup(given[i])};
}
void read_texts(const struct comm *comm) {
  const char *const names[] = {"netName", "commName"};
  for (int i = 0; i < 2; i++) {
    const struct text *text = &comm->texts[i];
    if (text->given && strcmp(text->given, text->copy))
      fake_log("BUG: the %s of comm%d is no longer '%.100s'", names[i], comm->name, text->copy);
  }
}

/* NULL if neither the communicator nor its parent has a configuration. */
static struct comm *new_comm(int size, int rank, const struct config *config, const struct comm *parent) {
  if (config ? config->magic != (unsigned)MAGIC : !parent) return NULL;
  struct comm *comm = calloc(1, sizeof *comm);
  fake_lock();
  comm->name = ++communicators;
  fake_unlock();
  comm->rank = rank;
  comm->size = size;
  comm->device = parent ? parent->device : fake_device();
  comm->blocking = config ? config->blocking != 0 : parent->blocking;
  comm->owner.knows = objects_know;
  keep_texts(comm, config, parent);
  return comm;
}
/* Description of a new communicator: "comm2 rank 1/2 device 0". */
static const char *news(const struct comm *comm, const struct config *config) {
  static _Thread_local char text[FAKE_LINE / 2];
  const char *network = config ? config->network : NULL;
  snprintf(text, sizeof text, "comm%d rank %d/%d device %d%s%s%s%s", comm->name, comm->rank, comm->size, comm->device,
           comm->blocking ? "" : " non-blocking", network ? " over " : "", network ? network : "",
           config ? "" : " inheriting");
  return text;
}
/* End of an initialisation: the handle is valid immediately, NCCL continues in the background. */
static int born(struct comm *comm) {
  int result = fake_take(FAKE_INIT_RESULT);
  if (result) return refuse(result, "the fake was told to fail");
  if (!in_group()) return settle(comm);
  atomic_store(&comm->user, &me);
  return finish(comm);
}

int ncclCommInitRankConfig(struct comm **out, int size, struct id id, int rank, struct config *config) {
  struct comm *comm = is_id(&id, "fake id") ? new_comm(size, rank, config, NULL) : NULL;
  if (!comm) return refuse(INVALID_ARGUMENT, "the id or the configuration is wrong");
  *out = comm;
  join_clique(comm, key_of(&id));
  fake_log("init %s", news(comm, config));
  return born(comm);
}

#if FAKE_VERSION >= 22300
int ncclCommInitRankScalable(struct comm **out, int size, int rank, int ids, struct id *id, struct config *config) {
  int good = ids > 0 && ids <= size;
  for (int i = 0; good && i < ids; i++) good = is_id(&id[i], "fake id");
  struct comm *comm = good ? new_comm(size, rank, config, NULL) : NULL;
  if (!comm) return refuse(INVALID_ARGUMENT, "the ids or the configuration are wrong");
  *out = comm;
  join_clique(comm, key_of(id));
  fake_log("init %s from %d ids", news(comm, config), ids);
  return born(comm);
}
#endif

/* A child that NCCL creates in the background of its parent. Like NCCL 2.32, the call returns "success" also for a
 * non-blocking parent with work in progress, unless the fake is set to another result. Only the parent's
 * ncclCommGetAsyncError shows that the work is done and the handle written. */
static int conceive(struct comm *parent, struct comm **out, struct comm *child) {
  int told = parent->late;
  promise(parent, out, child, child);
  int code = finish(parent);
  return code == IN_PROGRESS && !told ? SUCCESS : code;
}

int ncclCommSplit(struct comm *comm, int color, int key, struct comm **out, struct config *config) {
  int code = begin(comm, "ncclCommSplit", ACTIVE);
  if (code) return code;
  int size = fake_get(FAKE_SPLIT_SIZE) ? fake_get(FAKE_SPLIT_SIZE) : comm->size;
  struct comm *child = color == NO_COLOR ? NULL : new_comm(size, comm->rank % size, config, comm);
  if (!child && color != NO_COLOR) return leave(comm), refuse(INVALID_ARGUMENT, "the configuration is wrong");
  fake_log("split comm%d color %d key %d into %s", comm->name, color, key, child ? news(child, config) : "nothing");
  return conceive(comm, out, child);
}

#if FAKE_VERSION >= 22700
int ncclCommShrink(struct comm *comm, int *excluded, int count, struct comm **out, struct config *config, int flags) {
  int code = begin(comm, "ncclCommShrink", ACTIVE);
  if (code) return code;
  int rank = comm->rank, good = excluded && count > 0 && count < comm->size;
  char list[FAKE_LINE / 4] = "";
  for (int i = 0; good && i < count; i++) {
    good = excluded[i] >= 0 && excluded[i] < comm->size && excluded[i] != comm->rank;
    rank -= excluded[i] < comm->rank;
    size_t length = strlen(list);
    snprintf(list + length, sizeof list - length, i ? ",%d" : "%d", excluded[i]);
  }
  struct comm *child = good ? new_comm(comm->size - count, rank, config, comm) : NULL;
  if (!child) return leave(comm), refuse(INVALID_ARGUMENT, "the ranks or the configuration are wrong");
  if (flags & SHRINK_ABORT) fake_release(&comm->owner);
  fake_log("shrink comm%d without %s flags %d into %s", comm->name, list, flags, news(child, config));
  return conceive(comm, out, child);
}
#endif

#if FAKE_VERSION >= 22900
int ncclCommGetUniqueId(struct comm *comm, struct id *id) {
  int code = begin(comm, "ncclCommGetUniqueId", ACTIVE);
  if (code) return code;
  if (comm->growing) code = refuse(INVALID_USAGE, "the id before was not used");
  else {
    comm->growing = 1;
    memset(id, 0, sizeof *id);
    strcpy(id->bytes, "fake grow id");
    fake_log("grow_id comm%d", comm->name);
  }
  leave(comm);
  return code;
}
/* The handle of the new communicator is valid immediately, and its own state is queried. */
int ncclCommGrow(struct comm *comm, int size, const struct id *id, int rank, struct comm **out, struct config *config) {
  int code = comm ? begin(comm, "ncclCommGrow", ACTIVE) : SUCCESS;
  if (code) return code;
  *out = NULL;
  int good = comm ? rank == -1 && size > comm->size : rank >= 0 && rank < size && id;
  if (id && !is_id(id, "fake grow id")) good = 0;
  struct comm *grown = good ? new_comm(size, comm ? comm->rank : rank, config, comm) : NULL;
  if (grown && comm) {
    comm->growing = 0;
    grown->late = comm->late;
  }
  if (comm) leave(comm);
  if (!grown) return refuse(INVALID_ARGUMENT, "the rank, the size, the id or the configuration is wrong");
  *out = grown;
  char parent[24] = "nothing";
  if (comm) snprintf(parent, sizeof parent, "comm%d", comm->name);
  fake_log("grow %s to %d%s into %s", parent, size, id ? " with an id" : "", news(grown, config));
  return born(grown);
}
#endif

/* Queries. */

int ncclCommGetAsyncError(struct comm *comm, int *code) {
  int refused = enter(comm, "ncclCommGetAsyncError", ALIVE);
  if (refused) return refused;
  fake_lock();
  worker_polled();
  int now = comm->failed ? comm->failed : comm->jobs ? IN_PROGRESS : SUCCESS;
  fake_unlock();
  *code = fake_get(FAKE_ASYNC_RESULT) ? fake_get(FAKE_ASYNC_RESULT) : now;
  if (!*code) keep_promises(comm);
  else if (*code != IN_PROGRESS) break_promises(comm);
  leave(comm);
  return SUCCESS;
}

#define NUMBER(name, type, value) \
  { \
    int code = enter(comm, name, READY); \
    if (code) return code; \
    *out = (type)(value); \
    leave(comm); \
    return SUCCESS; \
  }
int ncclCommCount(struct comm *comm, int *out) NUMBER("ncclCommCount", int, comm->size)
int ncclCommUserRank(struct comm *comm, int *out) NUMBER("ncclCommUserRank", int, comm->rank)
int ncclCommCuDevice(struct comm *comm, int *out) NUMBER("ncclCommCuDevice", int, comm->device)

#if FAKE_VERSION >= 22907
/* 1000 bytes can be suspended, 200 cannot. */
int ncclCommMemStats(struct comm *comm, int which, uint64_t *out) {
  int code = begin(comm, "ncclCommMemStats", READY);
  if (code) return code;
  const uint64_t values[] = {1000, (uint64_t)comm->suspended, 200, 1200};
  if (which < 0 || which > 3) code = refuse(INVALID_ARGUMENT, "unknown statistic");
  else *out = values[which];
  leave(comm);
  return code;
}

int ncclCommSuspend(struct comm *comm, int flags) {
  int code = begin(comm, "ncclCommSuspend", ACTIVE);
  if (code) return code;
  comm->suspended = comm->owner.stopped = 1;
  fake_log("suspend comm%d flags %d", comm->name, flags);
  return finish(comm);
}
int ncclCommResume(struct comm *comm) {
  int code = begin(comm, "ncclCommResume", READY);
  if (code) return code;
  if (!comm->suspended) bug(comm, "ncclCommResume", "which is not suspended");
  comm->suspended = comm->owner.stopped = 0;
  fake_log("resume comm%d", comm->name);
  return finish(comm);
}
#endif

/* End. */

int ncclCommFinalize(struct comm *comm) {
  if (!comm) return SUCCESS;
  int code = begin(comm, "ncclCommFinalize", ACTIVE);
  if (code) return code;
  if (comm->finalized || comm->revoked) return leave(comm), refuse(INVALID_ARGUMENT, "finalized or revoked before");
  comm->finalized = 1;
  read_texts(comm);
  fake_log("finalize comm%d", comm->name);
  return finish(comm);
}

#if FAKE_VERSION >= 22807
int ncclCommRevoke(struct comm *comm, int flags) {
  if (!comm) return SUCCESS;
  int code = begin(comm, "ncclCommRevoke", ALIVE);
  if (code) return code;
  if (flags || comm->finalized || comm->revoked)
    return leave(comm), refuse(INVALID_ARGUMENT, "finalized or revoked before, or unknown flags");
  comm->revoked = comm->owner.stopped = 1;
  fake_release(&comm->owner);
  fake_log("revoke comm%d", comm->name);
  return finish(comm);
}
#endif

/* NCCL waits for the end of graphs with the communicator's operations, also for an abort, which first ends hanging work. */
static int end(struct comm *comm, const char *call, enum needs needs) {
  if (!comm) return SUCCESS;
  int code = enter(comm, call, needs);
  if (code) return code;
  stop_work(comm);
  if (comm->owner.graphs && needs < READY) {
    fake_log("%s comm%d waits for its graphs", call, comm->name);
    fake_release(&comm->owner);
    fake_wait_for_graphs(&comm->owner);
  }
  fake_log("%s comm%d%s", call, comm->name, in_group() ? " INSIDE A GROUP" : "");
  if (comm->owner.graphs) bug(comm, call, "while a graph uses it");
  read_texts(comm);
  end_objects(comm, needs >= READY);
  break_promises(comm);
  fake_release(&comm->owner);
  end_exchange(comm);
  comm->owner.dead = 1;
  leave(comm);
  return SUCCESS;
}
int ncclCommAbort(struct comm *comm) { return end(comm, "abort", ALIVE); }
int ncclCommDestroy(struct comm *comm) { return end(comm, "destroy", READY); }

/* Functions that the safe layer does not use. */
#define UNUSED(name) \
  int name(void) { return fake_log("BUG: " #name " called"), INVALID_USAGE; }
UNUSED(ncclCommInitRank)
UNUSED(ncclCommInitAll)
UNUSED(ncclBcast)
#if FAKE_VERSION >= 22400
UNUSED(ncclResetDebugInit)
#endif
