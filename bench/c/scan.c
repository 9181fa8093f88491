/* What a scan costs at least: read files with O_DIRECT and check the CRC32C of every window.
 *
 *     scan [-i] [-t THREADS] [-w WINDOW_BYTES] [-r READ_BYTES] LIST SUMS
 *
 * LIST has one line a file, "LENGTH PATH"; PATH is opened relative to the list's folder. SUMS has
 * the CRC32C of every window of every file, in order, 4 bytes each in this machine's byte order.
 * Prints one line of JSON: what was read, the windows that differ, and the seconds and processor
 * seconds between the first thread's start and the last one's end, so that starting costs nothing.
 *
 * CRC32C: where the processor multiplies polynomials 512 bits at a time, 256 bytes are folded at
 * once ("Fast CRC Computation for Generic Polynomials Using PCLMULQDQ Instruction", Intel, 2009).
 * Elsewhere, and with -i, by the instruction for it, on three streams at once, because one has to
 * wait three cycles for its own result; the streams are joined with a carry-less product by
 * x^(8 n) mod P ("Fast CRC Computation for iSCSI Polynomial Using CRC32 Instruction", Intel, 2011).
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <immintrin.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#define ALIGN 4096u
#define STREAM 1360u /* bytes of one of three streams: 4 x 3 x 1360 leave 64 of a 16 KiB window */
#define HUGE_PAGE (2u << 20)

struct file {
    const char *path;
    size_t length;
    size_t first_sum;
};

static struct file *files;
static size_t file_count, window_bytes = 16384, read_bytes = 4u << 20;
static const uint32_t *sums;
static int directory;
static atomic_size_t next_file;
static atomic_ullong bytes_read, windows_wrong;

static void die(const char *what) {
    perror(what);
    exit(1);
}

/* x^n mod P, in the reflected form that the instruction uses. */
static uint32_t power_of_x(uint64_t n) {
    uint32_t value = 0x80000000u;
    while (n--)
        value = (value >> 1) ^ (value & 1 ? 0x82F63B78u : 0);
    return value;
}

static uint64_t shift_one, shift_two;

static uint64_t shifted(uint32_t crc, uint64_t by) {
    __m128i product = _mm_clmulepi64_si128(_mm_cvtsi32_si128((int)crc),
                                           _mm_cvtsi64_si128((long long)by), 0);
    return (uint64_t)_mm_cvtsi128_si64(product);
}

static int folds;

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__VPCLMULQDQ__)
#define REGISTERS 4u
#define REGISTER_BITS 512u
#define LANES 4u
#define LANE_BITS 128u
#define FOLDED (REGISTERS * REGISTER_BITS / 8)

static uint64_t fold_all[2], fold_register[REGISTERS][2], fold_lane[LANES][2];

/* What moves the two halves of a lane by that many bits. */
static void prepare_fold(uint64_t *by, uint64_t bits) {
    by[0] = power_of_x(bits + 64 - 33);
    by[1] = power_of_x(bits - 33);
}

static int prepare_folds(void) {
    prepare_fold(fold_all, REGISTERS * REGISTER_BITS);
    for (unsigned i = 1; i < REGISTERS; i++)
        prepare_fold(fold_register[i], i * REGISTER_BITS);
    for (unsigned i = 1; i < LANES; i++)
        prepare_fold(fold_lane[i], i * LANE_BITS);
    return 1;
}

static __m512i moved(__m512i value, const uint64_t *by) {
    __m512i factors = _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)by));
    return _mm512_xor_si512(_mm512_clmulepi64_epi128(value, factors, 0x00),
                            _mm512_clmulepi64_epi128(value, factors, 0x11));
}

