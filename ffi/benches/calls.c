// What the C ABI costs: a call, an error, a delivery by callback, a delivery by queue, a read of JSON.
// Run by `cargo bench -p proxycfg-ffi`; with an argument, a small size.
#define _POSIX_C_SOURCE 200809L

#include <proxycfg.h>

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static proxycfg_str text(const char *string) {
    proxycfg_str made = {string, strlen(string)};
    return made;
}

static void must(proxycfg_result result) {
    if (result != PROXYCFG_RESULT_OK) {
        fprintf(stderr, "a call failed: %d\n", (int)result);
        exit(1);
    }
}

static double at(clockid_t clock) {
    struct timespec time;
    clock_gettime(clock, &time);
    return (double)time.tv_sec * 1e9 + (double)time.tv_nsec;
}

static double now(void) { return at(CLOCK_MONOTONIC); }

// The time of this thread alone: what else the machine does isn't in it.
static double own(void) { return at(CLOCK_THREAD_CPUTIME_ID); }

static void show(const char *what, double nanos, long times) { printf("%-44s %10.1f ns\n", what, nanos / (double)times); }

// What one call takes: the least of some runs, since what disturbs a run only adds to it.
#define CALLS(what, times, ...)                                                                                        \
    do {                                                                                                               \
        enum { RUNS = 20 };                                                                                            \
        long each_ = (times) / RUNS;                                                                                   \
        double least_ = 0;                                                                                             \
        for (int run_ = 0; run_ < RUNS; run_++) {                                                                      \
            double start_ = own();                                                                                     \
            for (long i_ = 0; i_ < each_; i_++) __VA_ARGS__;                                                           \
            double took_ = own() - start_;                                                                             \
            if (run_ == 0 || took_ < least_) least_ = took_;                                                           \
        }                                                                                                              \
        show(what, least_, each_);                                                                                     \
    } while (0)

static void add_proxy(proxycfg_engine *engine, const char *definition, const char *id) {
    proxycfg_registration registration;
    memset(&registration, 0, sizeof registration);
    registration.size = sizeof registration;
    registration.id.id = text(id);
    registration.definition = text(definition);
    must(proxycfg_register(engine, &registration, NULL, NULL));
}

static uint64_t change(proxycfg_engine *engine, unsigned n) {
    char json[512];
    uint64_t index;
    snprintf(json, sizeof json,
             "{\"Ops\": [{\"Register\": {\"Node\": \"n\", \"Address\": \"10.0.0.1\", \"Service\": {\"Kind\": "
             "\"connect-proxy\", \"Service\": \"db-proxy\", \"Port\": %u, \"Proxy\": {\"DestinationServiceName\": "
             "\"db\"}}}}]}",
             1 + n % 60000);
    must(proxycfg_engine_apply(engine, text(json), &index, NULL));
    return index;
}

static atomic_long calls;

static void called(void *user_data, const proxycfg_snapshot *snapshot) {
    (void)user_data;
    (void)snapshot;
    atomic_fetch_add_explicit(&calls, 1, memory_order_relaxed);
}

