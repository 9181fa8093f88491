/* A host with bad memory: one bit of what is read from a block file comes out flipped.
 *
 * Preload it. FLIP_SHARE of 1024 reads are hit, chosen by FLIP_SEED; at the end the number of bits
 * flipped is written to the file FLIP_COUNT. Block files are known by their names.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

typedef ssize_t (*preadv_call)(int, const struct iovec *, int, off_t);
typedef ssize_t (*preadv2_call)(int, const struct iovec *, int, off_t, int);
typedef ssize_t (*pread_call)(int, void *, size_t, off_t);

static uint64_t state, share;
static unsigned long long flipped;

static uint64_t next_random(void) { /* xorshift64* */
    state ^= state >> 12;
    state ^= state << 25;
    state ^= state >> 27;
    return state * 0x2545F4914F6CDD1Dull;
}

__attribute__((constructor)) static void begin(void) {
    const char *seed = getenv("FLIP_SEED"), *of_1024 = getenv("FLIP_SHARE");
    state = 0x9E3779B97F4A7C15ull * (1 + (seed ? strtoull(seed, NULL, 10) : 0));
    share = of_1024 ? strtoull(of_1024, NULL, 10) : 0;
}

__attribute__((destructor)) static void end(void) {
    const char *path = getenv("FLIP_COUNT");
    FILE *file = path ? fopen(path, "w") : NULL;
    if (file) {
        fprintf(file, "%llu\n", flipped);
        fclose(file);
    }
}

static int is_block(int fd) {
    static const char suffix[] = ".block";
    char link[64], path[4096];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, sizeof path);
    size_t end = sizeof suffix - 1;
    return length > (ssize_t)end && !memcmp(path + length - end, suffix, end);
}

static void flip(int fd, const struct iovec *parts, int count, ssize_t got) {
    if (got <= 0 || (next_random() >> 54) >= share || !is_block(fd))
        return;
    uint64_t bit = (next_random() >> 8) % ((uint64_t)got * 8);
    for (int i = 0; i < count; bit -= 8 * parts[i++].iov_len)
        if (bit < 8 * parts[i].iov_len) {
            ((uint8_t *)parts[i].iov_base)[bit / 8] ^= (uint8_t)(1u << bit % 8);
            flipped++;
            return;
        }
}

ssize_t preadv2(int fd, const struct iovec *parts, int count, off_t at, int flags) {
    static preadv2_call real;
    if (!real)
        real = (preadv2_call)dlsym(RTLD_NEXT, "preadv2");
    ssize_t got = real(fd, parts, count, at, flags);
    flip(fd, parts, count, got);
    return got;
}

ssize_t preadv64v2(int fd, const struct iovec *parts, int count, off_t at, int flags) {
    return preadv2(fd, parts, count, at, flags);
}

ssize_t preadv(int fd, const struct iovec *parts, int count, off_t at) {
    static preadv_call real;
    if (!real)
        real = (preadv_call)dlsym(RTLD_NEXT, "preadv");
    ssize_t got = real(fd, parts, count, at);
    flip(fd, parts, count, got);
    return got;
}

ssize_t preadv64(int fd, const struct iovec *parts, int count, off_t at) {
    return preadv(fd, parts, count, at);
}

ssize_t pread(int fd, void *data, size_t length, off_t at) {
    static pread_call real;
    if (!real)
        real = (pread_call)dlsym(RTLD_NEXT, "pread");
    ssize_t got = real(fd, data, length, at);
    struct iovec part = {data, length};
    flip(fd, &part, 1, got);
    return got;
}

ssize_t pread64(int fd, void *data, size_t length, off_t at) { return pread(fd, data, length, at); }
