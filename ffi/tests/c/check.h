// What the C tests share. A test is a function; the first check that fails ends the program.
#ifndef CHECK_H
#define CHECK_H

#define _POSIX_C_SOURCE 200809L

#include <proxycfg.h>

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define CHECK(condition)                                                                                               \
    do {                                                                                                               \
        if (!(condition)) {                                                                                            \
            fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition);                                            \
            abort();                                                                                                   \
        }                                                                                                              \
    } while (0)

// A call that must end in this way, with an error object that says so and has a message.
#define ENDS(wanted, call)                                                                                             \
    do {                                                                                                               \
        proxycfg_error *error = NULL;                                                                                  \
        proxycfg_result result_ = (call);                                                                                \
        if (result_ != PROXYCFG_RESULT_##wanted) {                                                                       \
            proxycfg_str why = proxycfg_error_message(error);                                                          \
            fprintf(stderr, "%s:%d: %s ended with %d: %.*s\n", __FILE__, __LINE__, #call, (int)result_, (int)why.len,   \
                    why.data);                                                                                         \
            abort();                                                                                                   \
        }                                                                                                              \
        CHECK(proxycfg_error_code(error) == result_);                                                                    \
        CHECK((result_ == PROXYCFG_RESULT_OK) == (error == NULL));                                                       \
        CHECK((result_ == PROXYCFG_RESULT_OK) == (proxycfg_error_message(error).len == 0));                              \
        proxycfg_error_free(error);                                                                                    \
    } while (0)

#define OK(call) ENDS(OK, call)

static inline proxycfg_str text(const char *string) {
    proxycfg_str made = {string, strlen(string)};
    return made;
}

static inline proxycfg_proxy_id proxy(const char *id) {
    proxycfg_proxy_id made = {text(id), text("n"), {NULL, 0}};
    return made;
}

static inline proxycfg_engine *new_engine(void) {
    proxycfg_engine *engine = NULL;
    OK(proxycfg_engine_new(NULL, &engine, &error));
    CHECK(engine != NULL);
    return engine;
}

// Registers a sidecar of web under an id.
static inline void add_proxy(proxycfg_engine *engine, const char *id) {
    proxycfg_registration registration;
    memset(&registration, 0, sizeof registration);
    registration.size = sizeof registration;
    registration.id = proxy(id);
    registration.definition =
        text("{\"Kind\": \"connect-proxy\", \"Service\": \"web-sidecar-proxy\", \"Port\": 21000, \"Proxy\": "
             "{\"DestinationServiceName\": \"web\", \"Upstreams\": [{\"DestinationName\": \"db\", \"LocalBindPort\": "
             "9191}]}}");
    OK(proxycfg_register(engine, &registration, NULL, &error));
}

// Changes what every such proxy sees: a new endpoint of db, by number.
static inline uint64_t change(proxycfg_engine *engine, unsigned n) {
    char json[512];
    snprintf(json, sizeof json,
             "{\"Ops\": [{\"Register\": {\"Node\": \"n\", \"Address\": \"10.0.0.1\", \"Service\": {\"Kind\": "
             "\"connect-proxy\", \"Service\": \"db-sidecar-proxy\", \"Port\": %u, \"Proxy\": "
             "{\"DestinationServiceName\": \"db\"}}}}]}",
             1024 + n % 60000);
    uint64_t index = 0;
    OK(proxycfg_engine_apply(engine, text(json), &index, &error));
    CHECK(index > 0);
    return index;
}

static inline void settle(proxycfg_engine *engine, uint64_t index) {
    OK(proxycfg_engine_wait_index(engine, index, 60000, &error));
}

// A counter that threads wait for.
typedef struct counter {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    long value;
} counter;

#define COUNTER {PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, 0}

static inline void count(counter *c) {
    pthread_mutex_lock(&c->lock);
    c->value++;
    pthread_cond_broadcast(&c->changed);
    pthread_mutex_unlock(&c->lock);
}

static inline long counted(counter *c) {
    pthread_mutex_lock(&c->lock);
    long value = c->value;
    pthread_mutex_unlock(&c->lock);
    return value;
}

static inline void wait_for(counter *c, long wanted) {
    struct timespec until;
    timespec_get(&until, TIME_UTC);
    until.tv_sec += 60;
    pthread_mutex_lock(&c->lock);
    while (c->value < wanted) {
        if (pthread_cond_timedwait(&c->changed, &c->lock, &until) != 0) {
            fprintf(stderr, "waited for %ld, got %ld\n", wanted, c->value);
            abort();
        }
    }
    pthread_mutex_unlock(&c->lock);
}

// Nothing is left of what the host freed, and the host forgot nothing: no leak checker sees that. Threads of the library may
// be about to let go of what they lent.
static inline void nothing_left(void) {
    for (int32_t kind = PROXYCFG_HANDLE_KIND_ENGINE; kind <= PROXYCFG_HANDLE_KIND_TEXT; kind++) {
        struct timespec moment = {0, 1000000};
        for (int tries = 0; proxycfg_live_handles(kind) != 0; tries++) {
            if (tries == 60000) {
                fprintf(stderr, "%zu handles of the kind %d are left\n", proxycfg_live_handles(kind), (int)kind);
                abort();
            }
            nanosleep(&moment, NULL);
        }
    }
}

#define RUN(test)                                                                                                      \
    do {                                                                                                               \
        test();                                                                                                        \
        printf("%s\n", #test);                                                                                         \
    } while (0)

#endif
