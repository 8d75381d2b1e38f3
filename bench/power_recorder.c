/* Records what a process writes below one directory, in order, so that a test can cut the power at any point.

   Loaded by LD_PRELOAD. POWER_ROOT is the directory, POWER_LOG the file to append to. Each record is a header, a path
   and data; `power_disk.py` reads them. An operation is recorded after it has succeeded: what is recorded as synchronised is. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#define FILES 65536

struct __attribute__((packed)) header {
    char kind; /* O open, W write, T truncate, S sync, D sync of a directory, M mkdir, R rename, L link, U unlink */
    uint64_t inode;
    int64_t offset;
    uint32_t path;
    uint32_t data;
};

static char root[PATH_MAX];
static size_t root_length;
static int output = -1;
static unsigned char tracked[FILES];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

__attribute__((constructor)) static void begin(void) {
    const char *given = getenv("POWER_ROOT"), *log = getenv("POWER_LOG");
    if (!given || !log || !realpath(given, root)) return;
    root_length = strlen(root);
    output = syscall(SYS_openat, AT_FDCWD, log, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600);
}

static void record(char kind, uint64_t inode, int64_t offset, const char *path, const void *data, size_t size) {
    struct header head = {kind, inode, offset, path ? strlen(path) : 0, size};
    struct iovec parts[3] = {{&head, sizeof head}, {(void *)(path ? path : ""), head.path}, {(void *)data, size}};
    pthread_mutex_lock(&lock);
    if (syscall(SYS_writev, output, parts, 3) < 0) abort();
    pthread_mutex_unlock(&lock);
}

static int name_of(int descriptor, char *path) {
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", descriptor);
    ssize_t length = readlink(link, path, PATH_MAX - 1);
    if (length < 0) return 0;
    path[length] = 0;
    return output >= 0 && !strncmp(path, root, root_length) && (path[root_length] == '/' || !path[root_length]);
}

static uint64_t inode_of(int descriptor) {
    struct stat found;
    return fstat(descriptor, &found) ? 0 : found.st_ino;
}

static int opened(int descriptor, int flags) {
    char path[PATH_MAX];
    struct stat found;
    if (descriptor < 0 || descriptor >= FILES) return descriptor;
    tracked[descriptor] = 0;
    if (output < 0 || (flags & O_ACCMODE) == O_RDONLY || !name_of(descriptor, path)) return descriptor;
    if (fstat(descriptor, &found) || !S_ISREG(found.st_mode)) return descriptor;
    tracked[descriptor] = 1;
    record('O', found.st_ino, flags & O_TRUNC ? 0 : -1, path, NULL, 0);
    return descriptor;
}

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))
#define MODE mode_t mode = 0; if (flags & (O_CREAT | O_TMPFILE)) { va_list more; va_start(more, flags); mode = va_arg(more, mode_t); va_end(more); }

int open(const char *path, int flags, ...) { MODE return opened(REAL(open)(path, flags, mode), flags); }
int open64(const char *path, int flags, ...) { MODE return opened(REAL(open64)(path, flags, mode), flags); }
int openat(int at, const char *path, int flags, ...) { MODE return opened(REAL(openat)(at, path, flags, mode), flags); }
int openat64(int at, const char *path, int flags, ...) { MODE return opened(REAL(openat64)(at, path, flags, mode), flags); }

int close(int descriptor) {
    if (descriptor >= 0 && descriptor < FILES) tracked[descriptor] = 0;
    return REAL(close)(descriptor);
}

static int follows(int descriptor) { return descriptor >= 0 && descriptor < FILES && tracked[descriptor]; }

ssize_t write(int descriptor, const void *data, size_t size) {
    ssize_t done = REAL(write)(descriptor, data, size);
    if (done > 0 && follows(descriptor))
        record('W', inode_of(descriptor), lseek(descriptor, 0, SEEK_CUR) - done, NULL, data, done);
    return done;
}

ssize_t pwrite(int descriptor, const void *data, size_t size, off_t offset) {
    ssize_t done = REAL(pwrite)(descriptor, data, size, offset);
    if (done > 0 && follows(descriptor)) record('W', inode_of(descriptor), offset, NULL, data, done);
    return done;
}

ssize_t pwrite64(int descriptor, const void *data, size_t size, off64_t offset) {
    ssize_t done = REAL(pwrite64)(descriptor, data, size, offset);
    if (done > 0 && follows(descriptor)) record('W', inode_of(descriptor), offset, NULL, data, done);
    return done;
}

