/* A disk with a bad sector: every read of one file fails with EIO.
 *
 * Preload it. EIO_PATH is the file, as the kernel names it; EIO_COUNT is a file that grows by one
 * byte with each read that failed.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

typedef ssize_t (*preadv_call)(int, const struct iovec *, int, off_t);
typedef ssize_t (*preadv2_call)(int, const struct iovec *, int, off_t, int);
typedef ssize_t (*pread_call)(int, void *, size_t, off_t);

static int fails(int fd) {
    char link[64], path[4096];
    const char *bad = getenv("EIO_PATH"), *count_path = getenv("EIO_COUNT");
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, sizeof path - 1);
    if (!bad || !count_path || length < 0)
        return 0;
    path[length] = 0;
    if (strcmp(path, bad))
        return 0;
    int count = open(count_path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
    if (count < 0 || write(count, "x", 1) != 1)
        abort();
    close(count);
    errno = EIO;
    return 1;
}

ssize_t preadv2(int fd, const struct iovec *parts, int count, off_t at, int flags) {
    return fails(fd) ? -1 : ((preadv2_call)dlsym(RTLD_NEXT, "preadv2"))(fd, parts, count, at, flags);
}

ssize_t preadv64v2(int fd, const struct iovec *parts, int count, off_t at, int flags) {
    return preadv2(fd, parts, count, at, flags);
}

ssize_t preadv(int fd, const struct iovec *parts, int count, off_t at) {
    return fails(fd) ? -1 : ((preadv_call)dlsym(RTLD_NEXT, "preadv"))(fd, parts, count, at);
}

ssize_t preadv64(int fd, const struct iovec *parts, int count, off_t at) {
    return preadv(fd, parts, count, at);
}

ssize_t pread(int fd, void *data, size_t length, off_t at) {
    return fails(fd) ? -1 : ((pread_call)dlsym(RTLD_NEXT, "pread"))(fd, data, length, at);
}

ssize_t pread64(int fd, void *data, size_t length, off_t at) { return pread(fd, data, length, at); }
