/* Declarations of the fake NCCL. With -DFAKE_VERSION=22809 it has the functions of that version. */
#ifndef LIBRARY_H
#define LIBRARY_H

#include "fake.h"

enum { SUCCESS = 0, UNHANDLED_CUDA_ERROR = 1, INVALID_ARGUMENT = 4, INVALID_USAGE = 5, IN_PROGRESS = 7 };
enum { UNDEFINED = -2147483647 - 1, MAGIC = (int)0xcafebeef };

/* Communicators are never freed, so that use after the end is always detected. */
struct comm {
  int name, rank, size, device, blocking;
  int late;                   /* result of the current call */
  int finalized, revoked, suspended, growing;
  int held;                   /* by a thread's group */
  int managed;                /* by a management call in that group */
  _Atomic(const void *) user; /* the thread that is inside NCCL with it */
  int jobs;                   /* jobs of the worker */
  int failed;                 /* code of a failed job */
  struct text { const char *given, *copy; } texts[2]; /* strings of the configuration, to which NCCL keeps pointers */
  struct fake_owner owner;
  struct clique *clique;
  unsigned long turn;         /* number of its collective that completes next */
  int waits;                  /* its stream has come to that one: */
  struct fake_effect current;
};

/* Requirements of a call on its communicator; each includes the previous ones. */
enum needs { ALIVE, READY, ACTIVE };
/* Begins every call with a communicator. If it returns 0, the call ends with `leave`. */
int enter(struct comm *comm, const char *call, enum needs needs);
void leave(struct comm *comm);

/* The same for management calls, which can be set to fail. */
int begin(struct comm *comm, const char *call, enum needs needs);
/* Ends a management call that NCCL continues in the background, or in a group at its end: leaves, and returns the
 * communicator's result. */
int finish(struct comm *comm);
int settle(struct comm *comm);
/* Writes the value to the slot once the parent's work is done; if that fails, the child, if any, is lost. */
void promise(struct comm *parent, void *place, void *value, struct comm *child);
/* Called when the parent's work is done: writes the deferred values, or drops them after a failure. */
void keep_promises(struct comm *parent);
/* The same before a query. */
void write_promises(struct comm *parent);
void break_promises(struct comm *parent);

/* True if this thread is in a group; the communicator then belongs to the thread until its end. */
int in_group(void);
void hold(struct comm *comm);
/* Records NCCL's last message and the group's error, and returns the error. */
int refuse(int code, const char *words);

/* The same for operations. */
int begin_operation(struct comm *comm, const char *what);
/* Device of work on the stream. */
int device_of(const struct comm *comm, int op, intptr_t stream);
void append(char *line, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* Queues or launches. */
int submit(struct comm *comm, const struct fake_work *work);
/* Launches, or adds to the graph that captures the stream. */
int launch(const struct fake_work *work);

/* True if the worker executes the communicator's work. */
int has_worker(const struct comm *comm);
/* Makes the worker launch the work, or without any, finish the management call. */
void work_later(struct comm *comm, const struct fake_work *work);
/* Counts a query of the worker's state. */
void worker_polled(void);
/* Waits until the worker has no job of the communicator. */
void stop_work(struct comm *comm);
void worker_reset(void);

/* A mistake if the strings of the configuration have changed: NCCL may read them at any time. */
void read_texts(const struct comm *comm);

/* An object of a communicator, which must end before it. */
struct object {
  enum kind { REGISTRATION = 1, WINDOW, OPERATOR } kind;
  struct comm *comm;
  char *start;
  size_t bytes;
  int name, alive, block, type, flags;
};
/* Checks a user's operator for an operation on this type. Logs misuse. */
void check_operator(const struct comm *comm, int number, int type);
/* True if a registration or window of the owner's communicator contains all of this memory. */
int objects_know(const struct fake_owner *owner, const void *start, size_t bytes);
/* Drops an object whose creation has failed. */
void never_made(struct object *object);
/* Ends the communicator and its objects. If it is destroyed, its operators must have ended before. */
void end_objects(struct comm *comm, int destroyed);

size_t type_size(int type);

/* Length of a buffer of an operation, in counts of elements, on every rank or only on the root. */
enum extent { NEITHER, ONE, ALL, ONE_AT_ROOT, ALL_AT_ROOT };
/* exchange.c: makes the communicator the one of its rank among those with the same key. */
void join_clique(struct comm *comm, uint64_t key);
/* Completes the effect of an operation, whose parameters it has. */
void exchange(struct comm *comm, struct fake_effect *effect);
/* Ends the communicator. As in NCCL, the last rank to come here frees the memory of all ranks, for which it waits for all
 * work of their devices. */
void end_exchange(struct comm *comm);
void exchange_reset(void);

void objects_reset(void);
void communicators_reset(void);

#endif