/* Return the CRC of whole pieces of FOLDED bytes, without the last inversion. */
static uint64_t crc32c_folded(const uint8_t *data, size_t length) {
    __m512i sums[REGISTERS], joined = _mm512_setzero_si512();
    for (unsigned i = 0; i < REGISTERS; i++)
        sums[i] = _mm512_loadu_si512(data + i * REGISTER_BITS / 8);
    sums[0] = _mm512_xor_si512(sums[0], _mm512_zextsi128_si512(_mm_cvtsi32_si128(-1)));
    for (size_t at = FOLDED; at < length; at += FOLDED)
        for (unsigned i = 0; i < REGISTERS; i++)
            sums[i] = _mm512_xor_si512(moved(sums[i], fold_all),
                                       _mm512_loadu_si512(data + at + i * REGISTER_BITS / 8));
    for (unsigned i = 0; i + 1 < REGISTERS; i++)
        joined = _mm512_xor_si512(joined, moved(sums[i], fold_register[REGISTERS - 1 - i]));
    joined = _mm512_xor_si512(joined, sums[REGISTERS - 1]);
    uint64_t lanes[2 * LANES], halves[2];
    _mm512_storeu_si512(lanes, joined);
    __m128i last = _mm_loadu_si128((const __m128i *)(lanes + 2 * (LANES - 1)));
    for (unsigned i = 0; i + 1 < LANES; i++) {
        __m128i lane = _mm_loadu_si128((const __m128i *)(lanes + 2 * i));
        __m128i by = _mm_loadu_si128((const __m128i *)fold_lane[LANES - 1 - i]);
        last = _mm_xor_si128(last, _mm_xor_si128(_mm_clmulepi64_si128(lane, by, 0x00),
                                                 _mm_clmulepi64_si128(lane, by, 0x11)));
    }
    _mm_storeu_si128((__m128i *)halves, last);
    return _mm_crc32_u64(_mm_crc32_u64(0, halves[0]), halves[1]);
}
#else
#define FOLDED SIZE_MAX
static int prepare_folds(void) { return 0; }
static uint64_t crc32c_folded(const uint8_t *data, size_t length) { return data[length - 1]; }
#endif

static uint32_t crc32c(const uint8_t *data, size_t length) {
    uint64_t crc = 0xFFFFFFFFu;
    if (folds && length >= FOLDED) {
        size_t whole = length / FOLDED * FOLDED;
        crc = crc32c_folded(data, whole);
        data += whole;
        length -= whole;
    }
    for (; length >= 3 * STREAM; data += 3 * STREAM, length -= 3 * STREAM) {
        const uint64_t *a = (const uint64_t *)data;
        const uint64_t *b = (const uint64_t *)(data + STREAM);
        const uint64_t *c = (const uint64_t *)(data + 2 * STREAM);
        uint64_t second = 0, third = 0;
        for (size_t i = 0; i < STREAM / 8; i++) {
            crc = _mm_crc32_u64(crc, a[i]);
            second = _mm_crc32_u64(second, b[i]);
            third = _mm_crc32_u64(third, c[i]);
        }
        uint64_t joined = shifted((uint32_t)crc, shift_two) ^ shifted((uint32_t)second, shift_one);
        crc = third ^ _mm_crc32_u64(0, joined);
    }
    for (; length >= 8; data += 8, length -= 8)
        crc = _mm_crc32_u64(crc, *(const uint64_t *)data);
    while (length--)
        crc = _mm_crc32_u8((uint32_t)crc, *data++);
    return (uint32_t)crc ^ 0xFFFFFFFFu;
}

static void check(const uint8_t *data, size_t length, const uint32_t *expected) {
    for (size_t at = 0; at < length; at += window_bytes) {
        size_t window = length - at < window_bytes ? length - at : window_bytes;
        if (crc32c(data + at, window) != expected[at / window_bytes])
            atomic_fetch_add(&windows_wrong, 1);
    }
}

