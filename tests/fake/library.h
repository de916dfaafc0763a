/* What the files of the fake NCCL share. Built with -DFAKE_VERSION=22809 it has the functions of that version. */
#ifndef LIBRARY_H
#define LIBRARY_H

#include "fake.h"

enum { SUCCESS = 0, UNHANDLED_CUDA_ERROR = 1, INVALID_ARGUMENT = 4, INVALID_USAGE = 5, IN_PROGRESS = 7 };
enum { UNDEFINED = -2147483647 - 1, MAGIC = (int)0xcafebeef };

/* Communicators are never freed, so that use after the end is seen here and not by chance. */
struct comm {
  int name, rank, size, device, blocking;
  int late;                   /* the call that is running shall answer so */
  int finalized, revoked, suspended, growing;
  int held;                   /* by the group of a thread */
  int managed;                /* by a call in that group that is no operation */
  _Atomic(const void *) user; /* the thread that is inside NCCL with it */
  int jobs;                   /* of the worker */
  int failed;                 /* the code of one that failed */
  struct text { const char *given, *copy; } texts[2]; /* the configuration's: its pointers are kept, as NCCL does */
  struct fake_owner owner;
};

/* What a call asks of its communicator: the later ones also what the earlier ones do. */
enum needs { ALIVE, READY, ACTIVE };
/* Every call with a communicator begins here and, unless this is not 0, ends with `leave`. */
int enter(struct comm *comm, const char *call, enum needs needs);
void leave(struct comm *comm);

/* The same for calls that are no operations, which may be told to fail. */
int begin(struct comm *comm, const char *call, enum needs needs);
/* The end of one that NCCL goes on with in the background: leaves, and answers as the communicator would. In a group
 * that goes on at its end. */
int finish(struct comm *comm);
int settle(struct comm *comm);
/* The value goes to the place when the parent's work is done; the child, if any, is lost when that fails. */
void promise(struct comm *parent, void *place, void *value, struct comm *child);
/* The parent's work is done: what was promised is written, or, where it failed, never will be. */
void keep_promises(struct comm *parent);
/* The same before anybody has asked. */
void write_promises(struct comm *parent);
void break_promises(struct comm *parent);

/* Whether this thread is inside a group; then the communicator is the thread's until that ends. */
int in_group(void);
void hold(struct comm *comm);
/* Notes NCCL's words and the group's error, and is that error. */
int refuse(int code, const char *words);

/* The same for operations. */
int begin_operation(struct comm *comm, const char *what);
/* The device that work on the stream goes to. */
int device_of(const struct comm *comm, int op, intptr_t stream);
void append(char *line, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* Queues or launches. */
int submit(struct comm *comm, const struct fake_work *work);
/* Launches, or puts into the graph that captures the stream. */
int launch(const struct fake_work *work);

/* Whether the communicator's work is the worker's. */
int has_worker(const struct comm *comm);
/* The worker launches the work, or, without any, finishes what the communicator was asked to. */
void work_later(struct comm *comm, const struct fake_work *work);
/* Somebody asks whether the worker is done. */
void worker_polled(void);
/* Returns when the worker has no job of the communicator any more. */
void stop_work(struct comm *comm);
void worker_reset(void);

/* A mistake if the texts of the configuration are no longer what they were: NCCL reads them whenever it likes. */
void read_texts(const struct comm *comm);

/* What was made for a communicator and has to go before it. */
struct object {
  enum kind { REGISTRATION = 1, WINDOW, OPERATOR } kind;
  struct comm *comm;
  char *start;
  size_t bytes;
  int name, alive, block, type, flags;
};
/* A user's operator of this number, for an operation on this type. Logs misuse. */
void check_operator(const struct comm *comm, int number, int type);
/* Whether a registration or a window of the owner's communicator has all of this memory. */
int objects_know(const struct fake_owner *owner, const void *start, size_t bytes);
/* The object that was to be made is not. */
void never_made(struct object *object);
/* The communicator ends, and its objects with it. If it is destroyed, its operators should have gone before. */
void end_objects(struct comm *comm, int destroyed);

size_t type_size(int type);

void objects_reset(void);
void communicators_reset(void);

#endif
