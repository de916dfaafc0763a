/* Loaded into a process of `doctor`: kills it when rank 0 asks it for its log, with a byte. */
#include <dlfcn.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

ssize_t recv(int socket, void *buffer, size_t length, int flags) {
  ssize_t (*receive)(int, void *, size_t, int);
  *(void **)&receive = dlsym(RTLD_NEXT, "recv");
  ssize_t count = receive(socket, buffer, length, flags);
  if (length == 1 && count == 1 && *(char *)buffer == '?') kill(getpid(), SIGKILL);
  return count;
}
