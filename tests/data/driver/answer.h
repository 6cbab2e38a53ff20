/* A library that stands in for a driver: every call succeeds, except the one that the test names. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The calls that fail, with a comma around each, what they answer, and how often they did. */
static char failing[256];
static int number, answered, chosen;

void stub_fail(const char *calls, int error) {
    snprintf(failing, sizeof failing, ",%s,", calls);
    number = error, answered = 0, chosen = 1;
}

int stub_answered(void) { return answered; }

static int answer(const char *call) {
    char name[96];
    if (!chosen) {
        const char *calls = getenv("PEERWARP_STUB_CALL"), *error = getenv("PEERWARP_STUB_ERROR");
        stub_fail(calls ? calls : "", error ? atoi(error) : 0);
    }
    snprintf(name, sizeof name, ",%s,", call);
    if (!strstr(failing, name)) return 0;
    answered++;
    return number;
}

/* A call, its parameters, and what it does when it succeeds. */
#define CALL(name, parameters, ...) \
    int name parameters {           \
        int error = answer(#name);  \
        if (error) return error;    \
        __VA_ARGS__;                \
        return 0;                   \
    }

/* A handle that no test looks into. */
#define HANDLE ((void *)0x1000)

typedef void *P;
typedef uint64_t U64;
