/* Objects of the fake NCCL: allocations, registrations, windows with one-sided operations, and users' operators. */
#include "library.h"

#include <stdio.h>
#include <string.h>

enum { OBJECTS = 256, SYMMETRIC = 1, HOST = 1, FIRST_OPERATOR = 5 };

static struct object objects[OBJECTS];
static int names[OPERATOR + 1];

void objects_reset(void) {
  memset(objects, 0, sizeof objects);
  memset(names, 0, sizeof names);
  names[OPERATOR] = FIRST_OPERATOR - 1;
}

/* The object's name in the log. The text is thread-local, and valid until the second call after this one. */
static const char *name(const struct object *object) {
  static _Thread_local char texts[2][16];
  static _Thread_local int next;
  char *text = texts[next++ % 2];
  const char *const prefixes[] = {"", "reg", "win", "op"};
  sprintf(text, "%s%d", prefixes[object->kind], object->name);
  return text;
}

/* Forbids freeing its memory. */
static struct object *make(enum kind kind, struct comm *comm, void *start, size_t bytes) {
  struct object *made = NULL;
  if (bytes > fake_room(start))
    fake_log("BUG: %zu bytes at %s, which has %zu", bytes, fake_address(start), fake_room(start));
  fake_lock();
  for (int i = 0; i < OBJECTS && !made; i++)
    if (!objects[i].kind) made = &objects[i];
  if (made) {
    *made = (struct object){kind, comm, start, bytes, ++names[kind], 1, fake_block(start), 0, 0};
    fake_pin(made->block);
  } else {
    fake_log("BUG: too many objects for the fake");
  }
  fake_unlock();
  return made;
}
static void end(struct object *object) {
  object->alive = 0;
  fake_unpin(object->block);
}
void never_made(struct object *object) {
  fake_lock();
  if (object->alive) end(object);
  fake_unlock();
}
/* True if this is a live object of the communicator; otherwise a mistake. */
static int good(const struct object *object, enum kind kind, const struct comm *comm, const char *call) {
  if (object < objects || object >= objects + OBJECTS || object->kind != kind)
    return fake_log("BUG: %s of an unknown handle", call), 0;
  if (!object->alive) return fake_log("BUG: %s of %s, which is gone", call, name(object)), 0;
  if (object->comm != comm) return fake_log("BUG: %s of %s with comm%d", call, name(object), comm->name), 0;
  return 1;
}
int objects_know(const struct fake_owner *owner, const void *start, size_t bytes) {
  const char *from = start;
  int known = 0;
  fake_lock();
  for (int i = 0; i < OBJECTS && !known; i++) {
    const struct object *object = &objects[i];
    known = (object->kind == REGISTRATION || object->kind == WINDOW) && object->alive &&
            &object->comm->owner == owner && from >= object->start && from + bytes <= object->start + object->bytes;
  }
  fake_unlock();
  return known;
}
void end_objects(struct comm *comm, int destroyed) {
  fake_lock();
  for (int i = 0; i < OBJECTS; i++) {
    if (objects[i].comm != comm || !objects[i].alive) continue;
    const char *mistake = objects[i].kind == OPERATOR ? "BUG: " : "";
    if (destroyed) fake_log("%scomm%d destroyed while %s lives", mistake, comm->name, name(&objects[i]));
    end(&objects[i]);
  }
  fake_unlock();
}
/* End of an object by the user. */
static int dispose(struct comm *comm, struct object *object, enum kind kind, const char *call, const char *verb) {
  int code = enter(comm, call, ALIVE);
  if (code || !object) {
    if (!code) leave(comm);
    return code;
  }
  fake_stay("NCCL");
  int told = fake_take(FAKE_DISPOSAL_RESULT);
  if (told) return leave(comm), refuse(told, "the fake was told to fail");
  if (good(object, kind, comm, call)) {
    if (kind != OPERATOR) fake_must_be_done(&comm->owner, object->start, object->bytes, call);
    fake_log("%s %s comm%d", verb, name(object), comm->name);
    end(object);
  } else {
    code = INVALID_ARGUMENT;
  }
  leave(comm);
  return code;
}

#if FAKE_VERSION >= 21900
int ncclMemAlloc(void **memory, size_t bytes) {
  *memory = fake_allocate(bytes, 1);
  fake_log("ncclMemAlloc %s", fake_address(*memory));
  return SUCCESS;
}
int ncclMemFree(void *memory) {
  if (!memory) return SUCCESS;
  fake_log("ncclMemFree %s", fake_address(memory));
  fake_free(memory, 1, "ncclMemFree");
  return SUCCESS;
}

