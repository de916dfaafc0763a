/* Loaded into a process of `doctor`: kills it when rank 0 asks it for its log. */
#include <dlfcn.h>
#include <signal.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

ssize_t recv(int socket, void *buffer, size_t length, int flags) {
  ssize_t (*receive)(int, void *, size_t, int);
  *(void **)&receive = dlsym(RTLD_NEXT, "recv");
  ssize_t count = receive(socket, buffer, length, flags);
  if (count > 0 && memmem(buffer, count, "\"Ask\"", 5)) kill(getpid(), SIGKILL);
  return count;
}
