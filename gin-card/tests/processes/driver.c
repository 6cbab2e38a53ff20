// A CUDA driver for tests: GPU memory is host memory at addresses with a mark, and streams lag behind their calls.
//
// Each question for the current context lets every stream do one more thing, in the order of its calls.
#include <pthread.h>
#include <stdint.h>
#include <string.h>

enum { OK = 0, INVALID_VALUE = 1, OUT_OF_MEMORY = 2, INVALID_CONTEXT = 201, ALREADY_REGISTERED = 712, NOT_REGISTERED = 713 };
#define MARK (UINT64_C(1) << 60)
#define STREAMS 8
#define OPS 65536
#define PINNED 64

struct op { void* to; const void* from; uint64_t bytes, value; };
struct stream { int is_open; uint64_t begun, done; struct op ops[OPS]; };
static struct stream streams[STREAMS];
static struct { char* first; uint64_t bytes; } pinned[PINNED];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static __thread void* current;

static void step(struct stream* s) {
    if (s->done == s->begun) return;
    struct op* op = &s->ops[s->done++ % OPS];
    if (op->from) memcpy(op->to, op->from, op->bytes);
    else __atomic_store_n((uint64_t*)op->to, op->value, __ATOMIC_RELEASE);
}

static int is_pinned(const void* at) {
    for (int i = 0; i < PINNED; i++)
        if (pinned[i].first && (char*)at >= pinned[i].first && (char*)at < pinned[i].first + pinned[i].bytes) return 1;
    return 0;
}

static int add(struct stream* s, struct op op) {
    if (!current) return INVALID_CONTEXT;
    pthread_mutex_lock(&lock);
    int result = s->begun - s->done < OPS ? OK : OUT_OF_MEMORY;
    if (!result) s->ops[s->begun++ % OPS] = op;
    pthread_mutex_unlock(&lock);
    return result;
}

// What was not given back: pinned memory and streams.
int test_driver_left(void) {
    int left = 0;
    for (int i = 0; i < PINNED; i++) left += pinned[i].first != 0;
    for (int i = 0; i < STREAMS; i++) left += streams[i].is_open;
    return left;
}

int cuCtxGetCurrent(void** context) {
    pthread_mutex_lock(&lock);
    for (int i = 0; i < STREAMS; i++) step(&streams[i]);
    pthread_mutex_unlock(&lock);
    *context = current;
    return OK;
}

int cuCtxSetCurrent(void* context) { current = context; return OK; }

int cuStreamCreate(struct stream** stream, unsigned flags) {
    (void)flags;
    if (!current) return INVALID_CONTEXT;
    for (int i = 0; i < STREAMS; i++)
        if (!streams[i].is_open) { streams[i].is_open = 1; *stream = &streams[i]; return OK; }
    return OUT_OF_MEMORY;
}

int cuStreamSynchronize(struct stream* s) {
    pthread_mutex_lock(&lock);
    while (s->done != s->begun) step(s);
    pthread_mutex_unlock(&lock);
    return OK;
}

int cuStreamDestroy_v2(struct stream* s) { s->is_open = 0; return OK; }

int cuMemHostRegister_v2(void* first, uint64_t bytes, unsigned flags) {
    (void)flags;
    if (!current) return INVALID_CONTEXT;
    if (is_pinned(first)) return ALREADY_REGISTERED;
    for (int i = 0; i < PINNED; i++)
        if (!pinned[i].first) { pinned[i].first = first, pinned[i].bytes = bytes; return OK; }
    return OUT_OF_MEMORY;
}

int cuMemHostUnregister(void* first) {
    for (int i = 0; i < PINNED; i++)
        if (pinned[i].first == first) { pinned[i].first = 0; return OK; }
    return NOT_REGISTERED;
}

int cuMemHostGetDevicePointer_v2(uint64_t* address, void* first, unsigned flags) {
    (void)flags;
    *address = (uint64_t)first + MARK;
    return is_pinned(first) ? OK : NOT_REGISTERED;
}

// Copies of 8 bytes are from and to the stack, which is not pinned.
int cuMemcpyDtoHAsync_v2(void* to, uint64_t from, uint64_t bytes, struct stream* s) {
    if (from < MARK || (bytes != 8 && !is_pinned(to))) return INVALID_VALUE;
    return add(s, (struct op){to, (const void*)(from - MARK), bytes, 0});
}

int cuMemcpyHtoDAsync_v2(uint64_t to, const void* from, uint64_t bytes, struct stream* s) {
    if (to < MARK || (bytes != 8 && !is_pinned(from))) return INVALID_VALUE;
    return add(s, (struct op){(void*)(to - MARK), from, bytes, 0});
}

int cuStreamWriteValue64_v2(struct stream* s, uint64_t to, uint64_t value, unsigned flags) {
    (void)flags;
    if (to < MARK) return INVALID_VALUE;
    return add(s, (struct op){(void*)(to - MARK), 0, 0, value});
}

int cuGetErrorString(int error, const char** text) { (void)error; *text = "an error of the test's driver"; return OK; }
int cuGetErrorName(int error, const char** text) { return cuGetErrorString(error, text); }