int ncclCommRegister(struct comm *comm, void *start, size_t bytes, struct object **handle) {
  int code = begin(comm, "ncclCommRegister", ACTIVE);
  if (code) return code;
  *handle = fake_get(FAKE_NO_WINDOWS) ? NULL : make(REGISTRATION, comm, start, bytes);
  fake_log("register comm%d %s bytes %zu as %s", comm->name, fake_address(start), bytes,
           *handle ? name(*handle) : "nothing");
  leave(comm);
  return SUCCESS;
}
int ncclCommDeregister(struct comm *comm, struct object *handle) {
  return dispose(comm, handle, REGISTRATION, "ncclCommDeregister", "deregister");
}
#endif

#if FAKE_VERSION >= 22700
/* The handle of a non-blocking communicator's object is written once ncclCommGetAsyncError reports that the work is done. */
int ncclCommWindowRegister(struct comm *comm, void *start, size_t bytes, struct object **window, int flags) {
  int code = begin(comm, "ncclCommWindowRegister", ACTIVE);
  if (code) return code;
  int told = comm->late, supported = !fake_get(FAKE_NO_WINDOWS);
  *window = NULL;
  if (!start || !bytes) return leave(comm), refuse(INVALID_ARGUMENT, "no memory");
  struct object *made = supported ? make(WINDOW, comm, start, bytes) : NULL;
  if (made) made->flags = flags;
  fake_log("window comm%d %s bytes %zu flags %d as %s", comm->name, fake_address(start), bytes, flags,
           made ? name(made) : "nothing");
  if (!made) return leave(comm), SUCCESS;
  promise(comm, window, made, NULL);
  code = finish(comm);
  return code == IN_PROGRESS && !told ? SUCCESS : code;
}
int ncclCommWindowDeregister(struct comm *comm, struct object *window) {
  return dispose(comm, window, WINDOW, "ncclCommWindowDeregister", "deregister");
}
#endif

#if FAKE_VERSION >= 22900
int ncclWinGetUserPtr(struct comm *comm, struct object *window, void **out) {
  int code = begin(comm, "ncclWinGetUserPtr", ALIVE);
  if (code) return code;
  *out = NULL;
  if (!fake_get(FAKE_NO_WINDOWS)) {
    if (good(window, WINDOW, comm, "ncclWinGetUserPtr")) *out = window->start;
    else code = INVALID_ARGUMENT;
  }
  leave(comm);
  return code;
}

/* True if all of it is in a window of the communicator that NCCL can send from. */
static int in_window(const struct comm *comm, const char *from, size_t bytes) {
  int found = 0;
  fake_lock();
  for (int i = 0; i < OBJECTS; i++) {
    const struct object *object = &objects[i];
    found |= object->kind == WINDOW && object->alive && object->comm == comm && (object->flags & SYMMETRIC) &&
             from >= object->start && from + bytes <= object->start + object->bytes;
  }
  fake_unlock();
  return found;
}
static int peer_exists(const struct comm *comm, int peer) { return peer >= 0 && peer < comm->size; }
/* Common part of one-sided operations. */
static struct fake_work begin_work(struct comm *comm, intptr_t stream) {
  return (struct fake_work){.owner = &comm->owner, .stream = stream};
}
static int one_sided(struct comm *comm, struct fake_work *work) {
  const intptr_t stream = work->stream;
  append(work->line, " s%d device %d", stream ? (int)(stream - 0x1000) : 0, device_of(comm, 0, stream));
  int code = submit(comm, work);
  leave(comm);
  return code;
}