static int cut(int descriptor, int64_t size, int done) {
    if (!done && follows(descriptor)) record('T', inode_of(descriptor), size, NULL, NULL, 0);
    return done;
}

int ftruncate(int descriptor, off_t size) { return cut(descriptor, size, REAL(ftruncate)(descriptor, size)); }
int ftruncate64(int descriptor, off64_t size) { return cut(descriptor, size, REAL(ftruncate64)(descriptor, size)); }

static int synced(int descriptor, int done) {
    char path[PATH_MAX];
    struct stat found;
    if (done || !name_of(descriptor, path) || fstat(descriptor, &found)) return done;
    record(S_ISDIR(found.st_mode) ? 'D' : 'S', found.st_ino, 0, path, NULL, 0);
    return done;
}

int fsync(int descriptor) { return synced(descriptor, REAL(fsync)(descriptor)); }
int fdatasync(int descriptor) { return synced(descriptor, REAL(fdatasync)(descriptor)); }

/* The whole path of a name at a directory; its directory may be a link, its last part is not resolved. */
static int full(int at, const char *name, char *path) {
    char folder[PATH_MAX], joined[PATH_MAX * 2];
    if (output < 0) return 0;
    if (name[0] == '/' || at == AT_FDCWD) snprintf(joined, sizeof joined, "%s", name);
    else {
        char link[64];
        snprintf(link, sizeof link, "/proc/self/fd/%d", at);
        ssize_t length = readlink(link, folder, sizeof folder - 1);
        if (length < 0) return 0;
        folder[length] = 0;
        snprintf(joined, sizeof joined, "%s/%s", folder, name);
    }
    char *last = strrchr(joined, '/');
    if (!last) return 0;
    *last = 0;
    if (!realpath(joined, folder) || strncmp(folder, root, root_length)) return 0;
    snprintf(path, PATH_MAX, "%.3000s/%.1000s", folder, last + 1);
    return 1;
}

static int renamed(int old_at, const char *old, int new_at, const char *new, int done) {
    char from[PATH_MAX], to[PATH_MAX];
    if (!done && full(old_at, old, from) && full(new_at, new, to)) record('R', 0, 0, from, to, strlen(to));
    return done;
}

int rename(const char *old, const char *new) {
    return renamed(AT_FDCWD, old, AT_FDCWD, new, REAL(rename)(old, new));
}
int renameat(int old_at, const char *old, int new_at, const char *new) {
    return renamed(old_at, old, new_at, new, REAL(renameat)(old_at, old, new_at, new));
}
int renameat2(int old_at, const char *old, int new_at, const char *new, unsigned flags) {
    return renamed(old_at, old, new_at, new, REAL(renameat2)(old_at, old, new_at, new, flags));
}

static int removed(int at, const char *name, int done) {
    char path[PATH_MAX];
    if (!done && full(at, name, path)) record('U', 0, 0, path, NULL, 0);
    return done;
}

static int linked(int at, const char *name, int done) {
    char path[PATH_MAX];
    struct stat found;
    if (!done && full(at, name, path) && !fstatat(at, name, &found, AT_SYMLINK_NOFOLLOW))
        record('L', found.st_ino, 0, path, NULL, 0);
    return done;
}

int link(const char *old, const char *new) { return linked(AT_FDCWD, new, REAL(link)(old, new)); }
int linkat(int old_at, const char *old, int new_at, const char *new, int flags) {
    return linked(new_at, new, REAL(linkat)(old_at, old, new_at, new, flags));
}

static int made(int at, const char *name, int done) {
    char path[PATH_MAX];
    if (!done && full(at, name, path)) record('M', 0, 0, path, NULL, 0);
    return done;
}

int mkdir(const char *path, mode_t mode) { return made(AT_FDCWD, path, REAL(mkdir)(path, mode)); }
int mkdirat(int at, const char *path, mode_t mode) { return made(at, path, REAL(mkdirat)(at, path, mode)); }
int rmdir(const char *path) { return removed(AT_FDCWD, path, REAL(rmdir)(path)); }
int unlink(const char *path) { return removed(AT_FDCWD, path, REAL(unlink)(path)); }
int unlinkat(int at, const char *path, int flags) { return removed(at, path, REAL(unlinkat)(at, path, flags)); }