static void scan(const struct file *file, uint8_t *buffer) {
    int fd = openat(directory, file->path, O_RDONLY | O_DIRECT | O_CLOEXEC | O_NOFOLLOW);
    if (fd < 0)
        die(file->path);
    for (size_t at = 0; at < file->length; at += read_bytes) {
        size_t wanted = file->length - at < read_bytes ? file->length - at : read_bytes;
        size_t whole = (wanted + ALIGN - 1) / ALIGN * ALIGN;
        ssize_t got = pread(fd, buffer, whole, (off_t)at);
        if (got < (ssize_t)wanted)
            die(file->path);
        check(buffer, wanted, sums + file->first_sum + at / window_bytes);
        atomic_fetch_add(&bytes_read, wanted);
    }
    close(fd);
}

static void *work(void *unused) {
    (void)unused;
    uint8_t *buffer = NULL;
    size_t size = (read_bytes + HUGE_PAGE - 1) / HUGE_PAGE * HUGE_PAGE;
    if (posix_memalign((void **)&buffer, HUGE_PAGE, size))
        die("buffer");
    madvise(buffer, size, MADV_HUGEPAGE);
    for (size_t i; (i = atomic_fetch_add(&next_file, 1)) < file_count;)
        scan(&files[i], buffer);
    free(buffer);
    return NULL;
}

static void load(const char *list, const char *sums_path) {
    FILE *lines = fopen(list, "r");
    char *line = NULL;
    size_t room = 0, sum_count = 0, file_room = 0;
    if (!lines)
        die(list);
    while (getline(&line, &room, lines) > 0) {
        char *path;
        if (file_count == file_room) {
            file_room = file_room ? 2 * file_room : 1024;
            files = realloc(files, file_room * sizeof *files);
        }
        line[strcspn(line, "\n")] = 0;
        files[file_count].length = strtoull(line, &path, 10);
        files[file_count].path = strdup(path + 1);
        files[file_count].first_sum = sum_count;
        sum_count += (files[file_count++].length + window_bytes - 1) / window_bytes;
    }
    fclose(lines);
    int fd = open(sums_path, O_RDONLY);
    void *map = mmap(NULL, 4 * sum_count, PROT_READ, MAP_PRIVATE | MAP_POPULATE, fd, 0);
    if (map == MAP_FAILED)
        die(sums_path);
    sums = map;
    directory = open(dirname(strdup(list)), O_RDONLY | O_DIRECTORY);
    if (directory < 0)
        die(list);
}

static double seconds(struct timeval time) { return (double)time.tv_sec + 1e-6 * time.tv_usec; }

static double cpu_s(void) {
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

static double wall_s(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * now.tv_nsec;
}

int main(int count, char **arguments) {
    int threads = 1;
    folds = prepare_folds();
    for (int option; (option = getopt(count, arguments, "it:w:r:")) != -1;) {
        size_t value = optarg ? strtoull(optarg, NULL, 10) : 0;
        if (option == 'i')
            folds = 0;
        else if (option == 't' && value >= 1 && value <= 64)
            threads = (int)value;
        else if (option == 'w' && value)
            window_bytes = value;
        else if (option == 'r' && value && value % ALIGN == 0)
            read_bytes = value;
        else
            return 2;
    }
    if (count - optind != 2 || read_bytes % window_bytes)
        return 2;
    shift_one = power_of_x(8 * STREAM - 33);
    shift_two = power_of_x(16 * STREAM - 33);
    load(arguments[optind], arguments[optind + 1]);

    pthread_t ids[64];
    double cpu = cpu_s(), wall = wall_s();
    for (int i = 0; i < threads; i++)
        if (pthread_create(&ids[i], NULL, work, NULL))
            die("thread");
    for (int i = 0; i < threads; i++)
        pthread_join(ids[i], NULL);
    printf("{\"bytes\": %llu, \"files\": %zu, \"wrong\": %llu, \"wall_s\": %.6f, \"cpu_s\": %.6f}\n",
           bytes_read, file_count, windows_wrong, wall_s() - wall, cpu_s() - cpu);
    return windows_wrong ? 1 : 0;
}