int ncclPutSignal(const void *from, size_t count, int type, int peer, struct object *window, size_t offset, int signal,
                  int context, unsigned flags, struct comm *comm, intptr_t stream) {
  int code = begin_operation(comm, "put");
  if (code) return code;
  size_t bytes = count * type_size(type);
  if (!window || !peer_exists(comm, peer) || !in_window(comm, from, bytes))
    return leave(comm), refuse(INVALID_ARGUMENT, "no window, or no peer, or the source is in no symmetric window");
  if (!good(window, WINDOW, comm, "put")) return leave(comm), refuse(INVALID_ARGUMENT, "no window");
  if (offset + bytes > window->bytes) fake_log("BUG: put of %zu bytes at %s+%zu", bytes, name(window), offset);
  struct fake_work work = begin_work(comm, stream);
  snprintf(work.line, FAKE_LINE, "put comm%d %s->%s+%zu count %zu type %d peer %d signal %d context %d flags %u",
           comm->name, fake_address(from), name(window), offset, count, type, peer, signal, context, flags);
  fake_use(&work, "put", from, bytes, FAKE_READS);
  fake_use(&work, "put", window->start, window->bytes, FAKE_NAMES);
  return one_sided(comm, &work);
}
int ncclSignal(int peer, int signal, int context, unsigned flags, struct comm *comm, intptr_t stream) {
  int code = begin_operation(comm, "signal");
  if (code) return code;
  if (!peer_exists(comm, peer)) return leave(comm), refuse(INVALID_ARGUMENT, "no peer");
  struct fake_work work = begin_work(comm, stream);
  snprintf(work.line, FAKE_LINE, "signal comm%d peer %d signal %d context %d flags %u", comm->name, peer, signal, context,
           flags);
  return one_sided(comm, &work);
}
/* Peers' writes into the communicator's windows have arrived once it has waited for their signals. */
static void receive(struct comm *comm, struct fake_work *work) {
  fake_lock();
  for (int i = 0; i < OBJECTS; i++) {
    const struct object *object = &objects[i];
    if (object->kind == WINDOW && object->alive && object->comm == comm && (object->flags & SYMMETRIC))
      fake_use(work, "wait_signals", object->start, object->bytes, FAKE_RECEIVES);
  }
  fake_unlock();
}
struct wait { int times, peer, signal, context; };
int ncclWaitSignal(int count, struct wait *waits, struct comm *comm, intptr_t stream) {
  int code = begin_operation(comm, "wait_signals");
  if (code) return code;
  if (count <= 0 || !waits) code = refuse(INVALID_ARGUMENT, "nothing to wait for");
  struct fake_work work = begin_work(comm, stream);
  snprintf(work.line, FAKE_LINE, "wait_signals comm%d", comm->name);
  for (int i = 0; !code && i < count; i++) {
    const struct wait *wait = &waits[i];
    if (wait->times <= 0 || !peer_exists(comm, wait->peer)) code = refuse(INVALID_ARGUMENT, "no signal or no peer");
    append(work.line, "%s %d times peer %d signal %d context %d", i ? "," : "", wait->times, wait->peer, wait->signal,
           wait->context);
  }
  if (code) return leave(comm), code;
  receive(comm, &work);
  return one_sided(comm, &work);
}
#endif

/* Users' operators. Their numbers are never reused, so that use with another communicator is detected. */

static struct object *operator_of(int number) {
  struct object *found = NULL;
  for (int i = 0; i < OBJECTS; i++)
    if (objects[i].kind == OPERATOR && objects[i].name == number) found = &objects[i];
  return found;
}
void check_operator(const struct comm *comm, int number, int type) {
  fake_lock();
  const struct object *operator = operator_of(number);
  if (good(operator, OPERATOR, comm, "use") && operator->type != type)
    fake_log("BUG: op%d is for type %d, not %d", number, operator->type, type);
  fake_unlock();
}
int ncclRedOpCreatePreMulSum(int *op, void *scalar, int type, int residence, struct comm *comm) {
  int code = begin(comm, "ncclRedOpCreatePreMulSum", ACTIVE);
  if (code) return code;
  char text[32] = "";
  int host = residence == HOST;
  struct object *made = make(OPERATOR, comm, host ? NULL : scalar, host ? 0 : type_size(type));
  if (made) {
    made->type = type;
    *op = made->name;
    const unsigned char *bytes = scalar;
    for (size_t i = 0; host && i < type_size(type); i++) sprintf(text + 2 * i, "%02x", bytes[i]);
    fake_log("scaled_sum comm%d type %d scalar %s as %s", comm->name, type, host ? text : fake_address(scalar),
             name(made));
  }
  leave(comm);
  return SUCCESS;
}
int ncclRedOpDestroy(int op, struct comm *comm) {
  fake_lock();
  struct object *operator = operator_of(op);
  fake_unlock();
  if (!operator) return fake_log("BUG: op%d is none of a user's", op), INVALID_ARGUMENT;
  return dispose(comm, operator, OPERATOR, "ncclRedOpDestroy", "destroy");
}