int main(int count, char **arguments) {
    (void)arguments;
    int small = count > 1;
    long times = small ? 10000 : 20000000;
    unsigned watches = small ? 100 : 5000, rounds = small ? 5 : 100;
    const char *web = "{\"Kind\": \"connect-proxy\", \"Service\": \"web-proxy\", \"Port\": 21000, \"Proxy\": "
                      "{\"DestinationServiceName\": \"web\", \"Upstreams\": [{\"DestinationName\": \"db\", "
                      "\"LocalBindPort\": 9191}]}}";
    proxycfg_proxy_id id = {text("p"), {NULL, 0}, {NULL, 0}};
    proxycfg_engine *engine;
    const proxycfg_snapshot *snapshot;
    must(proxycfg_engine_new(NULL, &engine, NULL));
    change(engine, 0);
    add_proxy(engine, web, "p");
    must(proxycfg_engine_wait_ready(engine, &id, 60000, &snapshot, NULL));

    volatile uint64_t sum = 0;
    proxycfg_str json;
    CALLS("a call that does nothing", times, sum += proxycfg_abi_version());
    CALLS("snapshot_index", times, sum += proxycfg_snapshot_index(snapshot));
    CALLS("snapshot_kind", times, sum += (uint64_t)proxycfg_snapshot_kind(snapshot));
    CALLS("snapshot_proxy_id", times, sum += proxycfg_snapshot_proxy_id(snapshot).id.len);
    CALLS("snapshot_retain and _release, two calls", times, proxycfg_snapshot_release(proxycfg_snapshot_retain(snapshot)));
    CALLS("snapshot_json, encoded before", times, {
        must(proxycfg_snapshot_json(snapshot, text(""), &json, NULL));
        sum += json.len;
    });
    CALLS("snapshot_json of a part, found before", times / 10, {
        must(proxycfg_snapshot_json(snapshot, text("/ConnectProxy/Upstreams/db"), &json, NULL));
        sum += json.len;
    });
    CALLS("engine_wait_index, done before", times / 10, must(proxycfg_engine_wait_index(engine, 1, 0, NULL)));
    proxycfg_queue *empty;
    proxycfg_delivery none;
    size_t number;
    must(proxycfg_queue_new(engine, &empty, NULL));
    CALLS("queue_poll of an empty queue", times / 10, must(proxycfg_queue_poll(empty, &none, 1, 0, &number, NULL)));
    proxycfg_queue_free(empty);
    CALLS("queue_poll of a freed queue, refused", times / 10, sum += proxycfg_queue_poll(empty, &none, 1, 0, &number, NULL));
    CALLS("an addition to a number that threads share", times, atomic_fetch_add(&calls, 1));
    atomic_store(&calls, 0);

    proxycfg_watch_handle **handles = calloc(watches, sizeof *handles);
    for (unsigned i = 0; i < watches; i++) must(proxycfg_watch(engine, &id, called, NULL, NULL, &handles[i], NULL));
    while (atomic_load(&calls) < (long)watches) sched_yield();
    double start = now();
    for (unsigned round = 1; round <= rounds; round++) {
        long before = atomic_load(&calls);
        change(engine, round);
        while (atomic_load(&calls) < before + (long)watches) sched_yield();
    }
    show("delivery by callback, of many at once", now() - start, (long)watches * rounds);
    for (unsigned i = 0; i < watches; i++) must(proxycfg_watch_cancel(handles[i], NULL));

    proxycfg_queue *queue;
    must(proxycfg_queue_new(engine, &queue, NULL));
    for (unsigned i = 0; i < watches; i++) must(proxycfg_queue_watch(queue, &id, i, &handles[i], NULL));
    double total = 0;
    for (unsigned round = 0; round <= rounds; round++) {
        // The first snapshot was there before.
        if (round > 0) must(proxycfg_engine_wait_index(engine, change(engine, 1000 + round), 60000, NULL));
        start = now();
        for (size_t got = 0; got < watches;) {
            proxycfg_delivery deliveries[256];
            size_t number;
            must(proxycfg_queue_poll(queue, deliveries, 256, 60000, &number, NULL));
            for (size_t i = 0; i < number; i++) proxycfg_snapshot_release(deliveries[i].snapshot);
            got += number;
        }
        if (round > 0) total += now() - start;
    }
    show("poll of one that waits, in batches of 256", total, (long)watches * rounds);
    start = now();
    for (unsigned round = 1; round <= rounds; round++) {
        change(engine, 2000 + round);
        for (size_t got = 0; got < watches;) {
            proxycfg_delivery deliveries[256];
            size_t number;
            must(proxycfg_queue_poll(queue, deliveries, 256, 60000, &number, NULL));
            for (size_t i = 0; i < number; i++) proxycfg_snapshot_release(deliveries[i].snapshot);
            got += number;
        }
    }
    show("delivery by queue, of many at once", now() - start, (long)watches * rounds);
    proxycfg_snapshot_release(snapshot);
    proxycfg_engine_free(engine);
    free(handles);
    return sum == 1;
}
