/* Preloaded: fsync and fdatasync of a file whose name contains STORE fail with EIO while the file TRIGGER exists.
   Each call is logged to the file LOG. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int synced(int fd, const char *call) {
    char link[64], name[4096], line[4200];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, name, sizeof name - 1);
    if (length < 0)
        return 0;
    name[length] = 0;
    if (!strstr(name, getenv("STORE")))
        return 0;
    int failing = access(getenv("TRIGGER"), F_OK) == 0;
    int log = open(getenv("LOG"), O_WRONLY | O_CREAT | O_APPEND, 0600);
    int size = snprintf(line, sizeof line, "%s %s\n", failing ? "failed" : "done", name);
    if (write(log, line, size) != size)
        abort();
    close(log);
    return failing;
}

int fsync(int fd) {
    int (*real)(int) = dlsym(RTLD_NEXT, "fsync");
    if (synced(fd, "fsync")) { errno = EIO; return -1; }
    return real(fd);
}

int fdatasync(int fd) {
    int (*real)(int) = dlsym(RTLD_NEXT, "fdatasync");
    if (synced(fd, "fdatasync")) { errno = EIO; return -1; }
    return real(fd);
}
